"""Predicted band: the numbers N1 to N5 and the grid functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hwh_core import rope


def test_constants_are_the_stated_extrema():
    x = rope.X_STAR_COVARIANCE
    assert math.tan(x) == pytest.approx(x, rel=1e-12)
    grid = np.linspace(2.0, 8.0, 600_001)
    oka = 0.5 + np.sin(2 * grid) / (4 * grid) - (np.sin(grid) / grid) ** 2
    assert grid[oka.argmax()] == pytest.approx(rope.X_STAR_OKA, abs=2e-5)
    assert oka.max() == pytest.approx(0.54047, abs=1e-5)
    assert grid[(0.5 * (1 - np.sin(grid) / grid)).argmax()] == pytest.approx(x, abs=2e-5)


@pytest.mark.parametrize(
    ("head_dim", "theta", "length", "index"),
    [(64, 1e4, 2048, 21.27), (64, 1e6, 2048, 14.18), (64, 1e4, 4096, 23.68)],
)
def test_n1_predicted_index(head_dim, theta, length, index):
    assert rope.predicted_index(head_dim, theta, length) == pytest.approx(index, abs=0.005)


@pytest.mark.parametrize(("length", "period"), [(2048, 2864), (4096, 5727)])
def test_n2_predicted_period_does_not_depend_on_the_base(length, period):
    assert rope.predicted_period(length) == pytest.approx(period, abs=0.5)
    for theta in (1e4, 1e6):
        inv_freq = rope.inverse_frequencies(64, theta)
        at = rope.predicted_index_on_grid(inv_freq, length)
        assert rope.period_at(inv_freq, at) == pytest.approx(rope.predicted_period(length), rel=1e-9)


def test_n3_period_of_group_24():
    assert rope.periods(rope.inverse_frequencies(64, 1e4))[24] == pytest.approx(6283, abs=0.5)


def test_n4_gemma():
    assert rope.predicted_index(256, 1e4, 8192) == pytest.approx(104.35, abs=0.01)


@pytest.mark.parametrize(("theta", "shift"), [(1e4, 2.408), (1e6, 1.605)])
def test_n5_doubling_the_length(theta, shift):
    moved = rope.predicted_index(64, theta, 4096) - rope.predicted_index(64, theta, 2048)
    assert moved == pytest.approx(32 * math.log(2) / math.log(theta), rel=1e-12)
    assert moved == pytest.approx(shift, abs=5e-4)


@pytest.mark.parametrize(
    ("head_dim", "theta", "length", "covariance", "oka"),
    [(128, 1e6, 32768, 41.20, 42.16), (128, 1e4, 4096, 47.36, 48.79), (128, 5e5, 8192, 36.62, 37.62)],
)
def test_both_constants_for_released_models(head_dim, theta, length, covariance, oka):
    assert rope.predicted_index(head_dim, theta, length) == pytest.approx(covariance, abs=0.01)
    assert rope.predicted_index(head_dim, theta, length, "oka") == pytest.approx(oka, abs=0.01)


def _llama3_grid() -> np.ndarray:
    """Frequencies of Llama 3.1: wavelengths above 8192 slowed down 8 times, those under 2048 kept, blended between."""
    inv_freq = rope.inverse_frequencies(128, 5e5)
    wavelength = rope.periods(inv_freq)
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0, 1)
    return (1 - smooth) * inv_freq / 8 + smooth * inv_freq


def test_scaled_grid():
    grid = _llama3_grid()
    assert rope.predicted_index_on_grid(grid, 8192) == pytest.approx(31.91, abs=0.01)
    assert rope.predicted_index_on_grid(grid, 131072) == pytest.approx(40.00, abs=0.01)


def test_grid_equals_formula_inside_and_beyond_the_grid():
    inv_freq = rope.inverse_frequencies(64, 1e4)
    for length in (3.0, 256, 2048, 1e6):
        for x_star in ("covariance", "oka"):
            assert rope.predicted_index_on_grid(inv_freq, length, x_star) == pytest.approx(
                rope.predicted_index(64, 1e4, length, x_star), abs=1e-9
            )


def test_unrotated_group_has_no_place_on_the_grid():
    inv_freq = np.append(rope.inverse_frequencies(64, 1e4), 0.0)
    assert np.isinf(rope.periods(inv_freq)[-1])
    assert rope.predicted_index_on_grid(inv_freq, 2048) == pytest.approx(21.27, abs=0.005)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: rope.inverse_frequencies(63, 1e4), "head_dim: 63"),
        (lambda: rope.inverse_frequencies(64, 0.5), "rope_theta: 0.5"),
        (lambda: rope.predicted_index(64, 1e4, 0), "length: 0"),
        (lambda: rope.predicted_period(2048, "median"), "x_star: 'median'"),
        (lambda: rope.predicted_index_on_grid(np.array([1.0, 2.0]), 10), "inv_freq"),
        (lambda: rope.period_at(np.array([1.0]), 0), "inv_freq"),
    ],
)
def test_impossible_values_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
