"""lm-eval's own needle samples, made again draw for draw without importing its modules or touching a network.

lm-eval draws from Python's global generator, which it seeds with 0 at the start of a run; a task alone in a run
therefore gets the samples of ``random.Random(0)``. Their lengths fall short of the nominal ones (prose grows in steps
of 500 words), depths are random, and samples that do not fit are left out; here the number that is left is reported.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import ruler_source
from .errors import EvaluationError
from .niah import PromptTokens, enumeration
from .prompts import NiahSample, sample_name
from .rows import NLTK_DATA, SPLITTER
from .ruler_source import RulerTask
from .wording import SortedKeys, key_words, ruler_wording

#: Seed of the content: lm-eval's default for a run.
RUN_SEED = 0


@cache
def sorted_keys() -> SortedKeys:
    """lm-eval's list of word keys."""
    return SortedKeys(*key_words())


def use_sentence_splitter(rows: Path) -> None:
    """Let NLTK find the sentence splitter in a folder of evaluation rows first."""
    import nltk

    folder = str(rows / NLTK_DATA)
    if folder not in nltk.data.path:
        nltk.data.path.insert(0, folder)


@cache
def sentence_splitter() -> Callable[[str], list[str]]:
    """NLTK's, as lm-eval uses it. Raises :class:`EvaluationError` if its English model is not on this machine."""
    try:
        import nltk

        nltk.data.find(f"{SPLITTER}/")
    except ImportError:
        raise EvaluationError("fill: lm_eval needs the package nltk, of lm-eval's extra 'ruler'") from None
    except LookupError:
        raise EvaluationError(
            "fill: lm_eval splits prose as lm-eval does, with NLTK's English model, which is not on this machine: run "
            "python -m nltk.downloader punkt_tab where there is a network, or set NLTK_DATA to a folder that has it"
        ) from None
    return cache(nltk.sent_tokenize)


class LmEvalSamples:
    """Samples of one task for one tokenizer; ``words``: of the prose, for the tasks that hide needles in it."""

    def __init__(self, task: RulerTask, tokenizer: Any, words: Sequence[str], add_bos: bool = False) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.words = words
        self.room = ruler_source.generation_room()
        self.tokens = PromptTokens(tokenizer, add_bos, self.room)
        self.needle = ruler_source.needle_text()
        self.template, self.answer_prefix = ruler_wording().asking(task.answers)
        self.kind = task.value_kind if task.answers > 1 else task.value_kind.removesuffix("s")
        last = ruler_source.number_of_depths() - 1
        # Evenly spaced percentages, to the nearest whole number (no half occurs).
        self.depths = [round(100 * place / last) for place in range(last + 1)]

    def _drawn(self, rng: random.Random, kind: str) -> str:
        if kind == "numbers":
            return str(rng.randint(10**6, 10**7 - 1))
        if kind == "uuids":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        return rng.choice(sorted_keys())

    def _sentence(self, key: str, value: str) -> str:
        return self.needle.format(type_needle_v=self.task.value_kind, key=key, value=value)

    def _context(self, rng: random.Random, units: int, needles: list[str]) -> str:
        if self.task.haystack == "essay":
            sentences = sentence_splitter()(" ".join(self.words[:units]).strip())
            depths = rng.sample(self.depths, len(needles))
            places = [0, *sorted(int(len(sentences) * (depth / 100)) for depth in depths), len(sentences)]
            parts = []
            for number, (start, end) in enumerate(pairwise(places)):
                # An empty stretch leaves its space, as in lm-eval.
                parts += [" ".join(sentences[start:end]), *needles[number : number + 1]]
            return " ".join(parts)
        if self.task.haystack == "repeat":
            lines = [ruler_source.noise_line()] * units
        else:
            kinds = (self.task.key_kind, self.task.value_kind)
            lines = [self._sentence(*(self._drawn(rng, kind) for kind in kinds)) for _ in range(units)]
        places = sorted(rng.sample(range(units), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=False):
            lines.insert(place, needle)
        return "\n".join(lines)

    def _draw(self, rng: random.Random, units: int) -> tuple[str, list[str], str]:
        """Prompt without the answer prefix, the values that are asked for, and the question's list of keys."""
        keys, values, needles = [], [], []
        for _ in range(self.task.keys):
            keys.append(self._drawn(rng, self.task.key_kind))
            values.append([self._drawn(rng, self.task.value_kind) for _ in range(self.task.values)])
            needles += [self._sentence(keys[-1], value) for value in values[-1]]
        random.Random(ruler_source.shuffle_seed()).shuffle(needles)
        context = self._context(rng, units, needles)
        asked = rng.sample(range(self.task.keys), self.task.queries)
        query = enumeration([keys[index] for index in asked])
        text = self.template.format(type_needle_v=self.kind, context=context, query=query)
        return text, [value for index in asked for value in values[index]], query

    def _count(self, text: str) -> int:
        return len(self.tokenizer(text).input_ids)

    def _units(self, rng: random.Random, length: int, step: int) -> int:
        """Units of haystack that the first sample of a length holds, in whole steps."""
        units = max(step, self.task.keys * self.task.values)
        total = 0
        while total + self.room < length:
            text, values, _ = self._draw(rng, units)
            total = self._count(f"{text}{' '.join(values)}")
            if total + self.room > length:
                units -= step
                break
            if self.task.haystack == "essay" and units > len(self.words):
                units = len(self.words)
                break
            if units > length:
                raise EvaluationError(
                    f"{self.task.name} at length {length}: the haystack has {units} units and only {total} tokens; "
                    "the tokenizer gives less than one token for a unit"
                )
            units += step
        return max(units, self.task.keys * self.task.values)

    def make(self, lengths: Sequence[int], samples: int, seed: int = RUN_SEED) -> list[NiahSample]:
        """``samples`` prompts for each length; fewer where some do not fit, as in lm-eval.

        Raises :class:`EvaluationError` if none fits, or if an answer takes more than lm-eval's room for it.
        """
        rng = random.Random(seed)
        made: list[NiahSample] = []
        for length in lengths:
            step = 500 if self.task.haystack == "essay" else 5 if length < 4096 else 25
            most = self._units(rng, length, step)
            before = len(made)
            for number in range(samples):
                drawn = self._fitting(rng, length, most, step)
                if drawn is not None:
                    made.append(self._sample(length, number, *drawn))
            if len(made) == before:
                raise EvaluationError(
                    f"{self.task.name} at length {length}: needles, question and {self.room} tokens for the answer do "
                    "not fit; use longer lengths"
                )
        return made

    def _fitting(self, rng: random.Random, length: int, units: int, step: int) -> tuple[str, list[str], str] | None:
        while units > 0:
            try:
                drawn = self._draw(rng, units)
            except ValueError:  # fewer units than needles to put between them: lm-eval goes on with less, too
                drawn = None
            if drawn is not None and self._count(drawn[0]) + self.room <= length:
                return drawn
            units -= step
        return None

    def _sample(self, length: int, number: int, text: str, values: list[str], query: str) -> NiahSample:
        whole = f"{text} {self.answer_prefix.format(type_needle_v=self.kind, query=query)}"
        prompt = self.tokens.encode(whole)
        name = f"{self.task.name}, {sample_name(length, None, number)}"
        # In a haystack of needles, too, a value stands in one sentence only.
        beginning = self.needle.split("{")[0]
        places = [whole.rindex(beginning, 0, whole.index(value)) for value in values]
        return NiahSample(
            length=length,
            depth=None,
            sample=number,
            prompt=self.tokens.prefix + prompt,
            answer=self.tokens.answer(name, whole, prompt, values),
            values=tuple(values),
            needle_distances=self.tokens.distances(whole, places),
            fill_error=length - self.room - self._count(text),
        )
