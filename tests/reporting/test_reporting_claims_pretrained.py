"""Claims about published weights (W), in both directions, and on SmolLM2-135M."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.reporting import ledger
from hwh_core.reporting.claim_model import Outcome
from hwh_core.reporting.results import Results

NAMES = ("Qwen3-4B", "Qwen3-1.7B", "Llama3.1-8B-Instruct", "Gemma-7B", "smollm2-135m")


def published(root, layers: int = 18) -> Results:
    preset = presets.preset(models=[presets.pretrained(name) for name in NAMES])
    tree.write_pretrained(root, preset, layers=layers, heads=4)
    return Results(root, preset)


def outcome_of(results: Results, name: str) -> Outcome:
    return next(claim for claim in ledger.CLAIMS if claim.id == name).evaluate(results)


CASES = [
    ("W1", {"qr_mass_top": 0.3}),
    ("W1", {"top_heads_in_middle_half": 0.4}),
    ("W2", {"pearson_qr_one_minus_ld": 0.9}),
    ("W2", {"low_low_share_third": 0.01}),
    ("W3", {"auroc_s_ret_top_qr": 0.6}),
    ("W4", {"auroc_distance_gap": 0.05}),
]


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5"])
@pytest.mark.parametrize("suffix", ["", "-smollm2"])
def test_statistics_inside_the_tolerance_are_reproduced(tmp_path, name, suffix):
    outcome = outcome_of(published(tmp_path), name + suffix)
    assert outcome.verdict == "reproduced"
    assert outcome.n_seeds == 0
    assert outcome.n_samples == 3


def test_w3_says_how_many_other_heads_read_below_the_band_as_well(tmp_path):
    results = published(tmp_path)
    path = tmp_path / "pretrained/Qwen3-4B/heads.csv"
    heads = pd.read_csv(path)
    top = heads["qr"].rank(ascending=False) <= round(0.05 * len(heads))
    heads["s_ret"] = np.where(top, 0.9, 0.1)
    heads.loc[heads.index[~top][: int((~top).sum()) // 4], "s_ret"] = 0.6
    heads.to_csv(path, index=False)
    assert "25% of the other heads" in outcome_of(results, "W3").note


@pytest.mark.parametrize(("name", "samples"), [("W1", 3), ("W2", 3), ("W3", 2), ("W5", 2), ("C7-smollm2", 2)])
def test_n_is_the_fewest_samples_that_a_claim_rests_on(tmp_path, name, samples):
    results = published(tmp_path)
    for model in NAMES:
        path = tmp_path / "pretrained" / model / "bands.json"
        found = json.loads(path.read_text())
        found["band"]["num_samples"] = 2
        path.write_text(json.dumps(found))
    assert outcome_of(results, name).n_samples == samples


@pytest.mark.parametrize(("name", "statistics"), CASES)
def test_statistics_outside_are_not_reproduced(tmp_path, name, statistics):
    results = published(tmp_path)
    tree.put_json(tmp_path / "pretrained/Qwen3-4B/bands.json", tree.bands(20.0, **statistics))
    assert outcome_of(results, name).verdict == "not_reproduced"
    assert outcome_of(results, f"{name}-smollm2").verdict == "reproduced"


@pytest.mark.parametrize(
    ("name", "statistics"), [("W3", {"auroc_s_ret_top_qr": 0.81}), ("W4", {"auroc_distance_gap": None})]
)
def test_statistics_at_the_limit_or_undefined_are_inconclusive(tmp_path, name, statistics):
    results = published(tmp_path)
    tree.put_json(tmp_path / "pretrained/Qwen3-4B/bands.json", tree.bands(20.0, **statistics))
    assert outcome_of(results, name).verdict == "inconclusive"


def test_one_cluster_is_not_several_bands(tmp_path):
    results = published(tmp_path)
    one = tree.bands(20.0) | {"num_clusters_ci": [1.0, 1.0], "largest_gap": None, "largest_gap_ci": None}
    one["clusters"] = one["clusters"][:1]
    tree.put_json(tmp_path / "pretrained/Qwen3-4B/bands.json", one)
    assert outcome_of(results, "W5").verdict == "not_reproduced"


def with_heads(root, model: str, change) -> None:
    path = root / "pretrained" / model / "heads.csv"
    frame = pd.read_csv(path)
    change(frame)
    frame.to_csv(path, index=False)


@pytest.mark.parametrize(("sign", "expected"), [(1, "reproduced"), (-1, "not_reproduced")])
def test_w6_tests_two_layers_of_llama(tmp_path, sign, expected):
    results = published(tmp_path)

    def change(frame):
        frame["qr"] = np.where(frame["layer"].isin([13, 14]) & (frame["head"] < 2), 0.5, 0.001)
        frame["s_ret"] = np.where(frame["qr"] > 0.1, 0.5 + sign * 0.4, 0.5 - sign * 0.4)

    with_heads(tmp_path, "Llama3.1-8B-Instruct", change)
    assert outcome_of(results, "W6").verdict == expected


def test_w6_without_top_heads_in_these_layers_is_inconclusive(tmp_path):
    results = published(tmp_path)
    outcome = outcome_of(results, "W6")
    assert outcome.verdict == "inconclusive"
    assert "needs both classes" in outcome.note


@pytest.mark.parametrize(
    ("edge", "near", "expected"),
    [
        (120.0, 96.0, "reproduced"),
        (104.0, 96.0, "not_reproduced"),
        (120.0, 80.0, "not_reproduced"),
        (123.9, 96.0, "inconclusive"),
    ],
)
def test_w7_edge_and_weaker_band(tmp_path, edge, near, expected):
    results = published(tmp_path)
    content = tree.bands(110.0)
    content["clusters"][0] |= {"centre": near, "centre_ci": [near - 0.2, near + 0.2]}
    content["band"] |= {"edge": edge, "edge_ci": [edge - 0.5, edge + 0.5]}
    tree.put_json(tmp_path / "pretrained/Gemma-7B/bands.json", content)
    assert outcome_of(results, "W7").verdict == expected


@pytest.mark.parametrize(("retrieval", "expected"), [(0.05, "reproduced"), (0.9, "not_reproduced")])
def test_w8_ratio_of_rpd_to_rfis(tmp_path, retrieval, expected):
    results = published(tmp_path)

    def change(frame):
        is_retrieval = frame["head"] < 2
        frame["head_class"] = np.where(is_retrieval, "retrieval", "positional")
        frame["d_ratio"] = np.where(is_retrieval, retrieval, 1.0) * (1 + 0.01 * frame["layer"])

    with_heads(tmp_path, "Gemma-7B", change)
    assert outcome_of(results, "W8").verdict == expected


def test_w8_without_retrieval_heads_is_inconclusive(tmp_path):
    results = published(tmp_path)
    with_heads(tmp_path, "Gemma-7B", lambda frame: frame.__setitem__("head_class", "positional"))
    assert outcome_of(results, "W8").verdict == "inconclusive"


def with_profile(root, model: str, order: int) -> None:
    path = root / "pretrained" / model / "behavior.npz"
    with np.load(path) as store:
        data = {key: store[key] for key in store.files}
    layers = data["qr"].shape[1]
    profile = np.exp(np.linspace(0, 3, layers))[::order][None, :, None]
    noise = 1 + 0.001 * np.random.default_rng(0).random(data["qr"].shape)
    np.savez(path, **(data | {"qr": profile * noise}))


@pytest.mark.parametrize(("order", "expected"), [(1, "reproduced"), (-1, "not_reproduced")])
def test_w9_compares_layer_profiles(tmp_path, order, expected):
    results = published(tmp_path)
    with_profile(tmp_path, "Qwen3-4B", 1)
    with_profile(tmp_path, "Qwen3-1.7B", order)
    assert outcome_of(results, "W9").verdict == expected


def test_published_weights_cannot_be_compared_with_their_initialisation(tmp_path):
    outcome = outcome_of(published(tmp_path), "C7-smollm2")
    assert outcome.verdict == "inconclusive"
    assert "initialisation are unknown" in outcome.note


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "reproduced"),
        ({"c8_rate": 0.2, "c8_rate_ci": [0.1, 0.3]}, "not_reproduced"),
        ({"c8_chance": 0.95}, "inconclusive"),
    ],
)
def test_c8_on_published_weights(tmp_path, changes, expected):
    results = published(tmp_path)
    content = tree.bands(20.0)
    content["band"] |= changes
    tree.put_json(tmp_path / "pretrained/smollm2-135m/bands.json", content)
    assert outcome_of(results, "C8-smollm2").verdict == expected


@pytest.mark.parametrize("name", ["W1", "W6", "W7", "W9", "W3-smollm2"])
def test_absent_models_are_not_testable(tmp_path, name):
    outcome = outcome_of(Results(tmp_path, presets.preset(models=[presets.pretrained("other")])), name)
    assert outcome.verdict == "not_testable"
    assert "in this preset" in outcome.note
