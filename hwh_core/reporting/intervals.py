"""Confidence intervals over seeds and samples, and the verdict rules of the claims ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["reproduced", "not_reproduced", "inconclusive", "not_testable"]
NORMAL_95 = 1.959963984540054
# Least and greatest value that a quantity can take.
Range = tuple[float, float]
UNLIMITED: Range = (-np.inf, np.inf)
NOT_NEGATIVE: Range = (0.0, np.inf)
PERCENT: Range = (0.0, 100.0)
PERCENT_DIFFERENCE: Range = (-100.0, 100.0)
# A value and its standard error over samples.
Reading = tuple[float, float]
CONTRADICTED = "seeds that both models have agree, but a seed that one of them alone has lies on the other side"


@dataclass(frozen=True)
class Interval:
    """An estimate with a 95% interval; ``n_seeds`` 0 means that nothing was trained (exact or published weights)."""

    estimate: float
    low: float
    high: float
    n_seeds: int

    def map(self, function) -> Interval:
        """The interval of a monotonic function of the estimate."""
        ends = sorted((function(self.low), function(self.high)))
        return Interval(function(self.estimate), ends[0], ends[1], self.n_seeds)

    def within(self, possible: Range) -> Interval:
        """The interval cut to the values that its quantity can take; an end without bound stays, it is unknown.

        Verdicts are found before: whatever a tolerance allows lies in that range as well.
        """
        low, high = (float(np.clip(end, *possible)) if np.isfinite(end) else end for end in (self.low, self.high))
        return Interval(self.estimate, low, high, self.n_seeds)


def exact(value: float) -> Interval:
    """A number without sampling error."""
    return Interval(float(value), float(value), float(value), 0)


def stderr_of(interval: Sequence[float]) -> float:
    """Standard error that a 95% interval [low, high] of samples stands for (half its width / 1.96)."""
    return (float(interval[1]) - float(interval[0])) / (2 * NORMAL_95)


def combine(values: Sequence[float], sample_errors: Sequence[float]) -> Interval:
    """Mean over seeds with a 95% interval that holds the spread over seeds and the sampling error.

    Half width: sqrt((t s / sqrt k)^2 + (1.96 e)^2), with k seeds, s their standard deviation, t the quantile of
    Student's distribution with k - 1 degrees of freedom, e the standard error over samples of the mean of the seeds.
    Part of s is sampling error already, so the interval is conservative. One seed gives the sampling error alone: the
    spread over seeds is then unknown, which :func:`verdict` respects.
    """
    values, errors = np.asarray(values, dtype=float), np.asarray(sample_errors, dtype=float)
    if len(values) == 0 or len(values) != len(errors):
        raise ValueError(f"combine: {len(values)} values and {len(errors)} errors; expected equally many, at least one")
    if not (np.isfinite(values).all() and np.isfinite(errors).all()):
        raise ValueError("combine: values and errors must be finite")
    k = len(values)
    sampling = NORMAL_95 * np.sqrt(np.sum(errors**2)) / k
    seeds = stats.t.ppf(0.975, k - 1) * values.std(ddof=1) / np.sqrt(k) if k > 1 else 0.0
    half = float(np.hypot(seeds, sampling))
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half, k)


@dataclass(frozen=True)
class Pairs:
    """Differences of two models: ``values`` of the seeds that both have, and what the other seeds say.

    ``left_out``: for each seed that one of the two alone has, the difference to the mean over seeds of the other. It
    is in no interval, which pairs make narrow, yet it may speak against what these decide.
    """

    values: list[Reading]
    left_out: tuple[float, ...] = ()


def paired(first: Mapping[int, Reading], second: Mapping[int, Reading]) -> Pairs:
    """first - second by seed. Errors are added as if the samples of both were drawn anew."""
    values = [
        (first[seed][0] - second[seed][0], math.hypot(first[seed][1], second[seed][1]))
        for seed in sorted(set(first) & set(second))
    ]
    if not (first and second):
        return Pairs(values)
    of_first, of_second = (fmean(value for value, _ in readings.values()) for readings in (first, second))
    left_out = [first[seed][0] - of_second for seed in sorted(first) if seed not in second]
    left_out += [of_first - second[seed][0] for seed in sorted(second) if seed not in first]
    return Pairs(values, tuple(left_out))


def contradicted(found: Verdict, left_out: Sequence[float], low: float, high: float) -> bool:
    """Whether a difference of a seed without partner lies on the other side of what pairs decided of [low, high]."""
    outside, inside = any(not low <= x <= high for x in left_out), any(low < x < high for x in left_out)
    return (found == "reproduced" and outside) or (found == "not_reproduced" and inside)


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95% Wilson interval of a proportion."""
    if n <= 0:
        raise ValueError(f"wilson: n is {n}, expected at least 1")
    p, z2 = successes / n, NORMAL_95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_95 * np.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def proportion_stderr(successes: float, n: int) -> float:
    """Standard error to use for a proportion, such that 1.96 of it reach either end of its Wilson interval.

    It is the longer way to an end, over 1.96. The textbook's sqrt(p (1 - p) / n) is zero where all or none of the n
    succeed; with this one 0 of 60 gives [0, 6.0%] once the lower end is cut to 0. Elsewhere it is a little larger.
    """
    low, high = wilson(successes, n)
    return max(successes / n - low, high - successes / n) / NORMAL_95


def verdict(interval: Interval, low: float = -np.inf, high: float = np.inf, *, trained: bool = True) -> Verdict:
    """Compare a 95% interval with the tolerance [low, high].

    ``reproduced`` when it lies inside, ``not_reproduced`` when it lies wholly outside, else ``inconclusive``. A
    statement about trained models needs at least two seeds, since the interval must hold their spread: with one seed
    it is ``inconclusive``. Set ``trained=False`` for published weights and exact numbers.
    """
    if low > high:
        raise ValueError(f"verdict: tolerance [{low}, {high}] is empty")
    if not np.isfinite(interval.estimate) or (trained and interval.n_seeds < 2):
        return "inconclusive"
    if interval.low >= low and interval.high <= high:
        return "reproduced"
    if interval.low > high or interval.high < low:
        return "not_reproduced"
    return "inconclusive"


def ranking_verdict(difference: Interval, margin: float = 0.0, *, trained: bool = True) -> Verdict:
    """A ranking holds when the paired difference lies above ``-margin``, and fails when it lies wholly below it."""
    if not np.isfinite(difference.estimate) or (trained and difference.n_seeds < 2):
        return "inconclusive"
    if difference.low > -margin:
        return "reproduced"
    return "not_reproduced" if difference.high < -margin else "inconclusive"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdict of a statement with several parts: all must hold, one that fails makes the whole fail.

    Parts that could not be tested leave the rest ``inconclusive`` at best, unless none could be tested.
    """
    if not verdicts or all(v == "not_testable" for v in verdicts):
        return "not_testable"
    if "not_reproduced" in verdicts:
        return "not_reproduced"
    return "reproduced" if all(v == "reproduced" for v in verdicts) else "inconclusive"
