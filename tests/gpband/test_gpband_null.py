"""The closed-form null against brute force and the published positions of its peak."""

from __future__ import annotations

import numpy as np
import pytest

from hwh_core.gpband import curves
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.null import closed_form_null, distance_counts, null_for_positions
from hwh_core.rope import inverse_frequencies


@pytest.mark.parametrize(("theta", "length", "peak"), [(1e4, 2048, 21.18), (1e6, 2048, 14.09), (1e4, 4096, 23.66)])
def test_peak_of_the_null(theta, length, peak):
    g = closed_form_null(inverse_frequencies(64, theta), length, 128)
    log_g = np.log(g)
    index = log_g.argmax()
    assert curves.parabola_position(log_g, index) == pytest.approx(peak, abs=0.006)
    # Topographic: over the higher of the two valleys. Over the level 1 of high frequencies the peak is 0.17 to 0.20.
    assert 0.28 < curves.prominence(log_g, np.array([index]))[0] < 0.32
    assert 0.17 < log_g[index] < 0.20


@pytest.mark.parametrize("window", [None, 7])
def test_equals_the_mean_over_visible_pairs(window):
    inv_freq = inverse_frequencies(16, 100.0)
    pairs = [(i, j) for i in range(30, 40) for j in range(i + 1) if window is None or i - j < window]
    expected = [np.mean([1 - np.cos(w * (i - j)) for i, j in pairs]) for w in inv_freq]
    np.testing.assert_allclose(closed_form_null(inv_freq, 40, 10, window), expected, rtol=1e-12)
    positions = np.arange(40)
    np.testing.assert_allclose(null_for_positions(inv_freq, positions[30:], positions, window), expected, rtol=1e-12)


def test_depends_on_distances_only():
    inv_freq = inverse_frequencies(16, 100.0)
    positions = np.arange(20)
    shifted = null_for_positions(inv_freq, positions[15:] + 1000, positions + 1000)
    np.testing.assert_allclose(shifted, closed_form_null(inv_freq, 20, 5), rtol=1e-12)


def test_keeps_its_digits_at_the_lowest_frequencies():
    w = 1e-9
    distance, counts = np.arange(100.0), distance_counts(100, 10)
    expected = 0.5 * w**2 * (distance**2 @ counts) / counts.sum()
    assert closed_form_null(np.array([w]), 100, 10)[0] == pytest.approx(expected, rel=1e-9)


def test_without_rotation_the_null_is_zero():
    assert closed_form_null(np.zeros(3), 64, 8).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("length", "queries", "window"), [(10, 0, None), (10, 11, None), (0, 1, None), (10, 2, 0)])
def test_impossible_sizes_are_refused(length, queries, window):
    with pytest.raises(BandError, match="null"):
        closed_form_null(np.array([1.0]), length, queries, window)


def test_no_visible_pair_is_refused():
    with pytest.raises(BandError, match="no visible"):
        null_for_positions(np.array([1.0]), np.array([0]), np.array([5]))
