"""How far the QRscore maps of two models agree at the same relative depth (claim W9); intervals over samples."""

from __future__ import annotations

import numpy as np

from ..statistics import percentile_interval, resample_weights, spearman
from .intervals import Interval

RESAMPLES = 1000
DEPTHS = 24


def _means(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mean over samples of scores [n, L, H], then that of every resample: [1 + RESAMPLES, L, H]."""
    weights = resample_weights(len(scores), RESAMPLES, rng)
    return np.concatenate([scores.mean(axis=0, keepdims=True), np.tensordot(weights, scores, axes=1)])


def _at_depths(values: np.ndarray, count: int) -> np.ndarray:
    """Values [B, L, ...] interpolated to ``count`` relative depths from the first layer to the last."""
    place = np.linspace(0, values.shape[1] - 1, count)
    low = np.minimum(place.astype(int), max(values.shape[1] - 2, 0))
    share = (place - low).reshape(-1, *(1 for _ in values.shape[2:]))
    return (1 - share) * values[:, low] + share * values[:, np.minimum(low + 1, values.shape[1] - 1)]


def _interval(first: np.ndarray, second: np.ndarray) -> Interval:
    values = spearman(first, second)
    return Interval(float(values[0]), *percentile_interval(values[1:]), 0)


def profile_agreement(first: np.ndarray, second: np.ndarray) -> Interval:
    """Spearman correlation of the layer profiles of two models; scores [n, L, H], sizes may differ."""
    rng = np.random.default_rng(0)
    return _interval(
        *(_at_depths(_means(scores.mean(axis=2)[..., None], rng), DEPTHS)[..., 0] for scores in (first, second))
    )


def head_agreement(first: np.ndarray, second: np.ndarray) -> tuple[Interval, float]:
    """Spearman correlation over heads of two models, and its value by chance; scores [n, L, H], sizes may differ.

    Heads have no names across models: those of a layer are matched by their rank in it, at as many relative depths and
    ranks as the smaller model has. Ranks alone correlate, so the value by chance is the mean after the layers of one
    model were shuffled.
    """
    rng = np.random.default_rng(0)
    depths, ranks = (min(first.shape[axis], second.shape[axis]) for axis in (1, 2))
    rows = []
    for scores in (first, second):
        by_rank = np.swapaxes(np.sort(_means(scores, rng), axis=2), 1, 2)
        rows.append(_at_depths(np.swapaxes(_at_depths(by_rank, ranks), 1, 2), depths))
    flat = [values.reshape(len(values), -1) for values in rows]
    shuffled = np.stack([rng.permutation(rows[1][0], axis=0).reshape(-1) for _ in range(RESAMPLES)])
    return _interval(*flat), float(spearman(flat[0][:1], shuffled).mean())
