"""Question-answer contexts for the behavioral probes: where the answer stands is known to the token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .errors import ProbeError
from .text import CHARACTERS_PER_TOKEN, encode, shuffled_pieces, start_token

NULL_QUESTION = "N/A"
"""Question of the calibration pass (Zhang et al., EMNLP 2025)."""

KEYS = (
    "harbor", "lantern", "meadow", "violin", "granite", "pepper", "glacier", "compass", "orchard", "saddle", "thimble",
    "walnut", "cobalt", "feather", "tunnel", "marble", "saffron", "anchor", "beacon", "clover", "dolphin", "ember",
    "falcon", "ginger", "hazel", "island", "jasmine", "kettle", "lagoon", "magnet", "nectar", "oyster",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """Token ids of context and question, and the half-open spans of gold tokens in the context."""

    context: list[int]
    gold: list[tuple[int, int]]
    question: list[int]
    null_question: list[int]

    def prompt(self, null: bool = False) -> list[int]:
        """Context and question, or context and the question without content."""
        return self.context + (self.null_question if null else self.question)

    def gold_positions(self) -> np.ndarray:
        """Positions of all gold tokens, int64; none where the context has no evidence."""
        return np.concatenate([np.empty(0, np.int64), *(np.arange(start, stop) for start, stop in self.gold)])


def truncate(context: Sequence[int], gold: Sequence[tuple[int, int]], budget: int) -> tuple[list[int], list] | None:
    """Shorten a context to ``budget`` tokens so that the gold spans stay whole and at the same relative place.

    One span of G tokens at ``start`` in N tokens: left = round((budget - G) start / (N - G)) tokens before it and
    budget - G - left behind it stay, next to it. With several spans the filler between two shrinks in proportion, from
    its middle. Returns (context, gold), or None when the gold tokens fill more than half of the budget.
    Raises ValueError for spans that are empty, overlap or lie outside of the context.
    """
    ends = [0, *(edge for span in gold for edge in span), len(context)]
    if not gold or any(a > b for a, b in pairwise(ends)) or any(a >= b for a, b in gold):
        raise ValueError(f"gold: spans {list(gold)} must be non-empty, ordered and inside {len(context)} tokens")
    size = sum(stop - start for start, stop in gold)
    if size > budget / 2:
        return None
    if len(context) <= budget:
        return list(context), list(gold)
    fillers = [(ends[i], ends[i + 1]) for i in range(0, len(ends), 2)]
    total = len(context) - size
    kept, before, shared = [], 0, 0
    for start, stop in fillers:  # rounding the running sum keeps every span within half a token of its place
        before += stop - start
        # round() to even would move a span at an exact half
        target = int(np.floor((budget - size) * before / total + 0.5))
        kept.append(target - shared)
        shared = target
    result: list[int] = []
    spans: list[tuple[int, int]] = []
    for index, ((start, stop), count) in enumerate(zip(fillers, kept, strict=True)):
        if index == 0:
            result += context[stop - count : stop]
        elif index == len(gold):
            result += context[start : start + count]
        else:
            head = (count + 1) // 2
            result += [*context[start : start + head], *context[stop - (count - head) : stop]]
        if index < len(gold):
            first, last = gold[index]
            spans.append((len(result), len(result) + last - first))
            result += context[first:last]
    return result, spans


def synthetic_examples(texts: list[str], tokenizer: Any, length: int, count: int, seed: int) -> list[Example]:
    """``count`` prompts of at most ``length`` tokens: prose with one planted fact, and a question about it at the end.

    The fact stands between two sentences, at a place uniform over the prose, which is cut by :func:`truncate` to fit.
    A pure function of its arguments. Raises :class:`ProbeError` when ``length`` leaves no room for prose.
    """
    generator = np.random.default_rng(seed)
    pieces = shuffled_pieces(texts, 2 * CHARACTERS_PER_TOKEN * length, generator)
    prefix = start_token(tokenizer)
    examples = []
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        value = int(generator.integers(1_000_000, 10_000_000))
        fact = f" One of the special magic numbers for {key} is: {value}."
        question = _question(
            tokenizer, f"What is the special magic number for {key} mentioned in the text above?",
            f" The special magic number for {key} is",
        )  # fmt: skip
        prose: list[str] = []
        tokens = 0
        while tokens < 1.25 * length:
            prose.append(next(pieces))
            tokens += len(encode(tokenizer, prose[-1]))
        sentences = re.split(r"(?<=[.!?])(?=\s)", "\n\n".join(prose))
        depth = int(generator.integers(0, len(sentences) + 1))
        left = encode(tokenizer, "".join(sentences[:depth]))
        middle = encode(tokenizer, fact)
        right = encode(tokenizer, "".join(sentences[depth:]))
        null = _question(tokenizer, NULL_QUESTION, "")
        budget = length - len(prefix) - len(question)
        cut = truncate(left + middle + right, [(len(left), len(left) + len(middle))], budget)
        if cut is None:
            raise ProbeError(
                f"length: {length} tokens leave {budget} for context, {len(middle)} of them gold; raise the length"
            )
        examples.append(_with_prefix(prefix, cut, question, null))
    return examples


def packed_examples(
    rows: Sequence[tuple[str, str]], tokenizer: Any, length: int, count: int, seed: int, fill: bool = False
) -> tuple[list[Example], dict[str, int]]:
    """Questions among the contexts of other ``rows`` (context, question), in random order, and counts.

    The gold tokens are those of the question's own context. Samples whose gold context is longer than half of the
    budget are dropped and counted; with ``fill`` also those whose prompt is shorter than ``length``, as when all
    contexts together are. Fewer than ``count`` are returned where there are no more rows.
    """
    generator = np.random.default_rng(seed)
    prefix, examples, counts = start_token(tokenizer), [], {"dropped": 0, "short": 0}
    joint, null = encode(tokenizer, "\n\n"), _question(tokenizer, NULL_QUESTION, "")
    contexts = list(dict.fromkeys(context for context, _ in rows))
    for index in generator.permutation(len(rows)):
        if len(examples) == count:
            break
        context, text = rows[index]
        question = _question(tokenizer, text, "")
        others = (contexts[other] for other in generator.permutation(len(contexts)) if contexts[other] != context)
        distractors: list[list[int]] = []
        while sum(map(len, distractors)) < 1.25 * length and (other := next(others, None)) is not None:
            distractors.append(encode(tokenizer, other) + joint)
        place = int(generator.integers(0, len(distractors) + 1))
        left = [token for ids in distractors[:place] for token in ids]
        gold = encode(tokenizer, context)
        right = joint + [token for ids in distractors[place:] for token in ids]
        budget = length - len(prefix) - len(question)
        cut = truncate(left + gold + right, [(len(left), len(left) + len(gold))], budget)
        if cut is None:
            counts["dropped"] += 1
        elif fill and len(cut[0]) < budget:
            counts["short"] += 1
        else:
            examples.append(_with_prefix(prefix, cut, question, null))
    return examples, counts


def document_examples(
    rows: Iterable[tuple[list[tuple[str, bool]], str]], tokenizer: Any, length: int, count: int
) -> tuple[list[Example], dict[str, int]]:
    """One example a row (documents, question), gold documents marked True; left out and counted as with ``fill``."""
    prefix, examples, counts = start_token(tokenizer), [], {"dropped": 0, "short": 0}
    null = _question(tokenizer, NULL_QUESTION, "")
    for documents, text in rows:
        if len(examples) == count:
            break
        context: list[int] = []
        gold = []
        for document, is_gold in documents:
            ids = encode(tokenizer, document)
            if is_gold:
                gold.append((len(context), len(context) + len(ids)))
            context += ids + encode(tokenizer, "\n\n")
        question = _question(tokenizer, text, "")
        budget = length - len(prefix) - len(question)
        cut = truncate(context, gold, budget)
        if cut is None:
            counts["dropped"] += 1
        elif len(cut[0]) < budget:
            counts["short"] += 1
        else:
            examples.append(_with_prefix(prefix, cut, question, null))
    return examples, counts


def _question(tokenizer: Any, question: str, answer_start: str) -> list[int]:
    return encode(tokenizer, f"\n\nQuestion: {question}\nAnswer:{answer_start}")


def _with_prefix(prefix: list[int], cut: tuple[list[int], list], question: list[int], null: list[int]) -> Example:
    context, gold = cut
    shift = len(prefix)
    return Example(prefix + context, [(start + shift, stop + shift) for start, stop in gold], question, null)
