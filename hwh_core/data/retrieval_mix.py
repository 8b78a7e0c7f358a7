"""Training batches in which a share of the sequences carries facts and questions mixed into the prose.

Retrieval comes late in training on prose alone; planted facts that are asked for later let it emerge within the steps
of a small model. Origin: ours, a deviation from the paper that every report names. What is planted is never what the
evaluation asks: keys and values are of training's side of :mod:`hwh_core.retrieval_split`, the words of the keys and
all prose come from the training store, and the sentences (:mod:`.retrieval_wording`) are those of no evaluation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..retrieval_split import is_for_training
from .errors import DataError
from .loader import BatchLoader
from .retrieval_wording import FACTS, KINDS, QUESTIONS
from .store import TokenStore
from .tokenizer import load_backend

if TYPE_CHECKING:
    import tokenizers

    from ..config import RetrievalMixConfig

# Raise when the same seed and step would give another batch.
MIX_VERSION = 2
# The words of keys are those of so many evenly spaced stretches of the store, of so many tokens each.
_STRETCHES, _STRETCH_TOKENS = 256, 2048
# A lower-case word that is no part of a name, a number or a compound.
_WORD = re.compile(r"(?<![\w'’-])[a-z]{4,12}(?![\w'’-])")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s*$|\n")
# A place that lies farther behind a sentence end than this is not moved back to it.
_LONGEST_MOVE = 64
_TRIES = 10_000
_SHARE_UNIT = 10**6


class Draws:
    """Numbers that depend on the given integers alone, on every machine and in every version of numpy."""

    def __init__(self, *key: int) -> None:
        self._key = ":".join(map(str, key))
        self._numbers = iter(())
        self._blocks = count()

    def below(self, bound: int) -> int:
        """A number in [0, bound), uniform up to bound / 2^64."""
        number = next(self._numbers, None)
        if number is None:
            block = hashlib.shake_256(f"{self._key}:{next(self._blocks)}".encode()).digest(8 * 64)
            self._numbers = iter(np.frombuffer(block, dtype="<u8").tolist())
            number = next(self._numbers)
        return number % bound


@dataclass(frozen=True)
class Pair:
    """A fact and what takes it up again. ``repeated``: the fact itself again, instead of a question with its answer."""

    key: str
    value: str
    repeated: bool
    fact: str
    question: str


@dataclass(frozen=True)
class Placement:
    """Where a pair stands in its sequence, in tokens: starts of fact and question, and the prose between them."""

    pair: Pair
    fact_start: int
    question_start: int
    prose_between: int


def key_words(store: TokenStore, tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Different lower-case words of 4 to 12 letters in a fixed sample of a token store, sorted."""
    total = len(store.tokens)
    starts = np.unique(np.linspace(0, max(0, total - _STRETCH_TOKENS), _STRETCHES).astype(np.int64))
    stretches = [store.tokens[start : start + _STRETCH_TOKENS].tolist() for start in starts]
    words: set[str] = set()
    for text in tokenizer.decode_batch(stretches):
        # A stretch may begin and end inside a word.
        words.update(_WORD.findall(text)[1:-1])
    return sorted(words)


def sentence_ends(tokenizer: tokenizers.Tokenizer, vocab_size: int, eos_token_id: int) -> np.ndarray:
    """bool [vocab_size]: tokens after which a sentence or a document ends."""
    texts = tokenizer.decode_batch([[token] for token in range(vocab_size)])
    ends = np.asarray([_SENTENCE_END.search(text) is not None for text in texts])
    ends[eos_token_id] = True
    return ends


def is_mixed(numbers: np.ndarray, share: float) -> np.ndarray:
    """bool [n]: which sequence numbers carry facts; of any run of n of them ``share`` * n, up to one sequence."""
    unit = round(share * _SHARE_UNIT)
    return (numbers + 1) * unit // _SHARE_UNIT - numbers * unit // _SHARE_UNIT > 0


def draw_pairs(mix: RetrievalMixConfig, words: list[str], draws: Draws) -> list[Pair]:
    """Pairs of one sequence: keys and values all different and of training's side of the split."""

    def new(make: Callable[[], str], taken: set[str]) -> str:
        for _ in range(_TRIES):
            text = make()
            if text not in taken and is_for_training(text):
                taken.add(text)
                return text
        raise DataError(
            f"retrieval_mix: {len(words)} words and {mix.value_digits} digits give too few different keys and values "
            f"for {mix.pairs_per_sequence} pairs; lower pairs_per_sequence, add text or allow longer values"
        )

    def key() -> str:
        return f"{words[draws.below(len(words))]}-{words[draws.below(len(words))]}"

    def value() -> str:
        digits = mix.value_digits[draws.below(len(mix.value_digits))]
        return str(10 ** (digits - 1) + draws.below(9 * 10 ** (digits - 1)))

    kind = KINDS[draws.below(len(KINDS))]
    keys: set[str] = set()
    values: set[str] = set()
    pairs = []
    for _ in range(mix.pairs_per_sequence):
        places = {"kind": kind, "key": new(key, keys), "value": new(value, values)}
        fact = FACTS[draws.below(len(FACTS))].format(**places)
        question = QUESTIONS[draws.below(len(QUESTIONS))].format(**places)
        repeated = draws.below(_SHARE_UNIT) < round(mix.repeat_share * _SHARE_UNIT)
        pairs.append(Pair(places["key"], places["value"], repeated, fact, fact if repeated else question))
    return pairs


def draw_slots(prose_tokens: int, draws: Draws) -> tuple[int, int]:
    """Places of a fact and its question among ``prose_tokens`` tokens: distance uniform, then the place of the fact."""
    distance = draws.below(prose_tokens + 1)
    fact = draws.below(prose_tokens - distance + 1)
    return fact, fact + distance


class RetrievalMixLoader:
    """Batches of a :class:`BatchLoader` with facts and questions planted into a share of the sequences.

    ``prose``: the loader of the training store; ``tokenizer``: folder of the store's tokenizer. A sequence depends on
    (seed, sequence number) alone, as the windows of prose do, so all models of one seed see equal batches. A mixed
    sequence begins with the prose of its window, cut so far that facts and questions fit in; each stands at a sentence
    end where one is near. Raises :class:`DataError` when the store has too few words or the pairs do not fit.
    """

    def __init__(self, prose: BatchLoader, mix: RetrievalMixConfig, tokenizer: str | Path) -> None:
        self.prose = prose
        self.store = prose.store
        self.length = prose.length
        self.batch_size = prose.batch_size
        self.seed = prose.seed
        self.mix = mix
        self._tokenizer, _, _ = load_backend(tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.words = key_words(self.store, self._tokenizer)
        if len(self.words) ** 2 < 16 * mix.pairs_per_sequence:
            raise DataError(
                f"token store {self.store.folder} holds {len(self.words)} different words for the keys of "
                f"retrieval_mix, too few for {mix.pairs_per_sequence} pairs a sequence; add text or set it to null"
            )
        self._ends = sentence_ends(self._tokenizer, self.store.vocab_size, self.store.eos_token_id)
        # Refused before anything is trained: with half of the length free here, no later sequence runs out of room.
        for number in range(16):
            self._room(self._encoded(number)[2], self.length // 2)

    def batch(self, step: int) -> np.ndarray:
        """int64 [batch_size, length + 1] for ``step``: inputs are ``[:, :-1]``, targets ``[:, 1:]``."""
        rows = self.prose.batch(step)
        numbers = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        for row in np.flatnonzero(is_mixed(numbers, self.mix.sequence_share)):
            rows[row], _ = self.plant(int(numbers[row]), rows[row])
        return rows

    def plant(self, number: int, prose: np.ndarray) -> tuple[np.ndarray, list[Placement]]:
        """Sequence ``number`` over ``prose`` (int64 [length + 1]): tokens and where the pairs stand."""
        draws, pairs, encoded = self._encoded(number)
        kept = len(prose) - self._room(encoded, self.length)
        prose = prose[:kept]
        ends = np.concatenate([[0], np.flatnonzero(self._ends[prose]) + 1])
        # Sorted by place; at the same place facts come first, so that no question stands before its fact.
        inserted = []
        slots = []
        for index, both in enumerate(encoded):
            places = [_at_sentence_end(place, ends) for place in draw_slots(kept, draws)]
            slots.append(places)
            inserted += [(place, part, index, both[part]) for part, place in enumerate(places)]
        pieces, starts, done, position = [], {}, 0, 0
        for place, part, index, tokens in sorted(inserted, key=lambda entry: entry[:3]):
            pieces += [prose[done:place], tokens]
            position += place - done
            starts[index, part] = position
            position, done = position + len(tokens), place
        pieces.append(prose[done:])
        placements = [
            Placement(pair, starts[index, 0], starts[index, 1], slots[index][1] - slots[index][0])
            for index, pair in enumerate(pairs)
        ]
        return np.concatenate(pieces).astype(np.int64), placements

    def _room(self, encoded: list[tuple[list[int], list[int]]], most: int) -> int:
        """Tokens of all facts and questions. Raises :class:`DataError` when they are more than ``most``."""
        tokens = sum(len(part) for both in encoded for part in both)
        if tokens > most:
            raise DataError(
                f"retrieval_mix.pairs_per_sequence = {self.mix.pairs_per_sequence}: facts and questions take {tokens} "
                f"tokens of a sequence, more than {most} of its {self.length}; lower it"
            )
        return tokens

    def _encoded(self, number: int) -> tuple[Draws, list[Pair], list[tuple[list[int], list[int]]]]:
        """The draws of a sequence, its pairs, and the tokens of each pair's fact and question."""
        draws = Draws(MIX_VERSION, self.seed, number)
        pairs = draw_pairs(self.mix, self.words, draws)
        texts = [f" {text}" for pair in pairs for text in (pair.fact, pair.question)]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        return draws, pairs, list(zip(ids[::2], ids[1::2], strict=True))

    @property
    def fingerprint(self) -> str:
        """Equal for two loaders exactly when they give the same batches."""
        parts = [self.prose.fingerprint, MIX_VERSION, self.mix.model_dump(mode="json"), KINDS, FACTS, QUESTIONS]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _at_sentence_end(place: int, ends: np.ndarray) -> int:
    """The last of ``ends`` (sorted, the first 0) at or before a place, or the place where that is too far away."""
    end = int(ends[np.searchsorted(ends, place, side="right") - 1])
    return end if place - end <= _LONGEST_MOVE else place
