"""The error that all of this package raises for input that a user can mend."""

from __future__ import annotations

from ..scripting import UserError


class EvaluationError(UserError):
    """Rows, a prompt or a model cannot be evaluated; the message names the task and the row."""
