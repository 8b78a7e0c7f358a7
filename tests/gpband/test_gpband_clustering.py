"""Several bands in one model."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gpband_maps import GROUPS, HEADS, LENGTH, SAMPLES, bump, frequencies, null
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_core.config import BandConfig
from hwh_core.gpband import clustering
from hwh_core.gpband.extraction import BandResult, analyse
from hwh_core.gpband.maps import check_maps


def model(centres: list[list[float]], noise: float = 0.05) -> BandResult:
    """A model without known initial weights whose layers have bumps at the given centres (heights fall by 0.7)."""
    rng = np.random.default_rng(0)
    layers = np.stack([sum(0.2 * 0.7**i * bump(c, 0.7) for i, c in enumerate(row)) + 0.002 for row in centres])
    rpd = (
        null() * layers[None, :, None, :] * np.exp(noise * rng.standard_normal((SAMPLES, len(centres), HEADS, GROUPS)))
    )
    return analyse(check_maps(rpd, rpd, frequencies(), null()), LENGTH, BandConfig(bootstrap_resamples=100), 0)


def test_two_bands_over_layers():
    found = clustering.band_clusters(model([[8.0], [8.2], [8.1], [14.0], [14.1], [13.9], [11.0]]))
    assert [row["num_layers"] for row in found["clusters"]] == [3, 3]
    assert [row["layers"] for row in found["clusters"]] == [[0, 1, 2], [3, 4, 5]]
    assert found["clusters"][0]["centre"] == pytest.approx(8.1, abs=0.1)
    assert found["largest_gap"] == pytest.approx(6.0, abs=0.3)
    assert found["num_clusters_ci"] == [2.0, 2.0]
    for row in found["clusters"]:
        assert row["centre_ci"][0] <= row["centre"] <= row["centre_ci"][1]
        assert row["low"] <= row["centre"] <= row["high"]


def test_one_band_has_no_gap():
    found = clustering.band_clusters(model([[14.0], [14.1], [13.9]]))
    assert len(found["clusters"]) == 1
    assert found["largest_gap"] is None


def test_second_bands_of_layers_show_among_all_candidates():
    result = model([[8.0, 14.0]] * 3)
    assert len(clustering.band_clusters(result)["clusters"]) == 1
    centres = [row["centre"] for row in clustering.all_candidate_clusters(result)]
    assert centres == pytest.approx([8.0, 14.0], abs=0.2)
    peaks = sorted(row["peak"] for row in clustering.layer_mean_peaks(result))
    assert peaks == pytest.approx([8.0, 14.0], abs=0.2)
    assert clustering.layers_by_prominence_only(result) == 3


def test_no_rotation_no_clusters():
    zeros = np.zeros((4, 3, 2, GROUPS))
    result = analyse(
        check_maps(zeros, zeros, zeros[0, 0, 0], zeros[0, 0, 0]), LENGTH, BandConfig(bootstrap_resamples=10), 0
    )
    assert clustering.band_clusters(result)["clusters"] == []
    assert clustering.all_candidate_clusters(result) == []
    assert clustering.layer_mean_peaks(result) == []
    assert clustering.layers_by_prominence_only(result) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 60), min_size=0, max_size=20), st.integers(1, 3))
def test_clusters_are_separated_and_large_enough(positions, minimum):
    positions = np.array(positions)
    parts = clustering.cluster_positions(positions, np.arange(len(positions)), 2.0, minimum)
    members = [positions[part] for part in parts]
    assert all(len(part) >= minimum for part in members)
    for part in members:
        assert (np.diff(part) <= 2.0).all()
        assert (np.diff(part) >= 0).all()
    for left, right in pairwise(members):
        assert right.min() - left.max() > 2.0


def test_a_layer_counts_once():
    positions, layers = np.array([1.0, 1.5, 2.0]), np.array([0, 0, 1])
    assert clustering.cluster_positions(positions, layers, 2.0, 3) == []
    assert len(clustering.cluster_positions(positions, layers, 2.0, 2)) == 1
