"""Extraction on maps with a known band, and on maps that must show none."""

from __future__ import annotations

import time

import numpy as np
import pytest
from gpband_maps import (
    GROUPS,
    HEADS,
    LENGTH,
    SAMPLES,
    THETA,
    banded_maps,
    bump,
    frequencies,
    noisy,
    null,
    untrained_maps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_core.config import BandConfig
from hwh_core.gpband.detection import search_range
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.extraction import BandResult, chance_agreement, extract_band, jackknife_over_layers
from hwh_core.rope import inverse_frequencies

QUICK = BandConfig(bootstrap_resamples=100)


def extract(maps: dict, settings: BandConfig = QUICK, seed: int = 0, length: int = LENGTH, **changes) -> BandResult:
    return extract_band(**{**maps, **changes}, eval_length=length, settings=settings, seed=seed)


@pytest.mark.parametrize(("theta", "length", "first"), [(1e4, 2048, 13), (1e6, 2048, 9)])
def test_search_range(theta, length, first):
    area = search_range(inverse_frequencies(64, theta), length, BandConfig())
    assert (area.first, area.last) == (first, 30)


@settings(max_examples=25, deadline=None)
@given(st.floats(8, 22))
def test_band_is_found_where_the_map_has_its_maximum(centre):
    result = extract(banded_maps(centre, noise=0.0), BandConfig(bootstrap_resamples=2))
    fine = np.linspace(centre - 3, centre + 3, 6001)
    # The map is bump times null: where the null is steep its product peaks elsewhere than the bump. The candidate is
    # the group nearest to the bump (at a tie either), and the parabola moves it by half a group at most (rule 3).
    log_map = np.interp(fine, np.arange(GROUPS), np.log(null())) - 0.5 * (fine - centre) ** 2
    highest = fine[log_map.argmax()]
    nearest = {int(np.floor(centre + 0.5)), int(np.ceil(centre - 0.5))}
    assert result.verdict == "peak"
    assert min(abs(result.peak - np.clip(highest, group - 0.5, group + 0.5)) for group in nearest) < 0.2
    # Relative to the null the bump is exact up to the floor under it.
    assert result.point.ratio_peak[0] == pytest.approx(centre, abs=0.03)
    assert result.point.rfis_peak[0] == pytest.approx(centre, abs=0.03)


def test_position_is_clipped_to_half_a_group_and_marked():
    result = extract(banded_maps(20.6, noise=0.0))
    assert result.point.rpd.clipped.all()
    assert result.peak == 20.5
    assert not extract(banded_maps(14.0, noise=0.0)).point.rpd.clipped.any()


def test_the_null_itself_is_not_a_band():
    for scale in (1.0, 1.9, 10.0, 100.0):
        result = extract(untrained_maps(scale=scale))
        assert result.verdict == "none"
        assert np.isnan(result.peak)
        assert result.interval("peak") == pytest.approx((np.nan, np.nan), nan_ok=True)


def test_a_raw_peak_at_the_place_of_the_null_needs_twice_the_initial_height():
    maps = banded_maps(14.0)
    assert extract(maps, rpd_initial=maps["rpd"] / 1.9).verdict == "none"
    assert extract(maps, rpd_initial=maps["rpd"] / 2.1).verdict == "peak"


def test_without_rotation_there_is_no_band():
    maps = banded_maps(14.0)
    empty = np.zeros_like(maps["rpd"])
    assert extract(maps, rpd=empty).verdict == "none"
    assert extract(maps, rpd=empty, rpd_initial=empty).verdict == "none"
    nothing = extract(maps, rpd=empty, inv_freq=np.zeros(GROUPS), null=np.zeros(GROUPS))
    assert nothing.verdict == "none"
    assert nothing.area.empty


def test_small_prominence_or_height_is_no_candidate():
    rng = np.random.default_rng(0)
    maps = banded_maps(14.0)
    low = noisy(null() * (0.01 + 0.001 * bump(14.0)), rng, 0.0)
    assert extract(maps, rpd=low, rpd_initial=0.1 * low).verdict == "none"
    dwarfed = noisy(null() * (bump(9.0, 0.6) + 0.1 * bump(13.0, 0.6)) * 0.2 + 1e-5, rng, 0.0)
    found = extract(maps, rpd=dwarfed, rpd_initial=np.full_like(dwarfed, 1e-6))
    assert np.flatnonzero(found.point.rpd.candidates[0, 0]).tolist() == [9]
    both = noisy(null() * (bump(9.0, 0.6) + 0.5 * bump(13.0, 0.6)) * 0.2 + 1e-5, rng, 0.0)
    found = extract(maps, rpd=both, rpd_initial=np.full_like(both, 1e-6))
    assert np.flatnonzero(found.point.rpd.candidates[0, 0]).tolist() == [9, 13]
    assert found.point.rpd.index[0].tolist() == [9, 9, 9]


def test_previous_token_block_is_outside_the_range():
    maps = banded_maps(14.0)
    with_block = maps["rpd"] + 0.5 * bump(2.0)
    assert extract(maps, rpd=with_block).peak == pytest.approx(extract(maps).peak, abs=0.01)


def test_shoulder_is_an_edge_and_not_a_peak():
    groups = np.arange(GROUPS)
    shoulder = np.where(groups <= 17, 1.0, 1e-3) * 0.2 * np.exp(-0.05 * groups)
    rng = np.random.default_rng(0)
    maps = banded_maps(14.0)
    result = extract(maps, rpd=noisy(null() * shoulder, rng, 0.0), rpd_initial=noisy(null() * 1e-4, rng, 0.0))
    assert result.verdict == "edge"
    assert result.peak in (16.0, 17.0)
    assert 17.0 < result.point.edge[0] < 18.0


def test_lower_edge_and_boundary():
    result = extract(banded_maps(14.0, noise=0.0))
    curve = result.maps.layer_rpd[0, 0]
    edge, boundary = result.point.edge[0], result.point.boundary[0]
    assert result.peak < boundary < edge
    log_curve = np.log(curve / curve[14])
    assert np.interp(edge, np.arange(GROUPS), log_curve) == pytest.approx(np.log(0.1), abs=1e-6)
    assert np.interp(boundary, np.arange(GROUPS), log_curve) == pytest.approx(np.log(0.5), abs=1e-6)


def test_mass_below_the_band_against_initialisation():
    result = extract(banded_maps(14.0, noise=0.0))
    curve, initial = result.maps.layer_rpd[0, 0], null()
    below = np.arange(GROUPS) > result.peak + 2
    assert result.point.below[0] == pytest.approx(curve[below].mean() / curve[14])
    assert result.point.below_initial[0] == pytest.approx(initial[below].mean() / initial[14])
    assert result.point.height_over_reference[0] == pytest.approx(0.204 / 0.004, rel=0.01)


def test_agreement_of_rfis_and_rpd():
    assert extract(banded_maps(14.0)).point.agreement[0] == 1.0
    assert extract(banded_maps(14.0, rfis_centre=17.0)).point.agreement[0] == 0.0
    flat = extract(banded_maps(14.0), rfis=np.full((SAMPLES, 3, HEADS, GROUPS), 0.01))
    assert flat.point.agreement[0] == 0.0
    assert np.isnan(extract(untrained_maps()).point.agreement[0])


def test_chance_agreement_is_the_share_of_the_range():
    area = search_range(frequencies(), LENGTH, BandConfig())
    width = area.last - area.first
    assert chance_agreement(np.array([14.0, np.nan]), area) == pytest.approx(2 / width)
    assert chance_agreement(np.array([float(area.first)]), area) == pytest.approx(1 / width)
    assert np.isnan(chance_agreement(np.array([np.nan]), area))


def test_model_value_is_weighted_by_prominence():
    maps = banded_maps(14.0)
    rng = np.random.default_rng(0)
    layers = np.stack([0.2 * bump(14.0), 0.005 * bump(10.0), 0.0 * bump(10.0)]) + 0.004
    result = extract(maps, rpd=noisy(null() * layers, rng, 0.0), rpd_initial=noisy(null() * 0.001, rng, 0.0))
    assert result.point.rpd.kind[0].tolist() == [2, 2, 0]
    assert result.peak == result.point.rpd.position[0, 0]


def test_jackknife_over_layers():
    positions, weights = np.array([10.0, 11.0, 15.0, np.nan]), np.array([1.0, 1.0, 1.0, 0.0])
    found = jackknife_over_layers(positions, weights)
    left_out = [13.0, 12.5, 10.5]
    assert (found["low"], found["high"]) == (10.5, 13.0)
    assert found["standard_error"] == pytest.approx(np.sqrt(2 / 3 * 3 * np.var(left_out)))
    assert jackknife_over_layers(np.array([1.0, np.nan]), np.array([1.0, 0.0])) is None


def test_interval_holds_the_estimate_and_shrinks_with_samples():
    def width(samples: int) -> float:
        maps = {n: 0.3 * v if v.ndim == 4 else v for n, v in banded_maps(14.0, noise=0.4).items()}
        chosen = {
            name: np.concatenate([value] * samples)[: SAMPLES * samples]
            for name, value in maps.items()
            if value.ndim == 4
        }
        rng = np.random.default_rng(1)
        chosen = {name: value * np.exp(0.3 * rng.standard_normal(value.shape)) for name, value in chosen.items()}
        result = extract({**maps, **chosen}, BandConfig(bootstrap_resamples=400))
        low, high = result.interval("peak")
        assert low <= result.peak <= high
        return high - low

    assert width(9) < 0.6 * width(1)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    truth = extract(banded_maps(13.6, noise=0.0)).peak
    hits = 0
    for seed in range(60):
        low, high = extract(banded_maps(13.6, noise=0.3, seed=seed), seed=seed).interval("peak")
        # Log-normal noise has the same mean in all groups, so the truth is that of the noiseless map.
        hits += low <= truth <= high
    assert 48 <= hits <= 60


def test_bootstrap_is_fixed_by_its_seed():
    maps = banded_maps(14.0, noise=0.3)
    first, again, other = extract(maps, seed=1), extract(maps, seed=1), extract(maps, seed=2)
    np.testing.assert_array_equal(first.draws.peak, again.draws.peak)
    assert not np.array_equal(first.draws.peak, other.draws.peak)
    assert first.peak == other.peak


def test_one_pass_over_all_resamples_equals_one_by_one():
    maps = banded_maps(14.0, noise=0.5)
    result = extract(maps, BandConfig(bootstrap_resamples=5), seed=3)
    from hwh_core.statistics import resample_weights

    weights = resample_weights(SAMPLES, 5, np.random.default_rng(3))
    for weight, peak in zip(weights, result.draws.peak, strict=True):
        used = weight > 0
        part = {name: value[used] if value.ndim == 4 else value for name, value in maps.items()}
        assert extract(part, sample_weight=weight[used]).peak == pytest.approx(peak, abs=1e-9)


def test_sample_weights_count():
    first, second = banded_maps(12.0, noise=0.0), banded_maps(16.0, noise=0.0)
    mixed = {n: np.concatenate([first[n], second[n]]) if first[n].ndim == 4 else first[n] for n in first}
    towards_first = np.where(np.arange(2 * SAMPLES) < SAMPLES, 100.0, 1.0)
    assert extract(mixed, sample_weight=towards_first).peak == pytest.approx(extract(first).peak, abs=0.05)
    assert extract(mixed, sample_weight=1 / towards_first).peak == pytest.approx(extract(second).peak, abs=0.05)


def test_without_initial_model_the_scaled_null_stands_in():
    maps = banded_maps(14.0)
    bare = extract(maps, rpd_initial=None, rfis_initial=None)
    assert bare.verdict == "peak"
    assert bare.mean_initial is None
    assert np.isnan(bare.point.below_initial[0])
    nothing = untrained_maps(scale=20.0, noise=0.2)
    assert extract(nothing, rpd_initial=None, rfis_initial=None).verdict == "none"


def test_thousand_resamples_of_64_samples_take_under_three_seconds():
    rng = np.random.default_rng(0)
    maps = banded_maps(14.0)
    big = {n: v[rng.integers(0, SAMPLES, 64)][:, :2].repeat(2, axis=2) for n, v in maps.items() if v.ndim == 4}
    assert big["rpd"].shape == (64, 2, 4, 32)
    started = time.process_time()
    extract({**maps, **big}, BandConfig())
    assert time.process_time() - started < 3.0


def with_nan(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[0, 0, 0, 3] = np.nan
    return values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: {n: v[:1] for n, v in m.items() if v.ndim == 4}, "at least 2"),
        (lambda m: {"rpd": with_nan(m["rpd"])}, "rpd: 1 of .* NaN"),
        (lambda m: {"rfis_initial": with_nan(m["rfis_initial"])}, "rfis_initial: 1 of"),
        (lambda m: {"rfis": m["rfis"][:, :1]}, "rfis: shape .* differs"),
        (lambda m: {"rpd_initial": m["rpd_initial"][:5]}, "rpd_initial: shape .* differs"),
        (lambda m: {"rpd": np.full_like(m["rpd"], np.nan)}, "layer 0 of the array is NaN in every head"),
        (lambda m: {"rpd_initial": None}, "one is there without the other"),
        (lambda m: {"rpd": m["rpd"][0]}, "rpd: expected .sample, layer, head, frequency"),
        (lambda m: {"rpd": m["rpd"] * 1000}, "rpd: values lie in"),
        (lambda m: {"rfis": -m["rfis"]}, "rfis: values lie in"),
        (lambda m: {"inv_freq": m["inv_freq"][:-1]}, "inv_freq: shape"),
        (lambda m: {"inv_freq": m["inv_freq"][::-1]}, "inv_freq: expected positive"),
        (lambda m: {"null": m["null"][:-1]}, "null: shape"),
        (lambda m: {"null": 0 * m["null"]}, "null: expected finite values above 0"),
        (lambda m: {"sample_weight": np.ones(SAMPLES - 1)}, "sample_weight"),
        (lambda m: {"sample_weight": np.zeros(SAMPLES)}, "sample_weight"),
        (lambda m: {"layer_index": np.array([0, 0, 1])}, "layer_index"),
    ],
)
def test_bad_input_is_named(change, words):
    maps = banded_maps(14.0)
    with pytest.raises(BandError, match=words):
        extract({**maps, **change(maps)})


def test_layers_may_have_their_own_null():
    maps = banded_maps(14.0)
    per_layer = np.broadcast_to(maps["null"], (3, GROUPS))
    assert extract(maps, null=per_layer).peak == extract(maps).peak


def test_heads_that_a_layer_lacks_are_left_out():
    maps = banded_maps(14.0)
    lacking = {n: v.copy() for n, v in maps.items() if v.ndim == 4}
    for values in lacking.values():
        values[:, 1, 1] = np.nan
    result = extract({**maps, **lacking})
    assert result.maps.present.tolist() == [[True, True], [True, False], [True, True]]
    np.testing.assert_allclose(result.maps.layer_rpd[:, 1], maps["rpd"][:, 1, 0])
    assert result.verdict == "peak"


def test_longer_probe_moves_the_range():
    area = search_range(frequencies(THETA), 2 * LENGTH, BandConfig())
    assert area.first == search_range(frequencies(THETA), LENGTH, BandConfig()).first + 3
