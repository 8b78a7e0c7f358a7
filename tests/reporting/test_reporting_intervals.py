"""Intervals over seeds and samples, and every verdict rule in both directions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hwh_core.reporting import intervals
from hwh_core.reporting.intervals import Interval


def test_interval_of_seeds_is_students_t_with_sampling_error_in_quadrature():
    values, errors = [13.9, 13.1, 13.4], [0.1, 0.2, 0.1]
    found = intervals.combine(values, errors)
    seeds = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
    sampling = 1.959964 * np.sqrt(0.01 + 0.04 + 0.01) / 3
    assert found.estimate == pytest.approx(np.mean(values))
    assert found.high - found.estimate == pytest.approx(np.hypot(seeds, sampling), rel=1e-6)
    assert found.n_seeds == 3


def test_two_seeds_that_disagree_widen_the_interval_far_beyond_their_samples():
    found = intervals.combine([13.94, 13.15], [0.03, 0.03])
    assert found.low < 10
    assert found.high > 17


def test_one_seed_has_the_sampling_error_alone():
    found = intervals.combine([1.0], [0.5])
    assert (found.high - found.low) / 2 == pytest.approx(0.98, abs=1e-3)
    assert found.n_seeds == 1


@pytest.mark.parametrize(("values", "errors"), [([], []), ([1.0], []), ([np.nan], [0.1]), ([1.0], [np.inf])])
def test_numbers_that_make_no_interval_are_refused(values, errors):
    with pytest.raises(ValueError, match="combine"):
        intervals.combine(values, errors)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (20.6, 22.4, "reproduced"),
        (20.5, 22.5, "reproduced"),
        (20.4, 22.4, "inconclusive"),
        (21.0, 22.6, "inconclusive"),
        (22.6, 23.0, "not_reproduced"),
        (19.0, 20.4, "not_reproduced"),
        (10.0, 30.0, "inconclusive"),
        (-np.inf, np.inf, "inconclusive"),
    ],
)
def test_verdict_compares_the_interval_with_the_tolerance(low, high, expected):
    assert (
        intervals.verdict(Interval((low + high) / 2 if np.isfinite(low) else 21.0, low, high, 2), 20.5, 22.5)
        == expected
    )


@pytest.mark.parametrize(("estimate", "expected"), [(21.5, "reproduced"), (30.0, "not_reproduced")])
def test_one_seed_decides_nothing_about_trained_models(estimate, expected):
    tight = Interval(estimate, estimate - 0.01, estimate + 0.01, 1)
    assert intervals.verdict(tight, 20.5, 22.5) == "inconclusive"
    assert intervals.verdict(tight, 20.5, 22.5, trained=False) == expected


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (0.1, 2.0, 0.0, "reproduced"),
        (-0.1, 2.0, 0.0, "inconclusive"),
        (0.0, 2.0, 0.0, "inconclusive"),
        (-2.0, -0.1, 0.0, "not_reproduced"),
        (-0.9, 2.0, 1.0, "reproduced"),
        (-1.1, 2.0, 1.0, "inconclusive"),
        (-3.0, -1.1, 1.0, "not_reproduced"),
        (-3.0, -0.9, 1.0, "inconclusive"),
    ],
)
def test_a_ranking_needs_a_paired_difference_that_excludes_zero(low, high, margin, expected):
    assert intervals.ranking_verdict(Interval((low + high) / 2, low, high, 2), margin) == expected


def test_a_ranking_of_one_pair_of_seeds_is_inconclusive():
    assert intervals.ranking_verdict(Interval(5.0, 4.0, 6.0, 1)) == "inconclusive"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "not_reproduced"], "not_reproduced"),
        (["inconclusive", "not_reproduced"], "not_reproduced"),
        (["reproduced", "inconclusive"], "inconclusive"),
        (["reproduced", "not_testable"], "inconclusive"),
        (["not_testable", "not_testable"], "not_testable"),
        ([], "not_testable"),
    ],
)
def test_all_parts_of_a_statement_must_hold(parts, expected):
    assert intervals.together(parts) == expected


def test_wilson_interval_of_all_successes_is_not_a_point():
    low, high = intervals.wilson(4, 4)
    assert low == pytest.approx(0.5101, abs=1e-3)
    assert high == pytest.approx(1.0)
    with pytest.raises(ValueError, match="n is 0"):
        intervals.wilson(0, 0)


@pytest.mark.parametrize(("successes", "n"), [(0, 60), (1, 60), (30, 60), (45, 60), (60, 60), (0, 1), (0.4, 3)])
def test_error_of_a_proportion_reaches_both_ends_of_its_wilson_interval(successes, n):
    half = intervals.NORMAL_95 * intervals.proportion_stderr(successes, n)
    low, high = intervals.wilson(successes, n)
    reached = (successes / n - half, successes / n + half)
    assert reached[0] <= low + 1e-12
    assert high <= reached[1] + 1e-12
    assert reached[0] == pytest.approx(low) or reached[1] == pytest.approx(high)


def test_monotonic_map_keeps_the_ends_in_order():
    found = Interval(2.0, 1.0, 3.0, 2).map(lambda x: -x)
    assert (found.low, found.estimate, found.high) == (-3.0, -2.0, -1.0)


def test_an_empty_tolerance_is_refused():
    with pytest.raises(ValueError, match="empty"):
        intervals.verdict(Interval(1, 0, 2, 2), 3, 2)
