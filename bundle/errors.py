"""The error of this package; standard library only."""

from __future__ import annotations


class BundleError(Exception):
    """A bundle cannot be made, read or run; the message names what is wrong and the mend."""
