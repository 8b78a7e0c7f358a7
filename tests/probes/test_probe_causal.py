"""Heads without output, frequencies without rotation: what they do, that nothing stays, and the checks made of them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf
from probe_helpers import controlled_model

from hwh_core.config import CausalConfig
from hwh_core.probes import causal
from hwh_core.probes.capture import capture
from hwh_core.probes.errors import UnsupportedModelError
from hwh_core.probes.interventions import masked_heads, rotation_off
from hwh_core.probes.pretrained import load_model

ROOT = Path(__file__).resolve().parents[2]
COMMON = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": None,
}  # fmt: skip
GROUPED = COMMON | {"num_key_value_heads": 2, "head_dim": 8}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**GROUPED),
    "llama, yarn": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=YARN),
    "qwen3": lambda: tf.Qwen3Config(**GROUPED),
    "gemma": lambda: tf.GemmaConfig(**GROUPED),
    "phi3": lambda: tf.Phi3Config(**COMMON, num_key_value_heads=2, bos_token_id=1, eos_token_id=2),
    "gpt-neox": lambda: tf.GPTNeoXConfig(**COMMON, rotary_pct=0.5),
}


def build(family: str) -> torch.nn.Module:
    if family == "hwh":
        return controlled_model()
    torch.manual_seed(0)
    return tf.AutoModelForCausalLM.from_config(CONFIGS[family]()).eval()


@pytest.fixture(params=[*CONFIGS, "hwh"])
def model(request):
    """A small random model of every family, and of our own class."""
    return build(request.param)


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def projection(model, layer: int):
    """Weights of the output projection of a layer, and the number of its heads."""
    if model.config.model_type == "hwh":
        return model.model.layers[layer].mixer.o_proj.weight, 3
    attention = next(m for m in model.modules() if getattr(m, "layer_idx", None) == layer and hasattr(m, "config"))
    return (attention.dense if hasattr(attention, "dense") else attention.o_proj).weight, 4


def test_a_masked_head_is_one_whose_output_weights_are_zero(model, ids):
    with masked_heads(model, {1: (0, 2)}):
        masked = logits(model, ids)
    untouched = logits(model, ids)
    weight, heads = projection(model, 1)
    before = weight.detach().clone()
    with torch.no_grad():
        weight.unflatten(1, (heads, -1))[:, [0, 2]] = 0
    torch.testing.assert_close(masked, logits(model, ids))
    assert not torch.allclose(masked, untouched)
    with torch.no_grad():
        weight.copy_(before)
    assert torch.equal(logits(model, ids), untouched)


def test_rotation_off_is_a_frequency_of_zero(model, ids):
    """The model's own logits, rebuilt from q and k with the frequencies of some groups set to 0 in one layer."""
    untouched = logits(model, ids)
    groups = capture(model, ids[0], 16)[1].inv_freq.numel()
    chosen = (0, groups - 1)
    with rotation_off(model, {1: chosen}):
        changed = logits(model, ids)
        seen = _rotated(model, ids[0], 1)
    assert not torch.allclose(changed, untouched, rtol=0, atol=1e-6)
    before = capture(model, ids[0], 16)[1]
    still = before.inv_freq.clone()
    still[list(chosen)] = 0
    expected = type(before)(**{**vars(before), "inv_freq": still}).logits()
    torch.testing.assert_close(seen, expected.float(), rtol=1e-3, atol=1e-4)
    assert torch.equal(logits(model, ids), untouched)


def _rotated(model, sample, layer: int):
    """Logits of attention of one layer as the model computes them, last 16 queries."""
    from hwh_core.probes.observers import adapter_for

    class Watch:
        found = None

        def rotated(self, event):
            pass

        def attended(self, event):
            if event.layer == layer:
                k = event.k.repeat_interleave(event.q.shape[1] // event.k.shape[1], dim=1)
                self.found = event.scaling * event.q[0, :, -16:] @ k[0].transpose(-1, -2)

    watch = Watch()
    with torch.no_grad():
        adapter_for(model).forward(model, sample[None], watch)
    return watch.found


def test_nothing_stays_after_an_error(model, ids):
    untouched, before = logits(model, ids), {k: v.clone() for k, v in model.state_dict().items()}
    for change in (masked_heads(model, {0: (1,)}), rotation_off(model, {0: (0, 1)})):
        with pytest.raises(IndexError), change:
            logits(model, ids + 10**6)
    assert torch.equal(logits(model, ids), untouched)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_what_a_model_does_not_have_is_named(ids):
    model = build("llama")
    with pytest.raises(UnsupportedModelError, match=r"no attention in layers \[7\]"), masked_heads(model, {7: (0,)}):
        pass
    with pytest.raises(UnsupportedModelError, match="there is no head 4"), masked_heads(model, {0: (4,)}):
        pass
    gpt2 = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=100, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedModelError, match="apply_rotary_pos_emb"), rotation_off(gpt2, {0: (0,)}):
        pass


# ------------------------------------------------------------------ the checks


def table_of_heads() -> pd.DataFrame:
    """Two layers of six heads: 0 to 2 retrieve in layer 0, the last in layer 1; others are positional or mixed."""
    kinds = [*["retrieval"] * 3, *["positional"] * 3, *["positional"] * 4, "mixed", "retrieval"]
    return pd.DataFrame(
        {
            "layer": np.repeat([0, 1], 6), "head": np.tile(np.arange(6), 2), "head_class": kinds,
            "s_ret": np.linspace(0, 1, 12), "qr": np.arange(12.0), "boundary": np.repeat([1.4, 2.0], 6),
        }
    )  # fmt: skip


BANDS = {
    "band": {"layers": [{"layer": 0, "verdict": "peak", "peak": 0.6}, {"layer": 1, "verdict": "none", "peak": None}]}
}


def test_sets_are_what_the_files_say_and_controls_have_their_size_in_every_layer():
    heads = table_of_heads()
    sets = {one.name: one for one in [*causal.head_sets(heads), *causal.frequency_sets(heads, BANDS, 4)]}
    assert sets["retrieval heads"].places == {0: (0, 1, 2), 1: (5,)}
    assert sets["positional heads"].places == {0: (3, 4, 5), 1: (0, 1, 2, 3)}
    assert sets[causal.TOP_QR].places == {1: (5,)}
    assert sets[causal.BELOW].places == {0: (2, 3), 1: (3,)}
    assert sets[causal.BAND].places == {0: (0, 1)}
    draws = [causal.random_like(sets["retrieval heads"], 6, n, np.random.default_rng(n)) for n in range(200)]
    for one in draws:
        assert {layer: len(set(places)) for layer, places in one.places.items()} == {0: 3, 1: 1}
    # 3 of 6 in one layer and 1 of 6 in the other: 10/6 of 4 places are shared on average.
    shared = np.mean([causal.overlap(sets["retrieval heads"], one) for one in draws])
    assert shared == pytest.approx((1.5 + 1 / 6) / 4, abs=0.05)


def imagined(effect: float, random_effect: float, samples: int = 40, draws: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = rng.normal(3, 1, samples)
    rows = []

    def add(name: str, kind: str, draw: int | None, values: np.ndarray) -> None:
        rows.extend(
            {"intervention": name, "kind": kind, "places": 2, "draw": draw, "overlap": None if draw is None else 0.5,
             "measure": "loss", "sample": n, "value": v} for n, v in enumerate(values)
        )  # fmt: skip

    add("none", "none", None, base)
    add("x", "heads", None, base + effect + 0.05 * rng.normal(size=samples))
    for draw in range(draws):
        add("x", "heads", draw, base + random_effect + 0.05 * rng.normal(size=samples))
    return pd.DataFrame(rows).astype({"draw": "Int64"})


def test_the_summary_is_paired_and_set_against_random():
    (row,) = causal.summarise(imagined(0.5, 0.2), 0).to_dict("records")
    assert row["change"] == pytest.approx(0.5, abs=0.05)
    # The spread between samples (1.0) is in both; paired it is out of the interval.
    assert 0.45 < row["change_low"] < row["change"] < row["change_high"] < 0.55
    assert row["over_random"] == pytest.approx(0.3, abs=0.05)
    assert 0.25 < row["over_random_low"] < row["over_random_high"] < 0.35
    assert row["random_low"] <= row["random_change"] <= row["random_high"]
    (same,) = causal.summarise(imagined(0.2, 0.2), 0).to_dict("records")
    assert same["over_random_low"] < 0 < same["over_random_high"]
    assert "against random" in causal.sentences(causal.summarise(imagined(0.2, 0.2), 0))[0]


@pytest.fixture
def program(random_llama, corpus, tmp_path, monkeypatch):
    """Call scripts/causal_checks.py on a probe of random_llama; takes the name of the output and more arguments."""
    probe = tmp_path / "probe"
    probe.mkdir()
    inv_freq = capture(load_model(random_llama), torch.arange(5, 40), 4)[0].inv_freq.double().numpy()
    maps = np.full((1, 2, 6, len(inv_freq)), 0.1, np.float32)
    np.savez(
        probe / "probe.npz", rfis=maps, rpd=maps, inv_freq=inv_freq, null=np.ones(len(inv_freq)),
        sample_weight=np.ones(1), layer_index=np.arange(2),
    )  # fmt: skip
    table_of_heads().assign(ld=0.5, rfis_total=1.0, rpd_total=1.0).to_csv(probe / "heads.csv", index=False)
    (probe / "bands.json").write_text(json.dumps(BANDS))
    path = ROOT / "scripts" / "causal_checks.py"

    def call(output: Path, *more, seed: int = 0) -> None:
        settings = {
            "model": {"name": "random", "title": "Random"}, "seed": seed, "held_out_prose_source": "prose",
            "causal": {"length": 512, "num_windows": 2, "num_needles": 2, "random_draws": 2},
        }  # fmt: skip
        arguments = ["--settings", json.dumps(settings), "--model", random_llama, "--probe", probe / "probe.npz"]
        rest = ["--documents", corpus.path, "--output", output, *more]
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments + rest)])
        runpy.run_path(str(path), run_name="__main__")

    return call


def test_the_program_writes_both_tables(program, tmp_path):
    output = tmp_path / "causal.csv"
    program(output)
    table, summary = pd.read_csv(output), pd.read_csv(tmp_path / "causal_summary.csv")
    # The unchanged model, and five sets with two draws each; two values of every measure.
    assert len(table) == (1 + 5 * 3) * 3 * 2
    assert set(summary["measure"]) == set(causal.MEASURES)
    assert len(summary) == 5 * 3
    losses = table[(table["measure"] == "loss") & table["draw"].isna()].set_index("intervention")["value"]
    assert losses["none"].mean() != losses["retrieval heads"].mean()
    assert (tmp_path / "causal.csv.manifest.json").is_file()


def test_the_program_goes_on_after_a_kill(program, tmp_path, monkeypatch, capsys):
    whole, output = tmp_path / "whole" / "causal.csv", tmp_path / "causal.csv"
    program(whole)
    measure, calls = causal.Measurement.__call__, []

    def killed_at_the_sixth(self):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return measure(self)

    with monkeypatch.context() as patch:
        patch.setattr(causal.Measurement, "__call__", killed_at_the_sixth)
        with pytest.raises(KeyboardInterrupt):
            program(output)
    assert not output.exists()
    with pytest.raises(SystemExit) as ended:
        program(output, seed=1)
    assert ended.value.code == 1
    assert "seed was 0, is 1" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(causal.Measurement, "__call__", lambda self: calls.append(1) or measure(self))
        calls.clear()
        program(output)
    assert len(calls) == 16 - 5
    assert output.read_bytes() == whole.read_bytes()
    assert not (tmp_path / causal.UNFINISHED).exists()
    program(output, "--restart", seed=1)
    assert output.read_bytes() != whole.read_bytes()


def test_a_length_beyond_the_model_is_refused(random_llama, corpus):
    from hwh_core.probes.errors import ProbeError
    from hwh_core.probes.pretrained import load_tokenizer

    model = load_model(random_llama)
    with pytest.raises(ProbeError, match=r"causal\.length"):
        causal.Measurement(model, load_tokenizer(random_llama), corpus.texts, CausalConfig(length=5000), 0)
