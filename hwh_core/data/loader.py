"""Batches of a token store: what stands in a batch depends on seed and step alone."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from .errors import DataError
from .permutation import permute
from .store import TokenStore

# Raise when the same seed and step would give another batch: a training must not go on over a change of order.
ORDER_VERSION = 1


class BatchLoader:
    """Training batches of a token store, without state: any step can be asked for at any time.

    The store is cut into whole windows of ``length`` tokens (each window also sees the first token of the next one as
    its last target). Every epoch visits each window once, in an order drawn from (seed, epoch); nothing is kept in
    memory. The order does not depend on ``batch_size``: sequence number ``step * batch_size + row`` decides.
    """

    def __init__(self, store: TokenStore, length: int, batch_size: int, seed: int) -> None:
        if length <= 0 or batch_size <= 0:
            raise DataError(f"batches need a positive length and batch size, found {length} and {batch_size}")
        self.store = store
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.num_windows = (len(store.tokens) - 1) // length
        if self.num_windows < 1:
            raise DataError(
                f"token store {store.folder} has {len(store.tokens)} tokens, too few for one window of {length} + 1; "
                f"lower the length or add text"
            )

    @property
    def steps_per_epoch(self) -> float:
        """Steps after which every window was seen once."""
        return self.num_windows / self.batch_size

    def windows(self, step: int) -> np.ndarray:
        """int64 [batch_size]: which windows the batch of ``step`` (0, 1, ...) holds."""
        if step < 0:
            raise ValueError(f"step must not be negative, found {step}")
        numbers = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        epochs, positions = np.divmod(numbers, self.num_windows)
        chosen = np.empty_like(positions)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            chosen[rows] = permute(positions[rows], self.num_windows, (self.seed, int(epoch)))
        return chosen

    def batch(self, step: int) -> np.ndarray:
        """int64 [batch_size, length + 1] for ``step``: inputs are ``[:, :-1]``, targets ``[:, 1:]``."""
        starts = self.windows(step) * self.length
        tokens = self.store.tokens
        return np.stack([tokens[start : start + self.length + 1] for start in starts]).astype(np.int64)

    @property
    def fingerprint(self) -> str:
        """Equal for two loaders exactly when they give the same batches: recorded in checkpoints, checked on resume."""
        parts = [ORDER_VERSION, self.store.sha256, self.store.tokenizer_fingerprint]
        parts += [self.length, self.batch_size, self.seed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def sequences_for_probe(store: TokenStore, length: int, count: int, seed: int, source: str | None = None) -> np.ndarray:
    """int64 [count, length]: distinct, non-overlapping windows of whole text for probing, the same for a given seed.

    Windows that lie inside one document are preferred (of ``source`` if it is given), drawn at random; if there are
    too few, windows that cross documents of the same source fill up. Raises :class:`DataError` when even those do not
    reach ``count``.
    """
    starts = probe_starts(store, length, count, seed, source)
    return np.stack([store.tokens[start : start + length] for start in starts]).astype(np.int64)


def probe_starts(store: TokenStore, length: int, count: int, seed: int, source: str | None = None) -> np.ndarray:
    """int64 [count]: first tokens of the windows of :func:`sequences_for_probe`."""
    if length <= 0 or count <= 0:
        raise DataError(f"a probe needs a positive length and count, found {length} and {count}")
    spans = store.documents(source)
    inside = _window_starts(spans, length)
    if len(inside) >= count:
        return inside[permute(np.arange(count), len(inside), (seed, length))]
    # Runs of neighbouring documents: adjacent in the store once the end-of-text token between them is counted.
    breaks = np.flatnonzero(spans[1:, 0] != spans[:-1, 1] + 1)
    first = spans[np.concatenate([[0], breaks + 1]), 0]
    last = spans[np.concatenate([breaks, [len(spans) - 1]]), 1] + 1
    crossing = _window_starts(np.stack([first, last], axis=1), length)
    if len(crossing) < count:
        what = f"source {source!r} of token store {store.folder}" if source else f"token store {store.folder}"
        raise DataError(
            f"{what} holds {len(crossing)} windows of {length} tokens, but {count} are to be probed; lower the number "
            f"of samples or the length, or hold out more text"
        )
    return crossing[permute(np.arange(count), len(crossing), (seed, length))]


def _window_starts(spans: np.ndarray, length: int) -> np.ndarray:
    """int64: starts of the non-overlapping windows of ``length`` inside spans [n, 2], in order."""
    numbers = (spans[:, 1] - spans[:, 0]) // length
    offsets = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    return np.repeat(spans[:, 0], numbers) + offsets * length
