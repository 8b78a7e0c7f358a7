"""From when on a model saves nats on planted digits: the regression, its errors and the start that it finds."""

from __future__ import annotations

import numpy as np
import pytest

from hwh_core.retrieval_onset import (
    LEAST_WINDOW,
    NATS_A_DIGIT,
    Estimate,
    Planted,
    find_onset,
    regress,
    saving_from,
    window_edges,
    window_estimates,
    without_drift,
)

STEPS = 5500


def planted(steps=STEPS, seed=0):
    """As of 40 pairs a step, 0.4 of them repeated, with values of 4 to 7 digits."""
    draws = np.random.default_rng(seed)
    lengths = draws.integers(4, 8, size=(steps, 40))
    repeated = draws.random((steps, 40)) < 0.4
    kinds = np.stack([~repeated, repeated], axis=2)
    return Planted((lengths[:, :, None] * kinds).sum(axis=1), kinds.sum(axis=1))


def difference(found, start=None, nats=-NATS_A_DIGIT, spread=150.0, seed=1):
    """Loss of a model that copies from after step ``start`` on, less loss of one that does not, in nats a step.

    What copying saves on keys and wording, a pair of either kind, and a fast drift of the early steps are in it.
    """
    steps = len(found.digits)
    draws = np.random.default_rng(seed)
    after = np.arange(steps) >= (steps if start is None else start)
    saved = nats * found.digits.sum(axis=1) - 9.0 * found.pairs[:, 0] - 14.0 * found.pairs[:, 1]
    drift = 20000.0 * np.exp(-np.arange(steps) / 150.0) - 0.1 * np.arange(steps)
    return saved * after + drift + spread * draws.standard_normal(steps) + 40.0


def both(rows):
    return [row for row in rows if row.regressor == "both"]


def estimates_of(values, errors, length=1000):
    return [
        Estimate(number * length + 1, (number + 1) * length, "both", float(value), float(error), length)
        for number, (value, error) in enumerate(zip(values, errors, strict=True))
    ]


def test_the_regression_is_least_squares_on_all_columns_at_once():
    draws = np.random.default_rng(0)
    wanted, others = draws.standard_normal((90, 2)), draws.standard_normal((90, 4))
    nats = draws.standard_normal(90)
    values, errors = regress(nats, wanted, others)
    columns = np.column_stack([wanted, others])
    expected = np.linalg.solve(columns.T @ columns, columns.T @ nats)
    spread = ((nats - columns @ expected) ** 2).sum() / (90 - 6)
    assert values == pytest.approx(expected[:2])
    assert errors == pytest.approx(np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)) * spread)[:2])


def test_drift_taken_away_is_a_constant_and_a_slope_a_block_beside_the_regressors():
    draws = np.random.default_rng(0)
    columns = draws.standard_normal((150, 3))
    left, fitted = without_drift(columns)
    blocks = np.zeros((150, 6))
    for block in range(3):
        blocks[50 * block : 50 * (block + 1), 2 * block] = 1.0
        blocks[50 * block : 50 * (block + 1), 2 * block + 1] = np.arange(50)
    assert fitted == 6
    once = regress(columns[:, 0], columns[:, 1:2], np.column_stack([columns[:, 2], blocks]))
    assert np.allclose(regress(left[:, 0], left[:, 1:2], left[:, 2:], fitted), once)


def test_columns_that_depend_on_one_another_change_nothing_and_a_regressor_among_them_cannot_be_told():
    draws = np.random.default_rng(0)
    wanted, others, nats = draws.standard_normal((90, 1)), draws.standard_normal((90, 3)), draws.standard_normal(90)
    again = np.column_stack([others, others @ [1.0, 2.0, 3.0], np.zeros(90)])
    assert np.allclose(regress(nats, wanted, again), regress(nats, wanted, others))
    assert np.isnan(regress(nats, others @ np.ones((3, 1)), others)).all()
    assert np.isnan(regress(nats, np.zeros((90, 1)), others)).all()
    assert np.isnan(regress(nats[:4], wanted[:4], others[:4])).all()


def test_digits_are_told_from_the_pairs_that_they_belong_to():
    """Both kinds are found alike, though a copied pair saves more where it is repeated."""
    found = planted()
    rows = window_estimates(difference(found, start=0, spread=10.0), found, [0, STEPS])
    assert [row.regressor for row in rows] == ["asked", "repeated", "both"]
    for row in rows:
        assert row.n == row.last_step == STEPS
        assert row.nats_per_digit == pytest.approx(-NATS_A_DIGIT, abs=0.2)
        assert row.stderr < 0.1


def test_kinds_that_do_not_come_are_left_out():
    found = planted()
    found.digits[:, 1] = found.pairs[:, 1] = 0
    rows = window_estimates(difference(found, start=0), found, [0, STEPS])
    assert [row.regressor for row in rows] == ["both"]
    lengths_alike = Planted(5 * found.pairs, found.pairs)
    assert window_estimates(difference(found), lengths_alike, [0, STEPS]) == []


def test_error_bars_cover_the_truth_and_drift_does_not_widen_them():
    scores, errors = [], []
    for seed in range(60):
        found = planted(1100, seed)
        rows = both(window_estimates(difference(found, 0, seed=seed + 1000), found, window_edges(1100, 2)))
        scores += [(row.nats_per_digit + NATS_A_DIGIT) / row.stderr for row in rows]
        errors += [row.stderr for row in rows]
    # 120 windows: the share within has a standard error of 2 points.
    assert 0.89 <= np.mean(np.abs(scores) < 1.96) <= 0.99
    assert 0.8 < np.std(scores) < 1.2
    # The spread of the noise over that of the digits, 7.07 a step; a line a window would leave ten times that.
    assert np.mean(errors) == pytest.approx(150.0 / 7.07 / np.sqrt(550), rel=0.15)


@pytest.mark.parametrize("start", [0, 1750, 3000, 4100])
def test_a_known_onset_is_found(start):
    found = planted()
    rows = both(window_estimates(difference(found, start, spread=40.0), found, window_edges(STEPS, 11)))
    onset = find_onset(rows)
    assert onset.earliest - 50 <= start + 1 <= onset.latest + 50
    assert abs(onset.step - 1 - start) <= 150
    assert onset.latest - onset.earliest < 1000
    assert onset.nats_per_digit == pytest.approx(-NATS_A_DIGIT, abs=4 * onset.stderr)
    assert saving_from(rows, onset.step) == pytest.approx((onset.nats_per_digit, onset.stderr))


def test_none_is_found_where_nothing_is_saved_or_the_other_model_saves():
    found = planted()
    for seed in range(5):
        nats = difference(found, seed=seed)
        assert find_onset(both(window_estimates(nats, found, window_edges(STEPS, 11)))) is None
    other = -difference(found, start=2000, spread=40.0)
    assert find_onset(both(window_estimates(other, found, window_edges(STEPS, 11)))) is None


def test_one_training_in_twenty_without_retrieval_gets_an_onset_at_most():
    draws = np.random.default_rng(0)
    errors = np.linspace(2.0, 0.8, 11)
    found = [find_onset(estimates_of(errors * draws.standard_normal(11), errors)) for _ in range(1000)]
    assert sum(onset is not None for onset in found) <= 50


def test_the_range_holds_the_true_start_mostly():
    draws = np.random.default_rng(0)
    errors, ends = np.linspace(2.0, 0.8, 11), 1000 * np.arange(1, 12)
    inside, count = 0, 0
    for start in draws.uniform(0, 9000, 300):
        values = -NATS_A_DIGIT * np.clip((ends - start) / 1000, 0, 1) + errors * draws.standard_normal(11)
        onset = find_onset(estimates_of(values, errors))
        if onset is not None:
            count += 1
            inside += onset.earliest - 50 <= start <= onset.latest + 50
    assert count > 270
    assert inside / count > 0.88


def test_one_window_that_fails_by_chance_does_not_move_the_onset():
    onset = find_onset(estimates_of([0, 0, 0, -2.3, -2.3, -0.5, -2.3, -2.3], [0.8] * 8))
    assert onset.earliest <= 3001 <= onset.latest
    assert abs(onset.step - 3001) <= 300


def test_an_onset_in_the_last_window_has_no_latest_step():
    onset = find_onset(estimates_of([0.0, 0.1, 0.1, -1.5], [0.1] * 4))
    assert (onset.step, onset.latest) == (3001, 4000)
    onset = find_onset(estimates_of([-2.0], [0.1]))
    assert (onset.step, onset.earliest, onset.latest) == (1, 1, 1000)


@pytest.mark.parametrize("windows", [0, -1, 56])
def test_windows_too_short_are_refused(windows):
    with pytest.raises(ValueError, match="at most 55"):
        window_edges(STEPS, windows)


def test_windows_are_equal_and_cover_all_steps():
    edges = window_edges(5507, 11)
    assert (edges[0], edges[-1]) == (0, 5507)
    assert set(np.diff(edges)) == {500, 501}
    with pytest.raises(ValueError, match=f"train at least {LEAST_WINDOW}"):
        window_edges(50, 1)
