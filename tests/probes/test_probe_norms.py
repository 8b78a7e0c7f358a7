"""Norms of queries and keys by frequency, on small random models of several families."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf

from hwh_core.probes.capture import capture
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.norms import group_norms, measure_norms
from hwh_core.probes.pretrained import load_model, load_tokenizer
from hwh_core.probes.text import token_windows

ROOT = Path(__file__).resolve().parents[2]

COMMON = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def small(family: str) -> torch.nn.Module:
    """A random model of a family of the paper."""
    torch.manual_seed(0)
    config = {
        "llama3.1": lambda: tf.LlamaConfig(**COMMON, rope_parameters=LLAMA3),
        "qwen3": lambda: tf.Qwen3Config(**COMMON, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        "gemma": lambda: tf.GemmaConfig(**COMMON, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    }[family]()
    return tf.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", ["llama3.1", "qwen3", "gemma"])
def test_norms_bound_what_a_frequency_adds(family, ids):
    model = small(family)
    norms = measure_norms(model, ids, 16, progress=False)
    assert norms.q_norm.shape == norms.k_norm.shape == (2, 2, 4, 4)
    layers = capture(model, ids[1], 16)
    np.testing.assert_allclose(norms.inv_freq, layers[0].inv_freq.double().numpy())
    for row, layer in enumerate(layers):
        assert norms.scaling[row] == pytest.approx(layer.scaling * layer.attention_scaling**2)
        q, k = layer.q.reshape(4, 16, 2, 4).double(), layer.k.reshape(2, 64, 2, 4).double()
        lengths = q.square().sum(dim=2).mean(dim=1).sqrt()
        np.testing.assert_allclose(norms.q_norm[1, row], lengths.numpy(), rtol=1e-5)
        # Query heads 0 and 1 read the first key-value head.
        keys = k.square().sum(dim=2).mean(dim=1).sqrt().numpy()
        np.testing.assert_allclose(norms.k_norm[1, row], keys[[0, 0, 1, 1]], rtol=1e-5)


def test_pairing_and_unrotated_dimensions():
    values = torch.tensor([[[3.0, 0.0, 4.0, 0.0, 5.0, 12.0]]])
    half = group_norms(values, 2, "half")
    torch.testing.assert_close(half, torch.tensor([[5.0, 0.0, 13.0]]))
    interleaved = group_norms(values, 2, "interleaved")
    torch.testing.assert_close(interleaved, torch.tensor([[3.0, 4.0, 13.0]]))


def test_files_hold_what_was_measured(ids, tmp_path):
    norms = measure_norms(small("llama3.1"), ids, 8, progress=False)
    norms.save(tmp_path / "norms.npz")
    with np.load(tmp_path / "norms.npz") as stored:
        np.testing.assert_array_equal(stored["q_norm"], norms.q_norm)
        assert stored["layer_index"].tolist() == [0, 1]
    assert json.loads((tmp_path / "norms.json").read_text())["num_samples"] == 2


def test_the_program_measures_the_windows_of_the_probe(random_llama, corpus, tmp_path, monkeypatch):
    settings = {
        "model": {"name": "random", "title": "Random"}, "seed": 3, "held_out_prose_source": "prose",
        "probe": {"length": 48, "num_samples": 2, "num_queries": 16},
    }  # fmt: skip
    program = ROOT / "scripts" / "qk_norms.py"
    arguments = ["--settings", json.dumps(settings), "--model", random_llama, "--documents", corpus.path]
    monkeypatch.setattr(sys, "argv", [str(program), *map(str, [*arguments, "--output", tmp_path])])
    runpy.run_path(str(program), run_name="__main__")
    about = json.loads((tmp_path / "norms.json").read_text())
    assert (about["model"], about["num_samples"], about["length"]) == ("random", 2, 48)
    manifest = json.loads((tmp_path / "norms.npz.manifest.json").read_text())
    assert manifest["script"] == "scripts/qk_norms.py"
    samples = token_windows(corpus.texts, load_tokenizer(random_llama), 48, 2, 3)
    expected = measure_norms(load_model(random_llama), samples, 16, progress=False)
    with np.load(tmp_path / "norms.npz") as stored:
        assert stored["q_norm"].shape == (2, 2, 6, 4)
        np.testing.assert_allclose(stored["q_norm"], expected.q_norm, rtol=1e-6)


def test_a_model_without_rotation_is_refused(ids):
    torch.manual_seed(0)
    config = tf.GPT2Config(vocab_size=100, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(ProbeError):
        measure_norms(tf.GPT2LMHeadModel(config).eval(), ids, 8, progress=False)
