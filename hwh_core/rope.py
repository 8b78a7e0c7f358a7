"""RoPE frequencies, their periods, and where the Global Positional Band is predicted (numpy only).

Index r counts from the highest frequency (r = 0) to the lowest (r = F - 1), F = head_dim / 2.

The covariance of (cos wm, sin wm) for relative positions m uniform on [0, L] has its largest eigenvalue
1/2 (1 - sin(x)/x), x = w L; it is maximal at the first minimum of sin(x)/x. The variance at phase 0 (Oka et al.,
ICLR 2026) is 1/2 + sin(2x)/(4x) - (sin(x)/x)^2, maximal at another x. Both constants give a predicted period
2 pi L / x_star, whatever the RoPE base.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

X_STAR_COVARIANCE = 4.493409457909064
"""First positive solution of tan x = x: first minimum of sin(x)/x."""

X_STAR_OKA = 3.65721009798321
"""First maximum of 1/2 + sin(2x)/(4x) - (sin(x)/x)^2."""

XStar = Literal["covariance", "oka"]


def _x_star(name: str) -> float:
    values = {"covariance": X_STAR_COVARIANCE, "oka": X_STAR_OKA}
    if name not in values:
        raise ValueError(f"x_star: {name!r} is unknown; expected one of {sorted(values)}")
    return values[name]


def _check(head_dim: int | None = None, rope_theta: float | None = None, length: float | None = None) -> None:
    if head_dim is not None and (head_dim < 2 or head_dim % 2):
        raise ValueError(f"head_dim: {head_dim} is not an even number of at least 2")
    if rope_theta is not None and not rope_theta > 1:
        raise ValueError(f"rope_theta: {rope_theta} is not above 1")
    if length is not None and not length > 0:
        raise ValueError(f"length: {length} is not a positive number of tokens")


def inverse_frequencies(head_dim: int, rope_theta: float) -> np.ndarray:
    """Angular frequencies rope_theta^(-2r/head_dim) in radians a token, float64 [head_dim/2] (equation 4).

    For predictions and plots; a probe reads the frequencies of a loaded model instead, which may be scaled.
    """
    _check(head_dim=head_dim, rope_theta=rope_theta)
    return rope_theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def periods(inv_freq: np.ndarray) -> np.ndarray:
    """Periods 2 pi / inv_freq in tokens, float64 [F]; infinite where the frequency is 0 (no rotation)."""
    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return 2 * math.pi / inv_freq


def predicted_period(length: float, x_star: XStar = "covariance") -> float:
    """Period in tokens at which the band is predicted for a training length in tokens: 2 pi L / x_star."""
    _check(length=length)
    return 2 * math.pi * length / _x_star(x_star)


def predicted_index(head_dim: int, rope_theta: float, length: float, x_star: XStar = "covariance") -> float:
    """Predicted (fractional) frequency index of the band on an unscaled grid.

    The solution of rope_theta^(-2r/head_dim) L = x_star; not clipped to the grid, so that a length whose band lies
    outside of it is seen to do so.
    """
    _check(head_dim, rope_theta, length)
    return head_dim / 2 * math.log(length / _x_star(x_star)) / math.log(rope_theta)


def _log_frequencies(inv_freq: np.ndarray) -> np.ndarray:
    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    inv_freq = inv_freq[inv_freq > 0]  # a group without rotation (partial rotary) has no place on the grid
    if inv_freq.ndim != 1 or inv_freq.size < 2:
        raise ValueError(f"inv_freq: expected at least 2 positive frequencies in one row, got {inv_freq.size}")
    if not np.all(np.diff(inv_freq) < 0):
        raise ValueError("inv_freq: frequencies must fall from the first to the last")
    return np.log(inv_freq)


def predicted_index_on_grid(inv_freq: np.ndarray, length: float, x_star: XStar = "covariance") -> float:
    """Predicted index on any falling grid of frequencies [F], log-linear between neighbours.

    Beyond either end the outermost spacing goes on. Equals :func:`predicted_index` on an unscaled grid.
    """
    _check(length=length)
    logs = _log_frequencies(inv_freq)
    target = math.log(_x_star(x_star) / length)
    left = int(np.clip(np.searchsorted(-logs, -target) - 1, 0, logs.size - 2))
    return float(left + (target - logs[left]) / (logs[left + 1] - logs[left]))


def period_at(inv_freq: np.ndarray, index: float) -> float:
    """Period in tokens at a fractional index of the grid, log-linear between neighbours."""
    logs = _log_frequencies(inv_freq)
    left = int(np.clip(math.floor(index), 0, logs.size - 2))
    value = logs[left] + (index - left) * (logs[left + 1] - logs[left])
    return float(2 * math.pi * math.exp(-value))
