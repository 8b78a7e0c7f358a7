"""What needles are hidden in: running prose, a line of noise over and over, or needles that nobody asks for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import EvaluationError

#: Where a sentence ends: mark, optional closing quote, space, then a capital, digit or opening mark.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")


def draw(*what: Any, below: int) -> int:
    """A number in [0, below) that depends on the arguments alone, on every machine and version."""
    digest = hashlib.sha256(":".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:16], "big") % below


def split_sentences(text: str) -> list[str]:
    """Sentences of prose; joined by spaces they give the text back."""
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        sentences.append(text[start : match.end()].rstrip())
        start = match.end()
    return [*sentences, text[start:]] if text[start:] else sentences


@dataclass(frozen=True)
class Haystack:
    """Words of running prose, and what the results call it; ``begins_with_space``: white space before the first."""

    words: list[str]
    label: str
    begins_with_space: bool = False


def prose_haystack(texts: Sequence[str], label: str) -> Haystack:
    """Texts one after the other, split at white space."""
    text = " ".join(texts)
    words = text.split()
    if not words:
        raise EvaluationError(f"niah.haystack: {label} holds no words")
    return Haystack(words, label, text[0].isspace())


class Hay(Protocol):
    """The haystack of one prompt, in units of which any number up to ``limit`` (None: any at all) can be taken."""

    joiner: str
    limit: int | None

    def pieces(self, count: int) -> list[str]:
        """The first ``count`` units as the pieces between which a needle may stand."""


class ProseHay:
    """Words of prose from a place on, around the end to the beginning; needles stand between sentences."""

    joiner = " "

    def __init__(self, haystack: Haystack, begin: int) -> None:
        self.words = haystack.words[begin:] + haystack.words[:begin]
        self.limit: int | None = len(self.words)

    def pieces(self, count: int) -> list[str]:
        """Sentences of the first ``count`` words."""
        return split_sentences(" ".join(self.words[:count]))


class NoiseHay:
    """One line of a few sentences over and over; a unit is a sentence, and the last line may be cut short."""

    joiner = "\n"
    limit: int | None = None

    def __init__(self, line: str) -> None:
        self.line, self.sentences = line, split_sentences(line)

    def pieces(self, count: int) -> list[str]:
        """Lines of altogether ``count`` sentences."""
        whole, rest = divmod(count, len(self.sentences))
        return [self.line] * whole + ([" ".join(self.sentences[:rest])] if rest else [])


class NeedleHay:
    """A needle with another key and value on every line; ``make(number)`` writes the line of that number."""

    joiner = "\n"
    limit: int | None = None

    def __init__(self, make: Any) -> None:
        self.make = make
        self.lines: list[str] = []

    def pieces(self, count: int) -> list[str]:
        """The first ``count`` lines; each is made once."""
        self.lines += [self.make(number) for number in range(len(self.lines), count)]
        return self.lines[:count]
