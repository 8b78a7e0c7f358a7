"""Intervals over the seeds of the hybrid family, and parts of claims made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .claim_model import Part
from .intervals import (
    CONTRADICTED,
    PERCENT,
    PERCENT_DIFFERENCE,
    Interval,
    Range,
    Verdict,
    combine,
    contradicted,
    paired,
    ranking_verdict,
    verdict,
)
from .task_scores import SeedValues


@dataclass(frozen=True)
class Difference(Interval):
    """A difference of two models over the seeds that both have; ``left_out`` as in :class:`.intervals.Pairs`."""

    left_out: tuple[float, ...] = ()


def difference(first: SeedValues, second: SeedValues) -> Difference | None:
    """first - second, paired by seed; None where they share no seed.

    Errors over rows are added as if independent, although both models saw the same rows: the interval is conservative.
    """
    readings = ({seed: (value.value, value.stderr) for seed, value in values.items()} for values in (first, second))
    pairs = paired(*readings)
    if not pairs.values:
        return None
    found = combine([value for value, _ in pairs.values], [error for _, error in pairs.values])
    return Difference(found.estimate, found.low, found.high, found.n_seeds, pairs.left_out)


def level(values: SeedValues) -> Interval | None:
    """Mean over seeds with its interval."""
    return combine([v.value for v in values.values()], [v.stderr for v in values.values()]) if values else None


NOT_ABLE = (
    "in the seeds that count here a model never reaches 90% at half the training length (or at the shortest length of "
    "the grid)"
)
ONE_SEED = "one seed: the spread over seeds is unknown"


def _decided(found: Verdict, interval: Interval, low: float, high: float) -> tuple[Verdict, str]:
    """A verdict on [low, high] and a note: none is taken from pairs that a seed without partner contradicts."""
    if interval.n_seeds < 2:
        return found, ONE_SEED
    left_out = interval.left_out if isinstance(interval, Difference) else ()
    return ("inconclusive", CONTRADICTED) if contradicted(found, left_out, low, high) else (found, "")


def ranked(
    label: str,
    interval: Interval | None,
    margin: float = 0.0,
    able: bool = True,
    possible: Range = PERCENT_DIFFERENCE,
) -> Part:
    """A part that holds when the difference lies above -margin; ``able`` False: the models cannot retrieve at 1K.

    The interval of the part is cut to the ``possible`` values after its verdict was found.
    """
    if interval is None:
        return Part(label, None, "not_testable", "not run for both")
    shown = interval.within(possible)
    if not able:
        return Part(label, shown, "inconclusive", NOT_ABLE)
    return Part(label, shown, *_decided(ranking_verdict(interval, margin), interval, -margin, math.inf))


def bounded(
    label: str, interval: Interval | None, low: float, high: float, able: bool = True, possible: Range = PERCENT
) -> Part:
    """A part that holds when the value lies in [low, high]; ``possible`` as in :func:`ranked`."""
    if interval is None:
        return Part(label, None, "not_testable", "not run")
    shown = interval.within(possible)
    if not able:
        return Part(label, shown, "inconclusive", NOT_ABLE)
    return Part(label, shown, *_decided(verdict(interval, low, high), interval, low, high))
