"""Maps of whole models, the jobs of the workflow and their files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as tf
from probe_helpers import HYBRID_SHAPE, controlled_model

from hwh_core.gpband.maps import load_maps
from hwh_core.gpband.null import closed_form_null
from hwh_core.probes import measure
from hwh_core.probes.capture import capture
from hwh_core.probes.errors import ProbeError, UnsupportedModelError
from hwh_core.probes.jobs import probe_controlled, probe_length, probe_pretrained
from hwh_core.probes.maps import ProbeMaps
from hwh_core.probes.measure import measure_maps
from hwh_kernels.rfis_rpd_reference import rfis_rpd_per_query

FILE_KEYS = {"rfis", "rpd", "inv_freq", "null", "sample_weight", "layer_index"}
RECORD_KEYS = {
    "model", "rope_theta", "head_dim", "num_layers", "num_heads", "num_kv_heads", "length", "training_length",
    "eval_length_factor", "num_queries", "num_samples", "seed", "qk_norm", "max_logit_error", "backend", "seconds",
    "undefined",
}  # fmt: skip


def test_maps_are_those_of_the_float64_reference(ids):
    model = controlled_model()
    maps = measure_maps(model, None, ids, 16, progress=False)
    assert maps.rpd.shape == maps.rfis.shape == (2, 2, 3, 8)
    assert maps.rpd.dtype == np.float32
    for sample in range(2):
        for place, layer in enumerate(capture(model, ids[sample], 16)):
            rfis, rpd = rfis_rpd_per_query(
                layer.q.double(), layer.k.double(), layer.inv_freq, layer.query_positions, layer.key_positions,
                scaling=layer.scaling, angle_dtype=torch.float32,
            )  # fmt: skip
            np.testing.assert_allclose(maps.rfis[sample, place], rfis.mean(1), rtol=1e-3, atol=1e-8)
            np.testing.assert_allclose(maps.rpd[sample, place], rpd.mean(1), rtol=1e-3, atol=1e-8)
    assert float(maps.rpd.max()) > 1e-3
    np.testing.assert_allclose(maps.inv_freq, 1e4 ** (-np.arange(8) / 8), rtol=1e-6)
    np.testing.assert_allclose(maps.null, closed_form_null(maps.inv_freq, 64, 16), rtol=1e-12)
    assert set(maps.description) >= RECORD_KEYS
    assert maps.description["rope_theta"] == 10000.0
    assert maps.description["qk_norm"] is True
    assert maps.description["max_logit_error"] < 1e-5


def test_both_backends_agree(ids):
    from hwh_kernels.rfis_rpd_native import native_works

    model = controlled_model()
    eager = measure_maps(model, None, ids, 16, backend="torch", progress=False)
    other = "cpu-native" if native_works() else "reference"
    native = measure_maps(model, None, ids, 16, backend=other, progress=False)
    assert (eager.description["backend"], native.description["backend"]) == ("torch-eager", other)
    for name in ("rfis", "rpd"):
        np.testing.assert_allclose(getattr(native, name), getattr(eager, name), rtol=2e-3, atol=1e-8)


def test_batches_do_not_change_the_maps(ids, monkeypatch):
    model = controlled_model()
    together = measure_maps(model, None, ids, 16, progress=False)
    monkeypatch.setattr(measure, "BATCH_TOKENS", 1)
    apart = measure_maps(model, None, ids, 16, progress=False)
    np.testing.assert_allclose(together.rpd, apart.rpd, rtol=1e-3, atol=1e-8)


def test_model_without_position_encoding_has_no_rpd(ids):
    maps = measure_maps(controlled_model(architecture="hwh_std", **HYBRID_SHAPE), None, ids, 8, progress=False)
    measured = np.isfinite(maps.rpd)
    assert measured.any()
    assert not maps.rpd[measured].any()
    assert float(maps.rfis[measured].max()) > 1e-4
    assert not maps.inv_freq.any()
    assert maps.description["rope_theta"] is None
    assert maps.description["undefined"] == int((~measured).sum())


def test_layers_with_other_frequencies_have_nulls_of_their_own(ids):
    config = tf.Gemma3TextConfig(
        vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    maps = measure_maps(tf.Gemma3ForCausalLM(config), None, ids, 8, progress=False)
    assert maps.null.shape == (2, 8)
    assert maps.null[0, -1] < maps.null[0, 2]
    assert maps.description["windows"] == [16]


def test_wrong_base_in_the_config_is_noticed(ids):
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    model.config.rope_parameters["rope_theta"] = 500000.0
    with pytest.raises(UnsupportedModelError, match="rope_theta 500000"):
        measure_maps(model, None, ids, 4, progress=False)


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        ([[1, 2, 900]], "token 900 is outside"),
        (np.zeros((1, 2, 3), int), "shape"),
        (["some text"], "without a tokenizer"),
        (np.zeros((0, 4), int), "none of them 0"),
    ],
)
def test_bad_samples_are_named(samples, named):
    with pytest.raises(ProbeError, match=named):
        measure_maps(controlled_model(), None, samples, 2, progress=False)


def test_texts_need_equal_lengths(corpus):
    tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
    with pytest.raises(ProbeError, match="equally long"):
        measure_maps(controlled_model(), tokenizer, ["the river", "the river would be long because"], 2, progress=False)
    maps = measure_maps(controlled_model(), tokenizer, ["the river of winter"] * 2, 2, progress=False)
    assert maps.rpd.shape[0] == 2


def test_files_are_read_by_the_band_extraction(ids, tmp_path):
    model, initial = controlled_model(), controlled_model(1)
    maps = measure_maps(model, None, ids, 16, progress=False)
    before = measure_maps(initial, None, ids, 16, progress=False)
    from dataclasses import replace

    maps = replace(maps, rfis_initial=before.rfis, rpd_initial=before.rpd)
    maps.save(tmp_path / "probe.npz")
    read = load_maps(tmp_path / "probe.npz")
    np.testing.assert_allclose(read.rpd, maps.rpd, rtol=1e-6)
    np.testing.assert_allclose(read.rpd_initial, before.rpd, rtol=1e-6)
    again = ProbeMaps.load(tmp_path / "probe.npz")
    np.testing.assert_array_equal(again.rfis, maps.rfis)
    assert again.description == maps.description
    assert sorted(p.name for p in tmp_path.iterdir()) == ["probe.json", "probe.npz"]
    with pytest.raises(ProbeError, match="does not exist"):
        ProbeMaps.load(tmp_path / "other.npz")


def controlled_settings(**probe):
    probe = {"num_samples": 3, "num_queries": 16, "eval_length_factors": [0.5, 1.0, 2.0]} | probe
    return {
        "model": {"name": "c", "rope_theta": 10000.0, "length": 48, "qk_norm": True, "seed": 4},
        "probe": probe,
        "seed": 0,
    }


@pytest.fixture
def controlled_folders(tmp_path):
    for name, seed in (("model", 1), ("initial", 0)):
        controlled_model(seed).save_pretrained(tmp_path / name)
    return tmp_path / "model", tmp_path / "initial"


def test_controlled_job(controlled_folders, corpus):
    found = dict(probe_controlled(controlled_settings(), *controlled_folders, corpus.store))
    assert list(found) == [0.5, 1.0, 2.0]
    for factor, maps in found.items():
        assert maps.rpd.shape == maps.rpd_initial.shape == maps.rfis_initial.shape == (3, 2, 3, 8)
        assert maps.description["length"] == 48 * factor
        assert maps.description["training_length"] == 48
        assert maps.description["eval_length_factor"] == factor
        assert set(maps.description) >= RECORD_KEYS
        assert set(maps.arrays()) == FILE_KEYS | {"rfis_initial", "rpd_initial"}
        assert not np.allclose(maps.rpd, maps.rpd_initial)
    again = dict(probe_controlled(controlled_settings(eval_length_factors=[1.0]), *controlled_folders, corpus.store))
    np.testing.assert_array_equal(again[1.0].rpd, found[1.0].rpd)


def test_controlled_job_names_lengths_that_are_too_short(controlled_folders, corpus):
    with pytest.raises(ProbeError, match="fewer than num_queries 40"):
        list(probe_controlled(controlled_settings(num_queries=40), *controlled_folders, corpus.store))
    with pytest.raises(ProbeError, match="no whole number"):
        probe_length(0.3, 128, 4)


def test_settings_that_are_missing_are_named(controlled_folders, corpus):
    settings = controlled_settings()
    del settings["probe"]["num_queries"]
    with pytest.raises(ProbeError, match=r"'probe\.num_queries'"):
        list(probe_controlled(settings, *controlled_folders, corpus.store))


def pretrained_settings(**probe):
    return {
        "model": {"name": "random", "title": "Random", "candidate_bands": []},
        "probe": {"length": 64, "num_samples": 2, "num_queries": 16, "backend": "auto"} | probe,
        "held_out_prose_source": "prose",
        "seed": 0,
    }


def test_pretrained_job(random_llama, corpus):
    maps = probe_pretrained(pretrained_settings(), random_llama, corpus.path)
    assert maps.rpd.shape == (2, 2, 6, 4)
    assert maps.rfis_initial is None
    assert maps.description["num_kv_heads"] == 2
    assert maps.description["text_source"] == "prose"


def test_pretrained_job_refuses_what_does_not_fit(random_llama, corpus):
    with pytest.raises(ProbeError, match="5000 tokens are more than the 4096 positions"):
        probe_pretrained(pretrained_settings(length=5000), random_llama, corpus.path)
    with pytest.raises(ProbeError, match=r"no document of source 'poems'; sources there: \['other', 'prose'\]"):
        probe_pretrained(pretrained_settings() | {"held_out_prose_source": "poems"}, random_llama, corpus.path)
    with pytest.raises(ProbeError, match=r"config\.json is missing"):
        probe_pretrained(pretrained_settings(), corpus.path.parent, corpus.path)


def test_programs_write_their_files(random_llama, corpus, controlled_folders, tmp_path):
    """The scripts themselves: outputs, manifests, one sentence and exit code 1 for a bad setting."""
    import subprocess
    import sys
    from pathlib import Path

    scripts = Path(__file__).resolve().parents[2] / "scripts"

    def program(name, settings, *options):
        command = [sys.executable, str(scripts / f"{name}.py"), "--settings", json.dumps(settings), *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True)

    out = tmp_path / "out"
    result = program(
        "probe_controlled", controlled_settings(num_samples=2), "--model", controlled_folders[0],
        "--initial", controlled_folders[1], "--store", corpus.store, "--output", out,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    expected = [f"probe_x{f}.{e}" for f in ("0.5", "1", "2") for e in ("json", "npz", "npz.manifest.json")]
    assert sorted(path.name for path in out.iterdir()) == sorted(expected)
    manifest = json.loads((out / "probe_x1.npz.manifest.json").read_text())
    assert manifest["script"] == "scripts/probe_controlled.py"
    assert manifest["backend"] in ("torch-eager", "cpu-native", "triton")
    bad = program(
        "probe_pretrained", pretrained_settings(length=5000), "--model", random_llama, "--documents", corpus.path,
        "--output", tmp_path / "none",
    )  # fmt: skip
    assert bad.returncode == 1
    assert bad.stderr.strip().splitlines()[-1].startswith("error: pretrained.probe.length: 5000")
    assert not (tmp_path / "none").exists()
