"""Planted heads: their logits are what was planted, and extraction and classes recover them from real RFIS and RPD."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hwh_core import rope
from hwh_core.config import BandConfig
from hwh_core.gpband import oracle
from hwh_core.gpband import synthetic as syn
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.extraction import analyse

ROOT = Path(__file__).resolve().parents[2]
SIZES = syn.HeadSizes(head_dim=64, length=128, num_queries=8)
QUICK = BandConfig(bootstrap_resamples=50)
THETA = 1e4


@pytest.fixture(scope="module")
def check():
    """scripts/synthetic_check.py as a module (it holds the torch half)."""
    spec = importlib.util.spec_from_file_location("synthetic_check", ROOT / "scripts" / "synthetic_check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks its annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def noise_layer(check):
    return syn.untrained_layer(SIZES, rope.inverse_frequencies(64, THETA), 2, 3, 0, check.measure)


def logits(vectors: syn.Vectors, inv_freq: np.ndarray, sizes: syn.HeadSizes) -> np.ndarray:
    """Rotated scaled dot products [Q, T], written out with complex numbers."""
    groups = sizes.groups
    q, k = (v[:, :groups] + 1j * v[:, groups:] for v in (vectors.q, vectors.k))
    positions = np.arange(sizes.length)
    q = q * np.exp(1j * np.outer(positions[-sizes.num_queries :], inv_freq))
    k = k * np.exp(1j * np.outer(positions, inv_freq))
    return sizes.scaling * (q @ k.conj().T).real


def test_positional_head_has_the_planted_logits():
    rng = np.random.default_rng(0)
    amplitudes, phases = rng.uniform(0, 3, 32), rng.uniform(0, 2 * np.pi, 32)
    inv_freq = rope.inverse_frequencies(64, THETA)
    distance = np.arange(120, 128)[:, None] - np.arange(128)[None, :]
    expected = sum(a * np.cos(w * distance + p) for a, w, p in zip(amplitudes, inv_freq, phases, strict=True))
    np.testing.assert_allclose(
        logits(syn.positional_head(SIZES, amplitudes, phases), inv_freq, SIZES), expected, atol=1e-9
    )


def test_local_head_is_highest_at_distance_zero():
    values = logits(syn.local_head(SIZES, 6.0), rope.inverse_frequencies(64, THETA), SIZES)
    assert values.argmax(axis=1).tolist() == list(range(120, 128)) or values.max() == pytest.approx(6.0)
    np.testing.assert_allclose(values[np.arange(8), np.arange(120, 128)], 6.0)


def test_retrieval_head_matches_one_visible_key():
    rng = np.random.default_rng(0)
    head = syn.retrieval_head(SIZES, 15.0, 10.0, rng)
    plain = logits(head, np.zeros(32), SIZES)
    assert (plain.argmax(axis=1) <= np.arange(120, 128)).all()
    np.testing.assert_allclose(plain.max(axis=1), 10.0)
    used = np.abs(head.k).sum(axis=0) > 0
    assert used.nonzero()[0].tolist() == [*range(16, 32), *range(48, 64)]


def test_rpd_is_zero_without_rotation(check):
    flat = syn.untrained_layer(SIZES, np.zeros(32), 2, 2, 0, check.measure)
    assert flat.rpd.max() == 0.0
    assert flat.rfis.max() > 0.0


def test_noise_follows_the_closed_form_null(check):
    sizes = syn.HeadSizes(head_dim=64, length=256, num_queries=16)
    layer = syn.untrained_layer(sizes, rope.inverse_frequencies(64, THETA), 6, 8, 0, check.measure)
    curve = layer.rpd.mean(axis=(0, 1, 2))
    ratio = curve / syn.closed_form_null(layer.inv_freq, 256, 16)
    assert np.abs(np.log(ratio / np.median(ratio))).max() < 0.35
    rfis = layer.rfis.mean(axis=(0, 1, 2))
    assert np.abs(np.log(rfis / np.median(rfis))).max() < 0.35


@pytest.mark.parametrize("group", [6, 12, 18])
def test_planted_group_is_recovered(noise_layer, check, group):
    heads = [syn.single_group(SIZES, group, 3.0, phase) for phase in (0.0, 2.0)]
    result = analyse(syn.plant(noise_layer, lambda _: heads, check.measure), SIZES.length, QUICK, 0)
    assert result.verdict == "peak"
    assert result.peak == pytest.approx(group, abs=0.5)
    assert result.point.rfis_peak[0] == pytest.approx(group, abs=0.5)
    assert result.point.agreement[0] == 1.0


def test_nulls_show_no_band(noise_layer, check):
    verdicts = {case["kind"]: case["verdict"] for case in oracle.null_cases(noise_layer, THETA, QUICK, check.measure)}
    assert verdicts == {"untrained": "none", "no_rotation": "none"}


def test_planted_heads_get_their_class(check):
    rows = oracle.classify_planted_heads(SIZES, THETA, 3, QUICK, 1, check.measure)
    assert [row["planted"] for row in rows] == list(oracle.PLANTED_CLASSES)
    for row in rows:
        if row["planted"] in ("positional", "retrieval"):
            assert row["found"] == row["planted"], row
    assert next(row for row in rows if row["planted"] == "local")["found"] == "positional"
    positional = [row["d_ratio"] for row in rows if row["planted"] == "positional"]
    retrieval = [row["d_ratio"] for row in rows if row["planted"] == "retrieval"]
    assert max(retrieval) < 0.5 < min(positional)


def test_summary_counts_misses_and_slow_groups():
    def case(angle: float, error: float | None) -> dict:
        recovered = error is not None and abs(error) <= 0.5
        return {"angle": angle, "error": error, "recovered": recovered, "width": 1.0}

    heads = [{"planted": "retrieval", "found": "mixed"}, {"planted": "positional", "found": "positional"}]
    heads.append({"planted": "local", "found": "retrieval"})
    single = [case(5.0, 0.1), case(2.0, -0.9), case(0.02, None)]
    found = oracle.summarise(single, single[:1], [{"verdict": "peak"}], heads)
    assert (found["S1"]["n"], found["S1"]["recovered"], found["S1"]["max_abs_error"]) == (2, 1, 0.9)
    assert found["S1"]["misses"] == [single[1]]
    assert found["S1"]["all_groups_of_the_range"]["n"] == 3
    assert found["S1"]["largest_missed_angle"] == 2.0
    assert (found["S2"]["n"], found["S2"]["right"]) == (2, 1)
    assert found["null"]["failures"] == [{"verdict": "peak"}]


def test_script_writes_synthetic_json(check, tmp_path, monkeypatch):
    settings = {"seed": 0, "band": {"bootstrap_resamples": 20}, "length": 64, "num_queries": 4, "num_samples": 2}
    settings |= {"num_seeds": 1, "rope_thetas": [1e4]}
    output = tmp_path / "synthetic.json"
    script = str(ROOT / "scripts" / "synthetic_check.py")
    monkeypatch.setattr("sys.argv", [script, "--settings", json.dumps(settings), "--output", str(output)])
    check.main()
    record = json.loads(output.read_text())
    assert record["S1"]["n"] > 5
    assert record["S1"]["recovered"] + len(record["S1"]["misses"]) == record["S1"]["n"]
    assert record["S2"]["n"] == 6
    assert {case["seed"] for case in record["cases"]["single_group"]} == {0}
    assert (tmp_path / "synthetic.json.manifest.json").is_file()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: syn.HeadSizes(7, 64, 4), "head_dim"),
        (lambda: syn.HeadSizes(64, 64, 65), "num_queries"),
        (lambda: syn.positional_head(SIZES, np.ones(3), np.ones(32)), "amplitudes"),
        (lambda: syn.retrieval_head(SIZES, 31.0, 1.0, np.random.default_rng(0)), "boundary"),
    ],
)
def test_bad_sizes_are_named(call, words):
    with pytest.raises(BandError, match=words):
        call()


def test_unknown_setting_is_named(check):
    with pytest.raises(ValueError, match="'sedes'"):
        check.parse_settings('{"seed": 0, "band": {}, "sedes": 3}')
