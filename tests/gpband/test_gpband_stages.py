"""Predictions of candidate training stages: the numbers of the published models, and bad rows."""

from __future__ import annotations

import numpy as np
import pytest

from hwh_core.gpband.errors import BandError
from hwh_core.gpband.stages import predicted_stages
from hwh_core.rope import inverse_frequencies


def llama3_scaled(inv_freq: np.ndarray) -> np.ndarray:
    """Frequencies of Llama 3.1: factor 8, low 1, high 4, original length 8192 (written out from its definition)."""
    wavelength = 2 * np.pi / inv_freq
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return (1 - smooth) * inv_freq / 8 + smooth * inv_freq


GRIDS = {
    "gemma": inverse_frequencies(256, 1e4),
    "qwen3": inverse_frequencies(128, 1e6),
    "llama3.1": llama3_scaled(inverse_frequencies(128, 5e5)),
}


@pytest.mark.parametrize(
    ("grid", "theta", "length", "covariance", "oka", "period"),
    [
        ("gemma", 1e4, 8192, 104.35, 107.21, 11455),
        ("gemma", 1e4, 4096, 94.71, 97.57, 5727),
        ("qwen3", 1e6, 4096, 31.57, 32.52, 5727),
        ("qwen3", 1e6, 32768, 41.20, 42.16, 45820),
        ("qwen3", 1e6, 40960, 42.24, 43.19, 57275),
        ("qwen3", 1e4, 4096, 47.36, 48.79, 5727),
        ("llama3.1", 5e5, 8192, 36.62, 37.62, 11455),
        ("llama3.1", None, 8192, 31.91, None, 11455),
        ("llama3.1", None, 131072, 40.00, None, 183279),
    ],
)
def test_predictions_of_the_published_models(grid, theta, length, covariance, oka, period):
    row = {"label": "stage", "length": length} | ({} if theta is None else {"rope_theta": theta})
    (stage,) = predicted_stages([row], GRIDS[grid], "candidate_bands")
    assert stage.covariance == pytest.approx(covariance, abs=0.02)
    assert stage.period == pytest.approx(period, abs=0.5)
    if oka is not None:
        assert stage.oka == pytest.approx(oka, abs=0.02)


def test_groups_without_rotation_are_no_part_of_the_grid():
    row = {"label": "stage", "rope_theta": 1e4, "length": 2048}
    partial = np.append(inverse_frequencies(64, 1e4), 0.0)
    assert predicted_stages([row], partial, "x") == predicted_stages([row], partial[:-1], "x")
    assert predicted_stages([row], np.zeros(4), "x") == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"label": "a"}, "rows: row .* lacks 'length'"),
        ({"label": "a", "length": 8, "rope_theta": 0.5}, "rope_theta: 0.5 is not above 1"),
    ],
)
def test_bad_rows_are_named(row, words):
    with pytest.raises(BandError, match=words):
        predicted_stages([row], GRIDS["qwen3"], "rows")
