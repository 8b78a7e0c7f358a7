"""Intervals and rank statistics shared by band extraction, head classification and the claims ledger.

Pure functions of arrays. Every interval says how it was made and how many seeds and samples it covers. An interval that
cannot be formed (one seed, all labels equal) is an error or carries infinite ends; it is never silently narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from .scripting import UserError

TOP_SHARE = 0.05
"""Share of all heads that count as the top ones of a score (claims W1 to W4)."""


class StatisticsError(UserError):
    """Numbers from which the asked statistic cannot be computed; the message names what is missing."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; infinite ends mean that the data bound it on no side."""

    estimate: float
    low: float
    high: float
    level: float
    method: str
    n_seeds: int
    n_samples: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON: infinite ends and NaN become None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }

    def inside(self, low: float, high: float) -> bool:
        """True if the whole interval lies in [low, high]."""
        return low <= self.low and self.high <= high

    def outside(self, low: float, high: float) -> bool:
        """True if the whole interval lies outside [low, high]."""
        return self.high < low or self.low > high


def _values(name: str, values: Any, minimum: int) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise StatisticsError(f"{name}: expected a one-dimensional array, got shape {array.shape}")
    if len(array) < minimum:
        raise StatisticsError(f"{name}: needs at least {minimum} values, got {len(array)}")
    if not np.isfinite(array).all():
        raise StatisticsError(f"{name}: {int((~np.isfinite(array)).sum())} of {len(array)} values are not finite")
    return array


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise StatisticsError(f"level: expected a number between 0 and 1 (such as 0.95), got {level}")
    return level


# --------------------------------------------------------------------------- bootstrap


def resample_weights(num_samples: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Bootstrap weights, float64 [resamples, num_samples], rows sum to 1: how often each sample is drawn, over n."""
    if num_samples < 2:
        raise StatisticsError(f"bootstrap over samples: needs at least 2 samples, got {num_samples}")
    return rng.multinomial(num_samples, np.full(num_samples, 1.0 / num_samples), size=resamples) / num_samples


def percentile_interval(draws: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the finite ones among ``draws`` [B]; (nan, nan) if fewer than 2 are finite."""
    finite = draws[np.isfinite(draws)]
    if len(finite) < 2:
        return math.nan, math.nan
    tail = 50.0 * (1.0 - _level(level))
    low, high = np.percentile(finite, [tail, 100.0 - tail])
    return float(low), float(high)


def bootstrap_mean(samples: Any, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Percentile bootstrap interval of the mean over samples of one seed: it knows nothing of the spread over seeds."""
    values = _values("samples", samples, 2)
    draws = resample_weights(len(values), resamples, np.random.default_rng(seed)) @ values
    low, high = percentile_interval(draws, level)
    return Interval(float(values.mean()), low, high, level, "bootstrap over samples", 1, len(values))


def bootstrap_seeds(per_seed: Sequence[Any], *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Two-level bootstrap of the grand mean: seeds are drawn with replacement, then samples within each drawn seed.

    With two or three seeds it is too narrow (it never leaves the range of the seeds): prefer :func:`t_interval`.
    """
    groups = [_values(f"samples of seed {i}", values, 2) for i, values in enumerate(per_seed)]
    if len(groups) < 2:
        raise StatisticsError(f"bootstrap over seeds: needs at least 2 seeds, got {len(groups)}")
    rng = np.random.default_rng(seed)
    # One column a seed and draw of it: the same seed drawn twice gets two independent resamples of its samples.
    chosen = rng.integers(len(groups), size=(resamples, len(groups)))
    draws = np.empty(chosen.shape)
    for i, values in enumerate(groups):
        picked = chosen == i
        draws[picked] = resample_weights(len(values), int(picked.sum()), rng) @ values
    low, high = percentile_interval(draws.mean(axis=1), level)
    estimate = float(np.mean([values.mean() for values in groups]))
    return Interval(
        estimate, low, high, level, "bootstrap over seeds and samples", len(groups), sum(len(v) for v in groups)
    )


# --------------------------------------------------------------------------- spread over seeds


def t_interval(values: Any, *, level: float = 0.95, n_samples: int = 0) -> Interval:
    """Student t interval of the mean over seeds; ``values`` holds one number a seed.

    Each value carries its own sampling error, so the interval covers both seeds and samples. One seed says nothing
    about the spread: its ends are infinite.
    """
    values = _values("values", values, 1)
    n = len(values)
    estimate = float(values.mean())
    if n == 1:
        return Interval(estimate, -math.inf, math.inf, _level(level), "t over seeds", 1, n_samples)
    half = float(stats.t.ppf(0.5 + _level(level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Interval(estimate, estimate - half, estimate + half, level, "t over seeds", n, n_samples)


def pooled_t_interval(values: Any, other_groups: Sequence[Any], *, level: float = 0.95, n_samples: int = 0) -> Interval:
    """t interval of the mean of ``values`` (one a seed) with a seed variance pooled over several models.

    Assumes that models of one family vary equally over seeds. The degrees of freedom are the sum of (seeds - 1) over
    all groups, ``values`` included; with none in total the ends are infinite.
    """
    values = _values("values", values, 1)
    groups = [values, *(_values(f"other_groups[{i}]", group, 1) for i, group in enumerate(other_groups))]
    freedom = sum(len(group) - 1 for group in groups)
    estimate = float(values.mean())
    if freedom == 0:
        return Interval(estimate, -math.inf, math.inf, _level(level), "t, pooled over models", len(values), n_samples)
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    half = float(stats.t.ppf(0.5 + _level(level) / 2, freedom) * math.sqrt(variance / len(values)))
    return Interval(estimate, estimate - half, estimate + half, level, "t, pooled over models", len(values), n_samples)


def combine_with_sampling(interval: Interval, sampling: Interval) -> Interval:
    """The wider of an interval over seeds and one over samples at each end, with the estimate of the first.

    Two seeds that happen to agree give a t interval of zero width; the sampling error of the estimate still holds.
    """
    below = max(interval.estimate - interval.low, sampling.estimate - sampling.low)
    above = max(interval.high - interval.estimate, sampling.high - sampling.estimate)
    return Interval(
        interval.estimate,
        interval.estimate - below,
        interval.estimate + above,
        interval.level,
        f"{interval.method}; at least {sampling.method}",
        interval.n_seeds,
        max(interval.n_samples, sampling.n_samples),
    )


# --------------------------------------------------------------------------- differences


def paired_difference(
    first: Any, second: Any, *, method: str = "bootstrap", resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Interval of mean(first - second) over pairs (the same prompts, or the same seeds).

    ``method``: "bootstrap" (percentile, many pairs) or "t" (few pairs such as seeds; one pair: infinite ends).
    """
    a, b = _values("first", first, 1), _values("second", second, 1)
    if len(a) != len(b):
        raise StatisticsError(
            f"paired difference: first has {len(a)} values, second {len(b)}; pairs need equal numbers"
        )
    if method == "t":
        found = t_interval(a - b, level=level)
        return Interval(found.estimate, found.low, found.high, level, "paired t", found.n_seeds, 0)
    if method != "bootstrap":
        raise StatisticsError(f"method: expected 'bootstrap' or 't', got {method!r}")
    found = bootstrap_mean(a - b, resamples=resamples, seed=seed, level=level)
    return Interval(found.estimate, found.low, found.high, level, "paired bootstrap", 1, len(a))


# --------------------------------------------------------------------------- ranks


def auroc(scores: Any, labels: Any) -> np.ndarray:
    """Area under the ROC curve: chance that a labelled unit scores higher than an unlabelled one, ties count half.

    ``scores`` and boolean ``labels`` [..., N] are broadcast; returns [...]; NaN where only one class is present.
    """
    scores, labels = np.broadcast_arrays(np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool))
    ranks = stats.rankdata(scores, axis=-1)
    positive = labels.sum(axis=-1)
    negative = labels.shape[-1] - positive
    wins = np.where(labels, ranks, 0.0).sum(axis=-1) - positive * (positive + 1) / 2.0
    pairs = positive * negative
    return np.where(pairs > 0, wins / np.maximum(pairs, 1), np.nan)


def top_heads(scores: np.ndarray, share: float = TOP_SHARE) -> np.ndarray:
    """True for the ceil(share * N) highest of scores [..., N]; ties go to the earlier head."""
    count = max(1, math.ceil(share * scores.shape[-1] - 1e-9))
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    result = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(result, order, True, axis=-1)
    return result


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean(axis=-1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(scale > 0, (x * y).sum(axis=-1) / scale, np.nan)


def pearson(x: Any, y: Any) -> np.ndarray:
    """Pearson correlation over the last axis, [..., N] -> [...]; NaN where one side is constant."""
    x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    return _correlation(x, y)


def spearman(x: Any, y: Any) -> np.ndarray:
    """Spearman correlation over the last axis, ties share ranks; [..., N] -> [...]; NaN where one side is constant."""
    x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    return _correlation(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))


def _over_units(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    picks: np.ndarray,
    level: float,
    method: str,
) -> Interval:
    low, high = percentile_interval(np.atleast_1d(statistic(x[picks], y[picks])), level)
    return Interval(float(statistic(x, y)), low, high, level, method, 1, len(x))


def auroc_interval(scores: Any, labels: Any, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """AUROC with a percentile bootstrap over units, stratified by label so that each resample holds both classes."""
    scores = _values("scores", scores, 2)
    labels = np.asarray(labels, dtype=bool)
    if labels.shape != scores.shape:
        raise StatisticsError(f"auroc: scores have shape {scores.shape}, labels {labels.shape}")
    positive, negative = np.flatnonzero(labels), np.flatnonzero(~labels)
    if len(positive) == 0 or len(negative) == 0:
        raise StatisticsError(f"auroc: needs both classes, got {len(positive)} of {len(labels)} labelled")
    rng = np.random.default_rng(seed)
    picks = np.concatenate(
        [rng.choice(positive, (resamples, len(positive))), rng.choice(negative, (resamples, len(negative)))], axis=1
    )
    return _over_units(auroc, scores, labels, picks, level, "bootstrap over units, stratified")


def spearman_interval(x: Any, y: Any, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Spearman correlation with a percentile bootstrap over units."""
    x, y = _values("x", x, 3), _values("y", y, 3)
    if len(x) != len(y):
        raise StatisticsError(f"spearman: x has {len(x)} values, y {len(y)}")
    picks = np.random.default_rng(seed).integers(len(x), size=(resamples, len(x)))
    return _over_units(spearman, x, y, picks, level, "bootstrap over units")
