"""Which keys and values training may plant and which the needle evaluation asks for: one rule that both sides use."""

from __future__ import annotations

import hashlib

# Part of every decision: another text here would move keys from the one side to the other.
_SALT = "retrieval split"


def is_for_training(text: str) -> bool:
    """Whether a key (as it stands in the text) or a value (its digits) belongs to training; else to the evaluation.

    Half of all texts each, decided by a hash of the text alone: the same on every machine and in every version.
    """
    return hashlib.sha256(f"{_SALT}:{text}".encode()).digest()[0] < 128
