"""The closed-form null of RPD: what a head without any learned positional structure shows.

For isotropic, unlearned q and k the replacement of rotation by identity changes the logits of pair r by an amount whose
variance is proportional to ``1 - cos(w_r (i - j))``. RPD is proportional to that variance for small changes, so an
untrained model shows RPD_r proportional to

    g(r) = mean over visible (query i, key j) of 1 - cos(w_r (i - j)),

which peaks where sinc is minimal: at the predicted band itself. A band counts only relative to g.
"""

from __future__ import annotations

import numpy as np

from .errors import BandError


def distance_counts(length: int, num_queries: int, window: int | None = None) -> np.ndarray:
    """How often each distance i - j occurs among visible pairs: int64 [length], index = distance.

    The queries are the last ``num_queries`` of ``length`` positions; a query sees itself, all earlier keys and, with a
    sliding ``window``, only the last ``window`` of them. Raises :class:`BandError` for impossible sizes.
    """
    if length < 1 or not 1 <= num_queries <= length:
        raise BandError(f"null: num_queries must lie in 1..length, got num_queries={num_queries}, length={length}")
    if window is not None and window < 1:
        raise BandError(f"null: window must be at least 1, got {window}")
    distance = np.arange(length)
    counts = np.minimum(num_queries, length - distance)
    if window is not None:
        counts = np.where(distance < window, counts, 0)
    return counts


def null_from_counts(inv_freq: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """g(r) for weights ``counts`` [D] of the distances 0..D-1; ``inv_freq`` [F] in radians a position. float64 [F]."""
    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    counts = np.asarray(counts, dtype=np.float64)
    total = counts.sum()
    if not total > 0:
        raise BandError("null: no visible (query, key) pair")
    distance = np.arange(len(counts), dtype=np.float64)
    # 1 - cos x = 2 sin^2(x/2): the direct form loses all digits at the lowest frequencies.
    return np.array([2.0 * (np.sin(0.5 * w * distance) ** 2) @ counts / total for w in inv_freq])


def closed_form_null(inv_freq: np.ndarray, length: int, num_queries: int, window: int | None = None) -> np.ndarray:
    """g(r) over all visible pairs of the last ``num_queries`` queries at ``length`` positions: float64 [F].

    ``inv_freq`` [F] in radians a position; groups of frequency 0 (no rotation) get 0. For head_dim 64 and the last 128
    queries its log parabola peaks at 21.18 (theta 1e4, 2048 positions), 14.09 (1e6, 2048) and 23.66 (1e4, 4096).
    """
    return null_from_counts(inv_freq, distance_counts(length, num_queries, window))


def null_for_positions(
    inv_freq: np.ndarray, query_positions: np.ndarray, key_positions: np.ndarray, window: int | None = None
) -> np.ndarray:
    """g(r) for explicit integer positions of queries [Q] and keys [T]; a key is visible if 0 <= i - j (< window)."""
    distance = np.asarray(query_positions, dtype=np.int64)[:, None] - np.asarray(key_positions, dtype=np.int64)[None, :]
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    return null_from_counts(inv_freq, np.bincount(distance[visible], minlength=1))
