"""Errors of the probes that a user can mend."""

from __future__ import annotations

from ..scripting import UserError


class ProbeError(UserError):
    """A probe cannot run as asked; the message names the setting, its value and what was expected."""


class UnsupportedModelError(ProbeError):
    """The attention of a model cannot be taken apart into frequencies; the message says which part is in the way."""


class LogitMismatchError(ProbeError):
    """The frequency contributions do not add up to the model's own attention logits; nothing is measured then."""
