"""Vectorised operations on curves over frequency groups: maxima, prominence, sub-group position, crossings.

All functions take arrays whose last axis is the frequency group; leading axes (bootstrap resample, layer) are free.
"""

from __future__ import annotations

import numpy as np

# log(0) has no value: smaller values than this fraction of a curve's maximum count as this fraction (13.8 nat below).
RELATIVE_FLOOR = 1e-6


def log_with_floor(curve: np.ndarray) -> np.ndarray:
    """Natural log of a non-negative curve [..., F], floored at ``RELATIVE_FLOOR`` times its maximum; all-zero: 0."""
    top = curve.max(axis=-1, keepdims=True)
    floor = np.where(top > 0, top * RELATIVE_FLOOR, 1.0)
    return np.log(np.maximum(curve, floor))


def is_local_maximum(curve: np.ndarray) -> np.ndarray:
    """True where a value exceeds its left neighbour and is not below its right one; never at either end. [..., F]."""
    result = np.zeros(curve.shape, dtype=bool)
    middle = curve[..., 1:-1]
    result[..., 1:-1] = (middle > curve[..., :-2]) & (middle >= curve[..., 2:])
    return result


def _base(values: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Smallest of ``values`` [..., K] before the first that exceeds ``top`` [...]; +inf if there is none before it."""
    blocked = np.logical_or.accumulate(values > top[..., None], axis=-1)
    return np.where(blocked, np.inf, values).min(axis=-1)


def prominence(curve: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Topographic prominence at the inner ``groups`` of curves [..., F] -> [..., len(groups)].

    Height over the higher of the two bases; a base is the lowest value between the group and the next higher value on
    that side, or the end of the curve. Only meaningful at local maxima (as scipy.signal.peak_prominences).
    """
    result = np.empty((*curve.shape[:-1], len(groups)))
    for column, r in enumerate(groups):
        top = curve[..., r]
        left = _base(curve[..., :r][..., ::-1], top)
        right = _base(curve[..., r + 1 :], top)
        result[..., column] = top - np.maximum(np.minimum(left, top), np.minimum(right, top))
    return result


def take(curve: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Values of curves [..., F] at one group each, ``index`` [...]; indices outside are clipped."""
    index = np.clip(index, 0, curve.shape[-1] - 1)
    return np.take_along_axis(curve, index[..., None], axis=-1)[..., 0]


def parabola_position(log_curve: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Vertex of the parabola through ``log_curve`` at index-1, index, index+1; offset clipped to +-0.5. Shape [...].

    Where the three points are not concave there is no vertex: the position moves half a group towards the larger
    neighbour (not at all if both are equal).
    """
    left, top, right = (take(log_curve, index + step) for step in (-1, 0, 1))
    curvature = left - 2.0 * top + right
    slope = 0.5 * (right - left)
    with np.errstate(divide="ignore", invalid="ignore"):
        offset = np.where(curvature < 0, -slope / curvature, 0.5 * np.sign(slope))
    return index + np.clip(offset, -0.5, 0.5)


def centroid_position(curve: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Linear centroid of a non-negative curve over index-1, index, index+1; the index itself where all are zero."""
    left, top, right = (take(curve, index + step) for step in (-1, 0, 1))
    total = left + top + right
    return index + (right - left) / np.where(total > 0, total, 1.0)


def crossing_below(curve: np.ndarray, index: np.ndarray, fraction: float) -> np.ndarray:
    """First position beyond ``index`` where a curve falls below ``fraction`` of its value there; NaN if it never does.

    The position between the last group above and the first group below is linear in the log of the curve.
    """
    groups = np.arange(curve.shape[-1])
    target = take(curve, index) * fraction
    below = (groups > index[..., None]) & (curve < target[..., None])
    found = below.any(axis=-1)
    first = np.where(found, below.argmax(axis=-1), 1)
    log_curve = log_with_floor(curve)
    high, low = take(log_curve, first - 1), take(log_curve, first)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = (high - np.log(np.where(target > 0, target, 1.0))) / (high - low)
    return np.where(found, first - 1 + np.clip(np.nan_to_num(step, nan=1.0), 0.0, 1.0), np.nan)


def weighted_median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted median over the last axis -> [...]; weight 0 and NaN values are left out; NaN if nothing is left.

    Where the weights up to a value make up exactly half of all, the mean of it and the next value is taken, so that
    equal weights give the plain median.
    """
    weights = np.where(np.isfinite(values), weights, 0.0)
    order = np.argsort(np.where(weights > 0, values, np.inf), axis=-1, kind="stable")
    values = np.take_along_axis(values, order, axis=-1)
    weights = np.take_along_axis(weights, order, axis=-1)
    share = np.cumsum(weights, axis=-1)
    total = share[..., -1]
    # Relative tolerance: halves of sums of rounded weights must still be seen as halves.
    half = 0.5 * total[..., None]
    tolerance = 1e-12 * total[..., None]
    low = np.argmax(share >= half - tolerance, axis=-1)
    high = np.argmax(share > half + tolerance, axis=-1)
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (take(values, low) + take(values, high))
    return np.where(total > 0, middle, np.nan)
