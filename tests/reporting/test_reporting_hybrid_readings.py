"""Differences paired by seed, and what a seed says that only one of the two models has."""

from __future__ import annotations

import math

import pytest

from hwh_core.reporting.claims_hybrid_380m import NOTHING_TO_MATCH, matched
from hwh_core.reporting.hybrid_readings import NOT_ABLE, ONE_SEED, bounded, difference, ranked
from hwh_core.reporting.intervals import CONTRADICTED
from hwh_core.reporting.task_scores import SeedValue


def seeds(*values: float | None, stderr: float = 0.1) -> dict[int, SeedValue]:
    """Values of seeds 0, 1, ...; None: not trained with that seed."""
    return {seed: SeedValue(value, stderr, 100) for seed, value in enumerate(values) if value is not None}


def test_the_interval_is_of_pairs_and_the_others_are_told_beside_it():
    gap = difference(seeds(10.0, 12.0, 50.0), seeds(9.0, 11.0, None, 30.0))
    assert (gap.estimate, gap.n_seeds) == (pytest.approx(1.0), 2)
    assert gap.high - gap.estimate == pytest.approx(1.959963984540054 * math.hypot(0.1, 0.1) / math.sqrt(2))
    # 50 against the mean of 9, 11 and 30; the mean of 10, 12 and 50 against 30.
    assert gap.left_out == (pytest.approx(50 - 50 / 3), pytest.approx(24 - 30))
    assert difference(seeds(1.0), seeds(None, 2.0)) is None
    assert difference(seeds(1.0, 2.0), seeds(0.0, 1.0)).left_out == ()


@pytest.mark.parametrize(
    ("third", "expected", "note"),
    [(100.0, "inconclusive", CONTRADICTED), (60.0, "not_reproduced", ""), (None, "not_reproduced", "")],
)
def test_pairs_that_a_lone_seed_contradicts_decide_no_ranking(third, expected, note):
    """Two seeds answer nothing where the other model answers 98; a third one, without partner, answers as told."""
    part = ranked("ours - theirs", difference(seeds(0.0, 0.0, third), seeds(98.0, 97.5)), margin=1.0)
    assert (part.verdict, part.note) == (expected, note)
    assert part.interval.estimate == pytest.approx(-97.75)
    part = ranked("theirs - ours", difference(seeds(98.0, 97.5), seeds(0.0, 0.0, third)), margin=1.0)
    assert part.verdict == ("inconclusive" if third == 100.0 else "reproduced")


@pytest.mark.parametrize(("third", "expected"), [(0.5, "reproduced"), (4.0, "inconclusive"), (-4.0, "inconclusive")])
def test_pairs_that_a_lone_seed_contradicts_decide_no_limit(third, expected):
    part = bounded("within 1", difference(seeds(0.1, 0.1, third), seeds(0.0, 0.0)), -1.0, 1.0)
    assert part.verdict == expected
    outside = bounded("within 1", difference(seeds(9.0, 9.0, third), seeds(0.0, 0.0)), -1.0, 1.0)
    assert outside.verdict == ("inconclusive" if expected == "reproduced" else "not_reproduced")


def test_what_is_undecided_keeps_its_own_reason():
    assert ranked("one", difference(seeds(5.0, None, 1.0), seeds(1.0))).note == ONE_SEED
    assert ranked("unable", difference(seeds(5.0, 5.0), seeds(1.0, 1.0)), able=False).note == NOT_ABLE
    wide = ranked("wide", difference(seeds(5.0, -5.0, 90.0), seeds(1.0, 1.0)))
    assert (wide.verdict, wide.note) == ("inconclusive", "")


def test_a_lone_seed_that_answers_makes_no_match_of_pairs_that_do_not():
    part = matched("ours - theirs", seeds(0.0, 0.0, 100.0), seeds(0.0, 0.0), margin=1.0)
    assert (part.verdict, part.note) == ("inconclusive", NOTHING_TO_MATCH)
    assert matched("ours - theirs", seeds(99.0, 99.0, 100.0), seeds(99.0, 99.0), margin=1.0).verdict == "reproduced"
