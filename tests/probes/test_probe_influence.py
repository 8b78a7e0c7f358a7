"""Distance profiles and needle shares of known weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hwh_core.probes import influence
from hwh_core.probes.influence import SINKS, HeadProfiles, NeedleShares, distance_bins, distance_sums, normalised

LENGTH, QUERIES = 300, 32
POSITIONS = torch.arange(LENGTH - QUERIES, LENGTH)


def at_distance(*shares: tuple[int, float]) -> torch.Tensor:
    """Weights [1, Q, T] of every query at the given distances."""
    weights = torch.zeros(1, QUERIES, LENGTH)
    for distance, share in shares:
        weights[0, torch.arange(QUERIES), POSITIONS - distance] = share
    return weights


def profiles_of(*samples: torch.Tensor) -> HeadProfiles:
    found = HeadProfiles(samples[0].shape[0], LENGTH)
    for weights in samples:
        found.add(weights, POSITIONS)
    return found


def test_a_planted_profile_is_read_back():
    found = profiles_of(at_distance((0, 1.0), (10, 2.0), (100, 1.0)))
    [profile] = found.profile()
    assert np.flatnonzero(profile).tolist() == [0, 10, 100]
    np.testing.assert_allclose(profile[[0, 10, 100]], [0.25, 0.5, 0.25], rtol=1e-6)
    assert influence.median_distance(profile) == 10
    assert influence.mean_distance(profile) == pytest.approx(0.5 * 10 + 0.25 * 100)
    assert found.near_shares()[:, 0].tolist() == pytest.approx([0.75, 1.0])
    assert found.sink_share().tolist() == [0.0]


def test_signs_do_not_matter_but_are_counted():
    signed = at_distance((0, 3.0), (50, -1.0))
    assert profiles_of(signed).profile().tolist() == profiles_of(signed.abs()).profile().tolist()
    assert profiles_of(signed).negative_share().tolist() == pytest.approx([0.25])
    assert profiles_of(signed.abs()).negative_share().tolist() == [0.0]


def test_the_scale_of_a_query_does_not_matter():
    weights = torch.rand(2, QUERIES, LENGTH) * (torch.arange(LENGTH) <= POSITIONS[:, None])
    scaled = weights * torch.logspace(-3, 3, QUERIES)[None, :, None]
    np.testing.assert_allclose(profiles_of(weights).profile(), profiles_of(scaled).profile(), rtol=1e-4, atol=1e-9)


def test_influence_adds_up_to_1_over_distances_and_bins():
    weights = torch.rand(3, QUERIES, LENGTH) * (torch.arange(LENGTH) <= POSITIONS[:, None])
    profile = profiles_of(weights, weights.flip(0)).profile()
    np.testing.assert_allclose(profile.sum(axis=1), 1.0, rtol=1e-12)
    shares = [profile[:, low:high].sum(axis=1) for low, high in distance_bins(LENGTH)]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(normalised(weights).sum(-1), 1.0, rtol=1e-5)


def test_even_influence_has_the_distances_of_the_tokens():
    weights = (torch.arange(LENGTH) <= POSITIONS[:, None]).float()[None]
    [profile] = profiles_of(weights).profile()
    expected = [float(np.mean(np.arange(int(t) - SINKS + 1))) for t in POSITIONS]
    assert influence.mean_distance(profile) == pytest.approx(np.mean(expected))
    assert influence.median_distance(profile) == pytest.approx(np.mean(expected), abs=1.0)
    assert profiles_of(weights).sink_share()[0] == pytest.approx(float((SINKS / (POSITIONS + 1.0)).mean()), rel=1e-5)


def test_the_first_tokens_are_a_share_of_their_own_and_no_distance():
    weights = at_distance((5, 1.0))
    weights[0, :, 0] = 9.0
    found = profiles_of(weights)
    assert found.sink_share().tolist() == pytest.approx([0.9])
    assert np.flatnonzero(found.profile()[0]).tolist() == [5]
    assert found.profile()[0, 5] == pytest.approx(1.0)


def test_a_head_that_reads_sinks_alone_has_no_distance():
    weights = torch.zeros(2, QUERIES, LENGTH)
    weights[0, :, 1] = 1.0
    weights[1, :, 100] = 1.0
    sums, counted = distance_sums(weights, POSITIONS)
    assert counted.tolist() == [0, QUERIES]
    assert sums[0].sum() == 0
    found = profiles_of(weights)
    assert np.isnan(found.profile()[0]).all()
    assert math.isnan(influence.median_distance(found.profile()[0]))
    assert math.isnan(influence.mean_distance(found.profile()[0]))
    assert np.isnan(found.near_shares()[:, 0]).all()
    assert influence.mean_distance(found.profile()[1]) == pytest.approx(float((POSITIONS - 100).double().mean()))


def test_a_head_that_writes_nothing_has_no_distance_either():
    found = profiles_of(torch.zeros(1, QUERIES, LENGTH))
    assert found.counted.tolist() == [0]
    assert np.isnan(found.profile()).all()
    assert found.sink_share().tolist() == [0.0]


@pytest.mark.parametrize(
    ("length", "last"), [(1, (0, 1)), (2, (1, 2)), (5, (4, 5)), (256, (128, 256)), (300, (256, 300))]
)
def test_bins_double_and_cover_every_distance_once(length, last):
    bins = distance_bins(length)
    assert bins[0] == (0, 1)
    assert bins[-1] == last
    assert [d for low, high in bins for d in range(low, high)] == list(range(length))


def test_needle_shares_are_means_over_prompts():
    gold = torch.arange(40, 44)
    shares = NeedleShares()
    for on_needle in (0.2, 0.6):
        weights = torch.zeros(1, 3, 60)
        weights[0, :, 50] = 1.0
        weights[0, -1, 50], weights[0, -1, 41] = on_needle - 1.0, on_needle  # signs do not matter
        shares.add(weights, gold)
    mean, error = shares.mean_and_error("last")
    assert mean.tolist() == pytest.approx([0.4])
    assert error.tolist() == pytest.approx([0.2])
    assert shares.mean_and_error("question")[0].tolist() == pytest.approx([0.4 / 3])
    one = NeedleShares()
    one.add(torch.ones(2, 1, 60), gold)
    assert one.mean_and_error("last")[0].tolist() == pytest.approx([4 / 60] * 2)
    assert np.isnan(one.mean_and_error("last")[1]).all()
