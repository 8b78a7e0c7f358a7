"""Needle-in-a-haystack prompts in RULER's NIAH-Single-2 form with an exact token budget and a stored depth.

One needle with a word key and a 7-digit number lies in running prose; the question repeats the key, and the answer
prefix follows it, so that a base model has only to complete the number. In the NIAH-MultiKey-1 form three more needles
with other keys and numbers lie anywhere, so that the number cannot be found without its key. Differences from
lm-eval's own generator, all on purpose: the haystack fills the length to the last word that fits (lm-eval grows it in
steps of 500 words), the depth is given and stored, every prompt begins at a place of its own in the prose, and a prompt
depends on nothing but (seed, length, depth, sample), so all models with one tokenizer answer the same prompts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from ..retrieval_split import is_for_training
from .errors import EvaluationError
from .wording import Wording, key_words, ruler_wording

#: Where a sentence ends: mark, optional closing quote, space, then a capital, digit or opening mark.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
#: Needles with other keys beside the one that is asked for, by variant.
DISTRACTORS = {"single_2": 0, "multikey_1": 3}


@dataclass(frozen=True)
class Haystack:
    """Words of running prose, and what the results call it."""

    words: list[str]
    label: str


@dataclass(frozen=True)
class Needle:
    """One planted sentence with its key and number; ``place``: where in the prose, from 0 to 1, if it is not asked."""

    key: str
    value: str
    text: str
    place: float | None = None


@dataclass(frozen=True)
class NiahSample:
    """One prompt. Tokens: ``prompt`` (with its beginning token, if any) and ``answer`` right after it.

    ``needle_distance``: tokens from the first of the needle to the end of the prompt. ``fill_error``: tokens by
    which prompt and room for the answer fall short of ``length``.
    """

    length: int
    depth: int
    sample: int
    prompt: list[int]
    answer: list[int]
    value: str
    needle_distance: int
    fill_error: int

    @property
    def name(self) -> str:
        """How errors name it."""
        return sample_name(self.length, self.depth, self.sample)


def sample_name(length: int, depth: int, sample: int) -> str:
    """How errors name a sample."""
    return f"NIAH sample {sample} at length {length}, depth {depth}%"


def prose_haystack(texts: Sequence[str], label: str) -> Haystack:
    """Texts one after the other, split at white space."""
    words = " ".join(texts).split()
    if not words:
        raise EvaluationError(f"niah.haystack: {label} holds no words")
    return Haystack(words, label)


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


class NiahGenerator:
    """Makes the prompts of a grid for one tokenizer.

    ``tokenizer``: a fast Hugging Face tokenizer (it must report where tokens stand in the text).
    ``max_new_tokens``: room that is left for the answer inside the length. ``add_bos``: whether every prompt begins
    with the beginning-of-sequence token. ``variant``: one of :data:`DISTRACTORS`; ``wording``: None is RULER's.
    ``unseen_only``: keys and numbers are of the evaluation's side of :mod:`hwh_core.retrieval_split`, as they must be
    for models that were trained with a retrieval mix.
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
        if not getattr(tokenizer, "is_fast", False):
            raise EvaluationError("NIAH needs a fast tokenizer (tokenizer.json), which reports positions in the text")
        if add_bos and tokenizer.bos_token_id is None:
            raise EvaluationError("add_bos is on, but the tokenizer has no beginning-of-sequence token")
        if variant not in DISTRACTORS:
            raise EvaluationError(f"niah.variant: {variant!r} is unknown; known are {', '.join(DISTRACTORS)}")
        self.tokenizer = tokenizer
        self.haystack = haystack
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.prefix = [tokenizer.bos_token_id] if add_bos else []
        self.wording = wording or ruler_wording()
        self.type = "number"
        self.distractors = DISTRACTORS[variant]
        self.unseen_only = unseen_only

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _key(self, *which: Any) -> str:
        adjectives, nouns = key_words()
        adjective = adjectives[draw(self.seed, *which, "adjective", below=len(adjectives))]
        return f"{adjective}-{nouns[draw(self.seed, *which, 'noun', below=len(nouns))]}"

    def _value(self, *which: Any) -> str:
        return str(10**6 + draw(self.seed, *which, "value", below=9 * 10**6))

    def _new(self, make: Callable[..., str], which: tuple[Any, ...], taken: set[str]) -> str:
        """The first text drawn for ``which`` that is not taken and may be asked; it is taken then."""
        # The first turn has no number, so that needles without split and distractors stay what they were.
        drawn = (make(*which, *(("turn", turn) if turn else ())) for turn in count())
        text = next(t for t in drawn if t not in taken and not (self.unseen_only and is_for_training(t)))
        taken.add(text)
        return text

    def _needles(self, where: tuple[int, int, int]) -> list[Needle]:
        """The needle that is asked for and then its distractors, with keys and numbers that differ."""
        taken: set[str] = set()
        needles = []
        for number in range(1 + self.distractors):
            which = (*where, "distractor", number) if number else where
            key, value = (self._new(make, which, taken) for make in (self._key, self._value))
            # RULER writes the type in the plural inside the needle and in the singular in the question.
            text = self.wording.needle.format(type_needle_v=f"{self.type}s", key=key, value=value)
            place = draw(self.seed, *which, "place", below=10**6) / 10**6 if number else None
            needles.append(Needle(key, value, text, place))
        return needles

    def _prompt(self, words: list[str], needles: list[Needle], depth: int) -> tuple[str, int]:
        """The prompt over the given words, and the character at which the needle that is asked for begins."""
        asked, *others = needles
        sentences = split_sentences(" ".join(words))
        position = int(len(sentences) * depth / 100)
        # Before sentence i stand the distractors of i, in the order of their places.
        planted: dict[int, list[str]] = {}
        for other in sorted(others, key=lambda needle: needle.place):
            planted.setdefault(int(len(sentences) * other.place), []).append(other.text)
        parts = [[*planted.get(index, []), sentence] for index, sentence in enumerate(sentences)]
        before, after = (" ".join(chain(*side)) for side in (parts[:position], parts[position:]))
        if not sentences:
            after = " ".join(other.text for other in others)
        context = " ".join(part for part in (before, asked.text, after) if part)
        head, tail = self.wording.template.split("{context}")
        head = head.format(type_needle_v=self.type)
        question = tail.format(type_needle_v=self.type, query=asked.key)
        prefix = self.wording.answer_prefix.format(type_needle_v=self.type, query=asked.key)
        start = len(head) + (len(before) + 1 if before else 0)
        return f"{head}{context}{question} {prefix}", start

    def _token_index(self, text: str, character: int) -> int:
        """Index of the first token that reaches beyond a character of the text."""
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return next(index for index, (_, end) in enumerate(offsets) if end > character)

    def make(self, length: int, depth: int, sample: int) -> NiahSample:
        """One prompt. Raises :class:`EvaluationError` naming the sample if it cannot be made."""
        where = (length, depth, sample)
        name = sample_name(*where)
        needles = self._needles(where)
        value = needles[0].value
        total = len(self.haystack.words)
        begin = draw(self.seed, *where, "haystack", below=total)
        prose = self.haystack.words[begin:] + self.haystack.words[:begin]
        budget = length - self.max_new_tokens - len(self.prefix)

        def tokens_with(words: int) -> int:
            return len(self._encode(self._prompt(prose[:words], needles, depth)[0]))

        least = tokens_with(0)
        if least > budget:
            raise EvaluationError(
                f"{name}: needle and question take {least} tokens and the answer {self.max_new_tokens}, which is more "
                f"than the length; use lengths of at least {least + self.max_new_tokens + len(self.prefix)}"
            )
        upper = min(total, budget)  # no word takes less than one token
        # The rate of tokens a word over about the right stretch of prose gives the guess.
        tokens_per_word = max(1.0, (tokens_with(upper // 2 + 1) - least) / (upper // 2 + 1))
        words = largest_fitting(tokens_with, budget, upper, int((budget - least) / tokens_per_word))
        if words == total:
            raise EvaluationError(
                f"{name}: the haystack ({self.haystack.label}) has only {total} words, too few to fill the length; "
                "use shorter lengths or more held-out prose"
            )
        text, start = self._prompt(prose[:words], needles, depth)
        prompt = self._encode(text)
        answer = self._answer(name, text, prompt, value)
        return NiahSample(
            length=length,
            depth=depth,
            sample=sample,
            prompt=self.prefix + prompt,
            answer=answer,
            value=value,
            needle_distance=len(prompt) - self._token_index(text, start),
            fill_error=budget - len(prompt),
        )

    def _answer(self, name: str, text: str, prompt: list[int], value: str) -> list[int]:
        whole = self._encode(f"{text} {value}")
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            raise EvaluationError(
                f"{name}: the tokenizer joins the answer to the prompt; it cannot be scored by tokens"
            )
        answer = whole[len(prompt) :]
        if len(answer) > self.max_new_tokens:
            raise EvaluationError(
                f"{name}: the answer {value} takes {len(answer)} tokens, niah.max_new_tokens is {self.max_new_tokens}"
            )
        return answer

    def grid(self, lengths: Sequence[int], depths: Sequence[int], samples: int) -> Iterator[NiahSample]:
        """All prompts of a grid: ``samples`` for each length and depth."""
        for length in lengths:
            for depth in depths:
                for sample in range(samples):
                    yield self.make(length, depth, sample)
