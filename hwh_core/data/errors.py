"""The error of this package."""

from __future__ import annotations

from ..scripting import UserError


class DataError(UserError):
    """A source, document, tokenizer or token store cannot be used; the message names it and the mend."""
