"""Operations on curves against scipy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import peak_prominences

from hwh_core.gpband import curves

heights = st.lists(st.integers(0, 8), min_size=5, max_size=24)


@settings(max_examples=100, deadline=None)
@given(heights)
def test_prominence_agrees_with_scipy(values):
    curve = np.array(values, dtype=float)
    peaks = np.flatnonzero(curves.is_local_maximum(curve))
    strict = [r for r in peaks if curve[r] > curve[r + 1]]  # scipy takes the middle of a plateau, we its first group
    expected = peak_prominences(curve, strict)[0]
    np.testing.assert_allclose(curves.prominence(curve, np.array(strict, dtype=int)), expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(heights, min_size=1, max_size=3).filter(lambda rows: len({len(row) for row in rows}) == 1))
def test_leading_axes_are_independent(rows):
    stacked = np.array(rows, dtype=float)
    groups = np.arange(1, stacked.shape[1] - 1)
    together = curves.prominence(stacked, groups)
    for row, expected in zip(stacked, together, strict=True):
        np.testing.assert_array_equal(curves.prominence(row, groups), expected)


@settings(max_examples=60, deadline=None)
@given(st.floats(5, 20), st.floats(0.4, 4))
def test_parabola_is_exact_for_gaussians(centre, width):
    log_curve = -0.5 * ((np.arange(26) - centre) / width) ** 2
    index = log_curve.argmax()
    assert curves.parabola_position(log_curve, index) == pytest.approx(centre, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 1.0, 5.0], 1.5), ([5.0, 1.0, 0.0], 0.5), ([1.0, 1.0, 1.0], 1.0), ([2.0, 1.0, 2.0], 1.0)],
)
def test_parabola_without_vertex_goes_half_a_group_uphill(values, expected):
    assert curves.parabola_position(np.array(values), np.array(1)) == expected


def test_centroid_is_linear():
    assert curves.centroid_position(np.array([1.0, 2.0, 1.0]), np.array(1)) == 1.0
    assert curves.centroid_position(np.array([0.0, 2.0, 2.0]), np.array(1)) == 1.5
    assert curves.centroid_position(np.zeros(3), np.array(1)) == 1.0


def test_crossing_is_log_linear():
    curve = np.exp(-np.arange(10.0))
    # A tenth of the value is reached ln 10 = 2.303 groups further on.
    assert curves.crossing_below(curve, np.array(2), 0.1) == pytest.approx(2 + np.log(10))
    assert curves.crossing_below(curve, np.array(2), 0.5) == pytest.approx(2 + np.log(2))
    assert np.isnan(curves.crossing_below(np.ones(5), np.array(1), 0.5))
    cliff = curves.crossing_below(np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array(1), 0.1)
    assert 2.0 < cliff < 3.0


def test_crossing_takes_the_first_fall():
    curve = np.array([1.0, 0.05, 1.0, 0.01])
    assert curves.crossing_below(curve, np.array(0), 0.1) <= 1.0


def test_weighted_median():
    values = np.array([3.0, 1.0, 2.0])
    assert curves.weighted_median(values, np.ones(3)) == 2.0
    assert curves.weighted_median(values, np.array([10.0, 1.0, 1.0])) == 3.0
    assert curves.weighted_median(values[:2], np.ones(2)) == 2.0
    assert curves.weighted_median(np.array([np.nan, 5.0]), np.array([9.0, 0.1])) == 5.0
    assert np.isnan(curves.weighted_median(values, np.zeros(3)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12))
def test_equal_weights_give_the_median(values):
    weights = np.full(len(values), 0.37)
    assert curves.weighted_median(np.array(values), weights) == pytest.approx(np.median(values), abs=1e-9)


def test_log_floor_bounds_empty_groups():
    log_curve = curves.log_with_floor(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert log_curve[0, 1] == pytest.approx(np.log(curves.RELATIVE_FLOOR))
    assert log_curve[1].tolist() == [0.0, 0.0]
