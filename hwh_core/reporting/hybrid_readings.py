"""Intervals over the seeds of the hybrid family, and parts of claims made of them."""

from __future__ import annotations

import math

from .claim_model import Part
from .intervals import PERCENT, PERCENT_DIFFERENCE, Interval, Range, combine, ranking_verdict, verdict
from .task_scores import SeedValues


def difference(first: SeedValues, second: SeedValues, weight: float = 1.0) -> Interval | None:
    """first - weight * second, paired by seed; None where they share no seed.

    Errors over rows are added as if independent, although both models saw the same rows: the interval is conservative.
    """
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return None
    values = [first[seed].value - weight * second[seed].value for seed in seeds]
    errors = [math.hypot(first[seed].stderr, weight * second[seed].stderr) for seed in seeds]
    return combine(values, errors)


def level(values: SeedValues) -> Interval | None:
    """Mean over seeds with its interval."""
    return combine([v.value for v in values.values()], [v.stderr for v in values.values()]) if values else None


NOT_ABLE = "a model never reaches 90% at half the training length (or at the shortest length of the grid)"
ONE_SEED = "one seed: the spread over seeds is unknown"


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
    return Part(label, shown, ranking_verdict(interval, margin), ONE_SEED if interval.n_seeds < 2 else "")


def bounded(
    label: str, interval: Interval | None, low: float, high: float, able: bool = True, possible: Range = PERCENT
) -> Part:
    """A part that holds when the value lies in [low, high]; ``possible`` as in :func:`ranked`."""
    if interval is None:
        return Part(label, None, "not_testable", "not run")
    shown = interval.within(possible)
    if not able:
        return Part(label, shown, "inconclusive", NOT_ABLE)
    return Part(label, shown, verdict(interval, low, high), ONE_SEED if interval.n_seeds < 2 else "")
