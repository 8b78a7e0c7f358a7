"""Needle-in-a-haystack prompts of RULER's eight kinds with an exact token budget and a stored depth.

In the simplest kind (NIAH-Single-2) one needle with a word key and a 7-digit number lies in running prose; the
question repeats the key, and the answer prefix follows it, so that a base model has only to complete the number. The
others have other haystacks, keys and values, more needles with other keys, or several values to give. Differences from
lm-eval's own generator, all on purpose: the haystack fills the length to the last unit that fits (lm-eval grows it in
steps of 500 words), the depth is given and stored, every prompt begins at a place of its own in the prose, and a prompt
depends on nothing but (seed, length, depth, sample), so all models with one tokenizer answer the same prompts.
lm-eval's own prompts are made by :mod:`hwh_core.evaluation.niah_lm_eval`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ..retrieval_split import is_for_training
from .errors import EvaluationError
from .haystacks import Hay, Haystack, NeedleHay, NoiseHay, ProseHay, draw
from .prompts import NiahSample, sample_name
from .ruler_source import noise_line, ruler_tasks
from .wording import Wording, key_words, ruler_wording

Where = tuple[int, int, int]


@dataclass(frozen=True)
class Needle:
    """One planted sentence with its key and value; ``place``: where in the haystack, from 0 to 1, if not at the depth.

    ``asked``: whether the question asks for its key.
    """

    key: str
    value: str
    text: str
    asked: bool
    place: float | None = None


def enumeration(texts: Sequence[str]) -> str:
    """``a``, ``a, and b``, ``a, b, and c``: how RULER lists keys."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}, and {texts[-1]}"


def largest_fitting(count: Callable[[int], int], budget: int, upper: int, guess: int) -> int:
    """Largest n in [0, upper] with count(n) <= budget, for a count that grows with n and has count(0) <= budget.

    Goes from ``guess`` in doubling steps until the answer is enclosed, then halves the interval: a good guess needs
    few counts, and each of them tokenizes a whole prompt. Ends after at most 2 log2(upper) + 2 counts.
    """
    low, high = 0, upper + 1
    probe, step = guess, 1
    while high - low > 1:
        if not low < probe < high:
            probe = (low + high) // 2
        if count(probe) <= budget:
            low, probe = probe, probe + step
        else:
            high, probe = probe, probe - step
        step *= 2
    return low


def place_needles(hay: Hay, units: int, needles: Sequence[Needle], depth: int) -> tuple[str, list[int]]:
    """The context over so many units of haystack, and the character at which each needle begins.

    The first needle stands at ``depth`` percent of the pieces, each other before the piece that its place names.
    """
    pieces = hay.pieces(units)
    position = int(len(pieces) * depth / 100)
    # Of needles before one piece the first needle comes first.
    slots = [(position, -1.0, 0)]
    slots += [(int(len(pieces) * needle.place), needle.place, n) for n, needle in enumerate(needles[1:], start=1)]
    before: dict[int, list[int]] = {}
    for piece, _, number in sorted(slots):
        before.setdefault(piece, []).append(number)
    parts: list[str] = []
    starts = [0] * len(needles)
    character = 0
    for piece in range(len(pieces) + 1):
        for number in before.get(piece, []):
            starts[number] = character
            parts.append(needles[number].text)
            character += len(needles[number].text) + len(hay.joiner)
        if piece < len(pieces):
            parts.append(pieces[piece])
            character += len(pieces[piece]) + len(hay.joiner)
    return hay.joiner.join(parts), starts


class PromptTokens:
    """Tokens of prompts, and where in them characters stand, for one fast tokenizer."""

    def __init__(self, tokenizer: Any, add_bos: bool, max_new_tokens: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise EvaluationError("NIAH needs a fast tokenizer (tokenizer.json), which reports positions in the text")
        if add_bos and tokenizer.bos_token_id is None:
            raise EvaluationError("add_bos is on, but the tokenizer has no beginning-of-sequence token")
        self.tokenizer = tokenizer
        self.prefix = [tokenizer.bos_token_id] if add_bos else []
        self.max_new_tokens = max_new_tokens

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def distances(self, text: str, characters: Sequence[int]) -> tuple[int, ...]:
        """Tokens from the first that reaches beyond each character to the end of the text."""
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ends = [end for _, end in offsets]
        return tuple(len(ends) - next(i for i, end in enumerate(ends) if end > place) for place in characters)

    def answer(self, name: str, text: str, prompt: list[int], values: Sequence[str]) -> list[int]:
        """Tokens of the answer behind the prompt. Raises :class:`EvaluationError` naming a sample that has none."""
        answer = enumeration(values)
        whole = self.encode(f"{text} {answer}")
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            raise EvaluationError(
                f"{name}: the tokenizer joins the answer to the prompt; it cannot be scored by tokens"
            )
        if len(whole) - len(prompt) > self.max_new_tokens:
            raise EvaluationError(
                f"{name}: the answer {answer} takes {len(whole) - len(prompt)} tokens, niah.max_new_tokens is "
                f"{self.max_new_tokens}"
            )
        return whole[len(prompt) :]


class NiahGenerator:
    """Makes the prompts of a grid for one tokenizer.

    ``tokenizer``: a fast Hugging Face tokenizer (it must report where tokens stand in the text).
    ``max_new_tokens``: room that is left for the answer inside the length. ``add_bos``: whether every prompt begins
    with the beginning-of-sequence token. ``variant``: one of RULER's (``single_1`` to ``multivalue``); ``wording``:
    None is RULER's. ``unseen_only``: keys and values are of the evaluation's side of :mod:`hwh_core.retrieval_split`,
    as they must be for models that were trained with a retrieval mix.
    """

    def __init__(
        self,
        tokenizer: Any,
        haystack: Haystack,
        *,
        max_new_tokens: int,
        seed: int,
        add_bos: bool = False,
        variant: str = "single_2",
        wording: Wording | None = None,
        unseen_only: bool = False,
    ) -> None:
        if variant not in ruler_tasks():
            raise EvaluationError(f"niah.variant: {variant!r} is unknown; known are {', '.join(ruler_tasks())}")
        self.tokens = PromptTokens(tokenizer, add_bos, max_new_tokens)
        self.task = ruler_tasks()[variant]
        self.haystack = haystack
        self.seed = seed
        self.wording = wording or ruler_wording()
        self.template, self.answer_prefix = self.wording.asking(self.task.answers)
        # RULER writes the kind of value in the plural inside the needle and in the singular in a question for one.
        self.kind = self.task.value_kind if self.task.answers > 1 else self.task.value_kind.removesuffix("s")
        self.unseen_only = unseen_only

    def _drawn(self, kind: str, *which: Any) -> str:
        if kind == "uuids":
            return str(uuid.UUID(int=draw(self.seed, *which, below=2**128), version=4))
        if kind == "numbers":
            return str(10**6 + draw(self.seed, *which, "value", below=9 * 10**6))
        adjectives, nouns = key_words()
        adjective = adjectives[draw(self.seed, *which, "adjective", below=len(adjectives))]
        return f"{adjective}-{nouns[draw(self.seed, *which, 'noun', below=len(nouns))]}"

    def _new(self, kind: str, which: tuple[Any, ...], taken: set[str]) -> str:
        """The first text drawn for ``which`` that is not taken and may be asked; it is taken then."""
        # The first turn has no number, so that needles without split and distractors stay what they were.
        drawn = (self._drawn(kind, *which, *(("turn", turn) if turn else ())) for turn in count())
        text = next(t for t in drawn if t not in taken and not (self.unseen_only and is_for_training(t)))
        taken.add(text)
        return text

    def _needle(self, which: tuple[Any, ...], taken: set[str], key: str | None = None) -> tuple[str, str, str]:
        key = key or self._new(self.task.key_kind, (*which, "key") if self.task.key_kind == "uuids" else which, taken)
        kind = self.task.value_kind
        value = self._new(kind, (*which, "value") if kind == "uuids" else which, taken)
        return key, value, self.wording.needle.format(type_needle_v=self.task.value_kind, key=key, value=value)

    def _needles(self, where: Where, taken: set[str]) -> list[Needle]:
        """The needles that are asked for and then the others, with keys and values that differ.

        The first stands at the depth of the prompt, the rest anywhere.
        """
        needles = []
        for number in range(self.task.keys * self.task.values):
            which = (*where, "distractor", number) if number else where
            same_key = needles[-1].key if number % self.task.values else None
            key, value, text = self._needle(which, taken, same_key)
            place = draw(self.seed, *which, "place", below=10**6) / 10**6 if number else None
            needles.append(Needle(key, value, text, number < self.task.answers, place))
        return needles

    def _hay(self, where: Where, taken: set[str]) -> Hay:
        if self.task.haystack == "repeat":
            return NoiseHay(noise_line())
        if self.task.haystack == "needle":
            return NeedleHay(lambda number: self._needle((*where, "hay", number), taken)[2])
        begin = draw(self.seed, *where, "haystack", below=len(self.haystack.words))
        return ProseHay(self.haystack, begin)

    def _prompt(self, hay: Hay, units: int, needles: list[Needle], depth: int) -> tuple[str, list[int]]:
        """The prompt over so many units of haystack, and the character at which each asked needle begins."""
        context, starts = place_needles(hay, units, needles, depth)
        head, tail = self.template.split("{context}")
        head = head.format(type_needle_v=self.kind)
        query = enumeration(list(dict.fromkeys(needle.key for needle in needles if needle.asked)))
        question = tail.format(type_needle_v=self.kind, query=query)
        prefix = self.answer_prefix.format(type_needle_v=self.kind, query=query)
        asked = [len(head) + start for start, needle in zip(starts, needles, strict=True) if needle.asked]
        return f"{head}{context}{question} {prefix}", asked

    def make(self, length: int, depth: int, sample: int) -> NiahSample:
        """One prompt. Raises :class:`EvaluationError` naming the sample if it cannot be made."""
        where = (length, depth, sample)
        name = sample_name(*where)
        taken: set[str] = set()
        needles = self._needles(where, taken)
        hay = self._hay(where, taken)
        reserved = self.tokens.max_new_tokens + len(self.tokens.prefix)
        budget = length - reserved

        def tokens_with(units: int) -> int:
            return len(self.tokens.encode(self._prompt(hay, units, needles, depth)[0]))

        least = tokens_with(0)
        if least > budget:
            raise EvaluationError(
                f"{name}: needle and question take {least} tokens and the answer {self.tokens.max_new_tokens}, which "
                f"is more than the length; use lengths of at least {least + reserved}"
            )
        upper = budget if hay.limit is None else min(hay.limit, budget)  # no unit takes less than one token
        # The rate of tokens a unit over about the right stretch gives the guess.
        trial = upper // 2 + 1 if hay.limit else 16
        rate = max(1.0, (tokens_with(trial) - least) / trial)
        units = largest_fitting(tokens_with, budget, upper, int((budget - least) / rate))
        if units == hay.limit:
            raise EvaluationError(
                f"{name}: the haystack ({self.haystack.label}) has only {units} words, too few to fill the length; "
                "use shorter lengths or more held-out prose"
            )
        text, starts = self._prompt(hay, units, needles, depth)
        prompt = self.tokens.encode(text)
        values = tuple(needle.value for needle in needles if needle.asked)
        return NiahSample(
            length=length,
            depth=depth,
            sample=sample,
            prompt=self.tokens.prefix + prompt,
            answer=self.tokens.answer(name, text, prompt, values),
            values=values,
            needle_distances=self.tokens.distances(text, starts),
            fill_error=budget - len(prompt),
        )

    def grid(self, lengths: Sequence[int], depths: Sequence[int], samples: int) -> Iterator[NiahSample]:
        """All prompts of a grid: ``samples`` for each length and depth."""
        for length in lengths:
            for depth in depths:
                for sample in range(samples):
                    yield self.make(length, depth, sample)
