"""The error class of band extraction and head classification."""

from __future__ import annotations

from hwh_core.scripting import UserError


class BandError(UserError):
    """Maps, scores or settings from which no band can be read; the message names the array and what was expected."""
