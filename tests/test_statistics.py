"""Intervals and rank statistics against closed forms, scipy and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hwh_core import statistics as s

finite = st.floats(-100, 100, allow_nan=False)


def test_resample_weights_are_draws_with_replacement():
    weights = s.resample_weights(5, 2000, np.random.default_rng(0))
    assert weights.shape == (2000, 5)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(weights.mean(axis=0), 0.2, atol=0.01)
    np.testing.assert_allclose((weights * 5) % 1, 0, atol=1e-12)
    # Variance of a multinomial count over n: (1/n)(1 - 1/n) / n.
    np.testing.assert_allclose(weights.var(axis=0), 0.2 * 0.8 / 5, rtol=0.15)


def test_bootstrap_mean_is_close_to_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    found = s.bootstrap_mean(values, resamples=4000, seed=2)
    half = 1.96 * values.std(ddof=1) / 20
    assert found.estimate == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)
    assert (found.n_seeds, found.n_samples) == (1, 400)


def test_bootstrap_is_fixed_by_its_seed():
    values = np.arange(10.0)
    assert s.bootstrap_mean(values, seed=3) == s.bootstrap_mean(values, seed=3)
    assert s.bootstrap_mean(values, seed=3) != s.bootstrap_mean(values, seed=4)


def test_bootstrap_over_seeds_sees_the_spread_over_seeds():
    rng = np.random.default_rng(0)
    per_seed = [offset + 0.01 * rng.standard_normal(50) for offset in (0.0, 1.0, 2.0, 3.0)]
    over_seeds = s.bootstrap_seeds(per_seed, seed=0)
    over_samples = s.bootstrap_mean(np.concatenate(per_seed), seed=0)
    assert over_seeds.high - over_seeds.low > 3 * (over_samples.high - over_samples.low)
    assert over_seeds.estimate == pytest.approx(1.5, abs=0.01)
    assert (over_seeds.n_seeds, over_seeds.n_samples) == (4, 200)


def test_t_interval_agrees_with_scipy():
    values = [13.94, 13.15, 13.6]
    found = s.t_interval(values)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_seed_bounds_nothing():
    found = s.t_interval([14.0])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert not found.inside(0, 100)
    assert not found.outside(0, 1)
    assert found.as_dict()["low"] is None


def test_pooled_interval_gives_a_single_seed_the_spread_of_the_others():
    groups = [[1.0, 2.0], [5.0, 7.0]]
    found = s.pooled_t_interval([10.0], groups)
    variance = (0.5 + 2.0) / 2
    assert found.high - 10.0 == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(variance))
    alone = s.pooled_t_interval(groups[0], [])
    assert (alone.low, alone.high) == pytest.approx((s.t_interval(groups[0]).low, s.t_interval(groups[0]).high))
    assert s.pooled_t_interval([10.0], [[3.0]]).high == math.inf


def test_agreeing_seeds_keep_the_sampling_error():
    seeds, sampling = s.t_interval([2.0, 2.0]), s.bootstrap_mean([1.0, 3.0, 2.0, 2.0])
    both = s.combine_with_sampling(seeds, sampling)
    assert seeds.low == seeds.high
    assert both.high - both.estimate == pytest.approx(sampling.high - sampling.estimate)
    assert both.n_seeds == 2
    assert both.n_samples == 4


def test_interval_verdict_helpers():
    found = s.Interval(1.0, 0.5, 1.5, 0.95, "t", 2, 3)
    assert found.inside(0, 2)
    assert not found.inside(1, 2)
    assert found.outside(2, 3)
    assert found.outside(-1, 0.4)
    assert not found.outside(1.4, 3)


def test_paired_difference_ignores_what_pairs_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, 200)
    first, second = shared + 1 + 0.1 * rng.standard_normal(200), shared
    found = s.paired_difference(first, second)
    assert found.outside(-1, 0.9)
    assert found.inside(0.9, 1.1)
    reverse = s.paired_difference(second, first)
    assert (reverse.low, reverse.high) == pytest.approx((-found.high, -found.low), abs=0.01)
    few = s.paired_difference([3.0, 4.0], [1.0, 1.5], method="t")
    assert (few.estimate, few.n_seeds) == (2.25, 2)


def test_auroc_by_counting_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
    assert s.auroc(scores, labels) == pytest.approx(np.mean(pairs))
    assert s.auroc([1, 2, 3], [False, False, True]) == 1.0
    assert np.isnan(s.auroc([1.0, 2.0], [True, True]))


def test_auroc_of_rows_equals_one_by_one():
    rng = np.random.default_rng(1)
    scores, labels = rng.random((7, 20)), rng.random((7, 20)) < 0.3
    labels[:, 0], labels[:, 1] = True, False
    expected = [s.auroc(a, b) for a, b in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(s.auroc(scores, labels), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(finite, st.booleans()), min_size=4, max_size=30))
def test_auroc_is_a_rank_statistic(rows):
    scores = np.array([score for score, _ in rows])
    labels = np.array([label for _, label in rows])
    labels[0], labels[1] = True, False
    value = s.auroc(scores, labels)
    assert 0 <= value <= 1
    assert s.auroc(-scores, labels) == pytest.approx(1 - value)
    assert (
        s.auroc(3 * scores + 7, labels) == pytest.approx(value, abs=1e-9)
        or np.unique(scores).size != np.unique(3 * scores + 7).size
    )  # scaling may round two close scores into a tie


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=4, max_size=30))
def test_correlations_agree_with_scipy(rows):
    x, y = np.array(rows, dtype=float).T
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert np.isnan(s.spearman(x, y))
        return
    assert s.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)
    assert s.pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)


def test_interval_over_units_covers_the_estimate_and_shrinks():
    rng = np.random.default_rng(0)

    def width(n: int) -> float:
        x = rng.standard_normal(n)
        found = s.spearman_interval(x, x + rng.standard_normal(n), seed=1)
        assert found.low < found.estimate < found.high
        return found.high - found.low

    assert width(800) < 0.5 * width(80)
    labels = rng.random(200) < 0.2
    found = s.auroc_interval(labels + rng.standard_normal(200), labels, seed=1)
    assert 0.5 < found.low < found.estimate < found.high <= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: s.bootstrap_mean([1.0]), "at least 2"),
        (lambda: s.bootstrap_mean([1.0, math.nan]), "1 of 2 values are not finite"),
        (lambda: s.bootstrap_mean([[1.0, 2.0]]), "one-dimensional"),
        (lambda: s.bootstrap_seeds([[1.0, 2.0]]), "at least 2 seeds"),
        (lambda: s.t_interval([]), "at least 1"),
        (lambda: s.t_interval([1.0, 2.0], level=95), "between 0 and 1"),
        (lambda: s.paired_difference([1.0, 2.0], [1.0]), "equal numbers"),
        (lambda: s.paired_difference([1.0, 2.0], [1.0, 2.0], method="exact"), "exact"),
        (lambda: s.auroc_interval([1.0, 2.0], [True, True]), "both classes"),
        (lambda: s.auroc_interval([1.0, 2.0], [True]), "labels"),
        (lambda: s.spearman_interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]), "x has 3"),
        (lambda: s.resample_weights(1, 10, np.random.default_rng(0)), "at least 2 samples"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(s.StatisticsError, match=words):
        call()
