"""Head classes, boundaries and their validation statistics on maps with known shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpband_maps import GROUPS, LENGTH, banded_maps, bump, frequencies, null

from hwh_core.config import BandConfig
from hwh_core.gpband import validation as v
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.extraction import analyse
from hwh_core.gpband.heads import HeadClasses, classify_heads, gqa_entanglement, head_rows, kv_groups, layer_boundaries
from hwh_core.gpband.maps import Maps, check_maps

SAMPLES = 10
QUICK = BandConfig(bootstrap_resamples=200)


def share_maps(shares: np.ndarray, noise: np.ndarray | float = 0.0, seed: int = 0) -> Maps:
    """Maps [n, L, H, F] whose RFIS has the given share [L, H] beyond group 15 and the rest in group 14."""
    rng = np.random.default_rng(seed)
    layers, heads = shares.shape
    drawn = np.clip(shares + noise * rng.standard_normal((SAMPLES, layers, heads)), 0, 1)
    rfis = np.zeros((SAMPLES, layers, heads, GROUPS))
    rfis[..., 20] = 0.1 * drawn
    rfis[..., 14] = 0.1 * (1 - drawn)
    rpd = np.broadcast_to(null() * (0.2 * bump(14.0) + 0.004), rfis.shape)
    return check_maps(rfis, rpd, frequencies(), null(), rfis_initial=rfis * 0.01, rpd_initial=rpd * 0.01)


def classes_of(maps: Maps) -> HeadClasses:
    result = analyse(maps, LENGTH, QUICK, 0)
    return classify_heads(maps, *layer_boundaries(result), resamples=200, seed=0)


def test_shares_and_classes():
    shares = np.array([[0.9, 0.1, 0.5], [0.6, 0.4, 0.0]])
    noise = np.array([[0.02, 0.02, 0.1], [0.02, 0.02, 0.0]])
    found = classes_of(share_maps(shares, noise))
    np.testing.assert_allclose(found.s_ret, shares, atol=0.1)
    assert found.head_class.tolist() == [
        ["retrieval", "positional", "mixed"],
        ["retrieval", "positional", "positional"],
    ]
    assert (found.s_ret_low <= found.s_ret).all()
    assert (found.s_ret <= found.s_ret_high).all()
    assert found.boundary_source == ["peak", "peak"]
    np.testing.assert_allclose(found.rfis_total, 0.1)
    np.testing.assert_allclose(found.d_ratio, found.rpd_total / 0.1)


def test_exactly_half_is_retrieval():
    assert classes_of(share_maps(np.array([[0.5]]))).head_class.tolist() == [["retrieval"]]


def test_boundary_is_the_half_height_of_the_layers_own_band():
    maps = banded_maps(14.0, noise=0.0)
    maps["rpd"] = maps["rpd"].copy()
    maps["rpd"][:, 1] = null() * (0.2 * bump(10.0) + 0.004)
    maps["rpd"][:, 2] = 1e-9
    result = analyse(check_maps(**maps), LENGTH, QUICK, 0)
    boundary, source = layer_boundaries(result)
    # Half height of a Gaussian of width 1 is 1.18 groups off; the steeper null beyond 14 pulls it in.
    assert boundary[0] == pytest.approx(15.0, abs=0.2)
    assert boundary[1] == pytest.approx(11.2, abs=0.15)
    assert source == ["peak", "peak", "model"]
    assert min(boundary[:2]) <= boundary[2] <= max(boundary[:2])


def test_boundary_falls_back_to_one_group_beyond_the_band():
    # A small RoPE base puts the band at the end of the grid, where the map has no room to fall to half.
    maps = banded_maps(14.0, noise=0.0, theta=100.0)
    groups = np.arange(GROUPS)
    curve = np.select([groups == 30, groups == 31], [0.2, 0.12], 0.001)
    maps["rpd"] = np.broadcast_to(curve, maps["rpd"].shape)
    result = analyse(check_maps(**maps), LENGTH, QUICK, 0)
    assert result.point.rpd.index[0].tolist() == [30, 30, 30]
    assert np.isnan(result.point.rpd.edge[0]).all()
    np.testing.assert_allclose(layer_boundaries(result)[0], result.point.rpd.position[0] + 1)


def test_without_any_band_heads_are_unclassified():
    maps = share_maps(np.array([[0.9, 0.1]]))
    maps = replace(maps, rpd_initial=maps.rpd)
    found = classes_of(maps)
    assert set(found.head_class.ravel()) == {"unclassified"}
    assert np.isnan(found.s_ret).all()
    assert found.boundary_source == ["none"]


def test_a_head_without_rfis_is_unclassified():
    maps = share_maps(np.array([[0.9, 0.1]]))
    rfis = maps.rfis.copy()
    rfis[:, 0, 1] = 0
    assert classes_of(replace(maps, rfis=rfis)).head_class.tolist() == [["retrieval", "unclassified"]]


def test_unrotated_group_counts_as_beyond_the_band():
    maps = share_maps(np.array([[0.3]]))
    pad = [(0, 0), (0, 0), (0, 0), (0, 1)]
    wide = check_maps(
        np.pad(maps.rfis, pad, constant_values=0.1),
        np.pad(maps.rpd, pad),
        np.append(maps.inv_freq, 0.0),
        np.append(null(), 0.0),
        rfis_initial=np.pad(maps.rfis_initial, pad),
        rpd_initial=np.pad(maps.rpd_initial, pad),
    )
    assert classes_of(wide).s_ret[0, 0] == pytest.approx((0.03 + 0.1) / 0.2)


def test_classes_are_fixed_by_the_seed():
    maps = share_maps(np.array([[0.52, 0.48]]), 0.1)
    first, again = classes_of(maps), classes_of(maps)
    np.testing.assert_array_equal(first.s_ret_draws, again.s_ret_draws)


def test_groups_of_key_value_heads():
    assert kv_groups(9, 3).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(BandError, match="num_kv_heads: 4"):
        kv_groups(9, 4)


def test_gqa_entanglement():
    alike = classes_of(share_maps(np.array([[0.9, 0.9, 0.1, 0.1]])))
    found = gqa_entanglement(alike, 2)
    assert found["within_group_std"] == pytest.approx(0.0, abs=1e-9)
    assert found["within_over_layer"] == pytest.approx(0.0, abs=1e-9)
    apart = gqa_entanglement(classes_of(share_maps(np.array([[0.9, 0.1, 0.9, 0.1]]))), 2)
    assert apart["within_group_std"] == pytest.approx(0.8 / np.sqrt(2))
    assert apart["within_over_layer"] > 1
    single = gqa_entanglement(alike, 4)
    assert single["within_group_std"] is None
    assert single["heads_per_group"] == 1


def test_rows_of_heads_csv():
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    maps = replace(share_maps(shares), layer_index=np.array([3, 7]))
    scores = np.arange(4.0).reshape(2, 2)
    rows = head_rows(classes_of(maps), 1, scores, scores + 10, scores + 20)
    assert [(r["layer"], r["head"], r["kv_group"]) for r in rows] == [(3, 0, 0), (3, 1, 0), (7, 0, 0), (7, 1, 0)]
    assert [r["qr"] for r in rows] == [0, 1, 2, 3]
    assert [r["ld"] for r in rows] == [20, 21, 22, 23]
    assert [r["head_class"] for r in rows] == ["retrieval", "positional", "positional", "retrieval"]


def test_hybrid_layers_with_fewer_heads_are_refused():
    maps = share_maps(np.array([[0.9, 0.1]]))
    with pytest.raises(BandError, match="same heads"):
        classify_heads(replace(maps, present=np.array([[True, False]])), [1.0], ["peak"], resamples=10, seed=0)
    with pytest.raises(BandError, match="boundary"):
        classify_heads(maps, [1.0, 2.0], ["peak", "peak"], resamples=10, seed=0)


# ------------------------------------------------------------------ validation


def behaviour(mean: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Scores [20, L, H] around ``mean`` [L, H], positive."""
    rng = np.random.default_rng(seed)
    return mean * np.exp(noise * rng.standard_normal((20, *mean.shape)))


def shares_12x10() -> np.ndarray:
    rng = np.random.default_rng(5)
    shares = rng.uniform(0.0, 0.4, (12, 10))
    shares[5:7, :3] = 0.9
    return shares


def test_retrieval_heads_that_carry_qr_give_a_high_auroc():
    shares = shares_12x10()
    qr = behaviour(np.where(shares > 0.5, 1.0, 0.01), 0.1, 1)
    ld = behaviour(np.full(shares.shape, 0.5), 0.1, 2)
    found = v.validate(classes_of(share_maps(shares, 0.01)), qr, ld, seed=0)
    assert found["auroc_s_ret_top_qr"]["estimate"] == 1.0
    assert found["auroc_s_ret_top_qr"]["n_heads"] == 120
    assert abs(found["auroc_s_ret_top_ld"]["estimate"] - 0.5) < 0.35
    assert found["auroc_distance_gap"]["ci"][0] > 0
    assert found["qr_mass_top"]["estimate"] == pytest.approx(6 / (6 + 1.14), abs=0.05)
    assert found["qr_mass_middle_half"]["estimate"] > 0.8
    assert found["top_heads_in_middle_half"]["estimate"] == 1.0
    for name in ("spearman_s_ret_qr", "spearman_s_ret_ld", "spearman_qr_one_minus_ld"):
        low, high = found[name]["ci"]
        assert low <= high
        assert found[name]["ci_over_heads"] is not None
    middle = {r["head_class"]: r for r in found["confusion"] if r["third"] == "middle"}
    assert (middle["retrieval"]["top_qr"], middle["retrieval"]["other"]) == (6, 0)
    assert sum(r["top_qr"] + r["other"] for r in found["confusion"]) == 120
    assert sum(r["top_qr"] for r in found["confusion"]) == 6


def test_complementary_scores_leave_no_low_low_heads():
    shares = shares_12x10()
    base = np.random.default_rng(0).permutation(120).reshape(12, 10) / 120 + 0.01
    qr = np.broadcast_to(base, (5, 12, 10))
    found = v.validate(classes_of(share_maps(shares)), qr, 1.05 - qr, seed=0)
    assert found["spearman_qr_one_minus_ld"]["estimate"] == pytest.approx(1.0)
    assert found["pearson_qr_one_minus_ld"]["estimate"] == pytest.approx(1.0)
    assert found["low_low_share"]["estimate"] == 0.0
    both = v.validate(classes_of(share_maps(shares)), qr, qr, seed=0)
    assert both["low_low_share"]["estimate"] == pytest.approx(0.5)


def test_undefined_ld_is_left_out_of_means_and_heads():
    shares = shares_12x10()
    qr = behaviour(shares + 0.01, 0.1, 1)
    ld = behaviour(shares + 0.01, 0.1, 2)
    ld[:10, 0, 0] = np.nan
    ld[:, 0, 1] = np.nan
    found = v.validate(classes_of(share_maps(shares)), qr, ld, seed=0)
    assert found["spearman_s_ret_ld"]["n_heads"] == 119
    assert found["spearman_s_ret_qr"]["n_heads"] == 120
    flat = v.mean_over_samples(np.array([[1.0], [np.nan], [3.0]]), np.array([[1 / 3] * 3]))
    assert flat[0, 0] == 2.0


def test_unclassified_heads_give_no_number_but_a_note():
    maps = share_maps(np.full((2, 4), 0.3))
    classes = classes_of(replace(maps, rpd_initial=maps.rpd))
    qr = behaviour(np.full((2, 4), 0.3), 0.5, 0)
    found = v.validate(classes, qr, qr, seed=0)
    assert found["auroc_s_ret_top_qr"]["estimate"] is None
    assert "too few heads" in found["auroc_s_ret_top_qr"]["note"]
    assert found["qr_mass_top"]["estimate"] is not None


def test_top_heads_and_middle_half():
    assert v.top_heads(np.arange(100.0)).nonzero()[0].tolist() == [95, 96, 97, 98, 99]
    assert v.top_heads(np.arange(101.0)).sum() == 6
    assert v.top_heads(np.array([1.0, 1.0])).tolist() == [True, False]
    assert v.middle_half(8).tolist() == [False, False, True, True, True, True, False, False]
    assert v.middle_half(30).sum() == 16 or v.middle_half(30).sum() == 14


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda qr, ld: (qr[:, :1], ld), "qr: expected"),
        (lambda qr, ld: (qr, ld[0]), "ld: expected"),
        (lambda qr, ld: (qr[:1], ld[:1]), "at least 2"),
        (lambda qr, ld: (qr, ld[:-1]), "same behaviour run"),
        (lambda qr, ld: (np.where(qr > qr.max() - 1e-12, np.nan, qr), ld), "qr: 1 values are NaN"),
    ],
)
def test_bad_scores_are_named(change, words):
    shares = np.full((2, 3), 0.3)
    qr, ld = change(behaviour(shares, 0.1, 0), behaviour(shares, 0.1, 1))
    with pytest.raises(BandError, match=words):
        v.validate(classes_of(share_maps(shares)), qr, ld, seed=0)
