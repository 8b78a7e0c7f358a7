"""All kinds of heads of our own models in one pass, and the record of a model through the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf
from probe_helpers import HYBRID_SHAPE, SHAPE, controlled_model
from torch.nn import functional as F

from hwh_core.config import BandConfig
from hwh_core.heads import FULL_ATTENTION, GATED_DELTANET, SLIDING_WINDOW
from hwh_core.modeling import build_model
from hwh_core.probes.errors import ProbeError, UnsupportedModelError
from hwh_core.probes.hybrid import probe_hybrid
from hwh_core.probes.hybrid_capture import delta_net_groups, stream_weights
from hwh_core.probes.maps import ProbeMaps
from hwh_core.training.run import save_model

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 192
SHAPE_OF_RECORD = SHAPE | HYBRID_SHAPE | {"num_layers": 4, "sliding_window": 32, "intermediate_size": 64}


def hybrid(architecture: str, **changes):
    return controlled_model(architecture=architecture, **(HYBRID_SHAPE | changes))


@pytest.mark.parametrize("architecture", ["hwh_std", "hwh_swa", "hwh_std_r", "inter", "gdn", "transformer"])
def test_every_head_group_comes_once_and_in_order(architecture, ids):
    model = hybrid(architecture, sliding_window=16)
    found = []
    stream_weights(model, ids, 8, found.append)
    assert [(one.layer, one.place, one.group) for one in found] == [
        (index, place, group) for index, layer in enumerate(model.config.layers) for place, group in enumerate(layer)
    ]
    for one in found:
        assert one.weights.shape == (2, one.group.heads, 8, 64)
        assert one.query_positions.tolist() == list(range(56, 64))
        assert one.error < 1e-4
        if one.group.kind != GATED_DELTANET:
            torch.testing.assert_close(one.weights.sum(-1), torch.ones(2, one.group.heads, 8))
        if one.group.kind == SLIDING_WINDOW:
            assert one.weights[..., 0, : 56 - 15].abs().max() == 0
            assert one.weights[..., 0, 56 - 15].min() > 0


def test_weights_give_the_real_output_of_every_group_back(ids):
    """From the weights alone: values from the module's own projections, then its norm and gate, as the model has it."""
    model = hybrid("hwh_std")
    inputs, outputs, found = {}, {}, []
    hooks = []
    for index, block in enumerate(model.model.layers):
        for place, module in enumerate(block.mixer.groups):

            def keep(module, arguments, output, key=(index, place)):
                inputs[key], outputs[key] = arguments[0], output

            hooks.append(module.register_forward_hook(keep))
    stream_weights(model, ids, 20, found.append)
    for hook in hooks:
        hook.remove()
    assert {one.group.kind for one in found} == {GATED_DELTANET, FULL_ATTENTION}
    for one in found:
        module = model.model.layers[one.layer].mixer.groups[one.place]
        hidden = inputs[one.layer, one.place]
        v = module.v_proj(hidden)
        if one.group.kind == GATED_DELTANET:
            v = module.v_conv1d(v, None, False)[0]
        mixed = torch.einsum("bhqs,bshd->bqhd", one.weights, v.unflatten(-1, (one.group.heads, -1)))
        if one.group.kind == GATED_DELTANET:
            mixed = module.o_norm(mixed)
        rebuilt = mixed.flatten(2) * F.silu(module.g_proj(hidden)[:, -20:])
        expected = outputs[one.layer, one.place][:, -20:]
        assert (rebuilt - expected).abs().max() < 1e-5 * expected.abs().max().clamp_min(1.0)


def test_the_model_is_as_it_was_afterwards(ids):
    from hwh_core.modeling.delta_net import GatedDeltaNetGroup

    model = hybrid("hwh_std")
    rule, before = GatedDeltaNetGroup._delta_rule, model(ids).logits
    with pytest.raises(ProbeError, match="num_queries: 65"):
        stream_weights(model, ids, 65, lambda one: None)
    stream_weights(model, ids, 8, lambda one: None)
    assert GatedDeltaNetGroup._delta_rule is rule
    assert {module.backend for _, _, module in delta_net_groups(model)} == {"auto"}
    torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=0)


def test_another_recurrence_is_refused(ids, monkeypatch):
    from hwh_core.modeling.delta_net import GatedDeltaNetGroup

    model, rule = hybrid("gdn"), GatedDeltaNetGroup._delta_rule
    monkeypatch.setattr(
        GatedDeltaNetGroup, "_delta_rule", lambda self, q, k, v, g, *rest: rule(self, q, k, v, 0.5 * g, *rest)
    )
    with pytest.raises(UnsupportedModelError, match="effective weights of layer 0, head group 0 miss"):
        stream_weights(model, ids, 8, lambda one: None)


def test_models_of_others_are_refused(ids):
    config = tf.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(UnsupportedModelError, match="hwh probe"):
        stream_weights(tf.LlamaForCausalLM(config), ids, 8, lambda one: None)


def settings_of(architecture: str, **probe) -> dict:
    return {
        "scale": "tiny",
        "training_length": LENGTH,
        "model": {
            "name": f"{architecture}_s3", "architecture": architecture, "rope_theta": 10000.0, "qk_norm": True,
            "length": LENGTH, "seed": 3, "shape": SHAPE_OF_RECORD,
        },
        "probe": {"num_samples": 3, "num_queries": 24, "num_contexts": 2} | probe,
        "band": BandConfig(bootstrap_resamples=20).model_dump(),
        "held_out_prose_source": "prose",
        "seed": 0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(corpus, tmp_path_factory):
    """Folder of a model of an architecture with the tokenizer of the corpus; its weights are not those of its seed."""

    def make(architecture: str) -> Path:
        folder = tmp_path_factory.mktemp("hybrids") / architecture
        tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
        about = settings_of(architecture)["model"]
        model = build_model(about["shape"], architecture, 10000.0, True, LENGTH, len(tokenizer), seed=7)
        save_model(model, corpus.tokenizer, folder / "model")
        return folder / "model"

    return make


def test_the_record_of_a_hybrid_through_the_program(corpus, folder_of, tmp_path):
    model = folder_of("hwh_std_r")
    command = [
        *(sys.executable, str(ROOT / "scripts/probe_hybrid.py"), "--settings", json.dumps(settings_of("hwh_std_r"))),
        *("--model", str(model), "--documents", str(corpus.path), "--output", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    heads, bins = pd.read_csv(tmp_path / "head_influence.csv"), pd.read_csv(tmp_path / "head_influence_bins.csv")
    parquet = pd.read_parquet(tmp_path / "head_influence.parquet")
    assert parquet["window_tokens"].isna().all()
    parquet = parquet.assign(window_tokens=np.nan)
    pd.testing.assert_frame_equal(heads, parquet, check_dtype=False, rtol=1e-12)
    # Layers 0 and 3 are Gated DeltaNet alone, 1 and 2 hold 2 of 8 heads of attention.
    count = heads.groupby(["layer", "kind", "position_encoding"]).size()
    assert count.to_dict() == {
        (0, GATED_DELTANET, "recurrent"): 8, (1, FULL_ATTENTION, "rope"): 2, (1, GATED_DELTANET, "recurrent"): 6,
        (2, FULL_ATTENTION, "rope"): 2, (2, GATED_DELTANET, "recurrent"): 6, (3, GATED_DELTANET, "recurrent"): 8,
    }  # fmt: skip
    assert set(heads["model"]) == {"hwh_std_r_s3"}
    assert set(heads["seed"]) == {3}
    assert (heads["queries_counted"] == 3 * 24).all()
    assert heads[["needle_share", "sink_share", "share_within_64_tokens"]].apply(lambda c: c.between(0, 1).all()).all()
    assert (heads.loc[heads["kind"] == FULL_ATTENTION, "negative_share"] == 0).all()
    assert (heads.loc[heads["kind"] == GATED_DELTANET, "negative_share"] > 0).any()
    sums = bins.groupby(["layer", "group", "head"])["share"].sum()
    assert len(sums) == len(heads)
    np.testing.assert_allclose(sums, 1.0, rtol=1e-9)
    near = bins[bins["distance_below_tokens"] <= 64].groupby(["layer", "group", "head"])["share"].sum()
    np.testing.assert_allclose(near, heads.set_index(["layer", "group", "head"])["share_within_64_tokens"], rtol=1e-4)
    # Random weights at initialisation read all tokens alike: the needle gets what falls on it by chance.
    attention = heads[heads["kind"] == FULL_ATTENTION]
    np.testing.assert_allclose(attention["needle_share"], attention["needle_share_if_even"], rtol=0.5)

    maps = ProbeMaps.load(tmp_path / "rope_heads.npz")
    assert maps.rpd.shape == (3, 2, 2, 4)
    assert maps.layer_index.tolist() == [1, 2]
    assert maps.rpd_initial.shape == maps.rpd.shape
    assert not np.allclose(maps.rpd_initial, maps.rpd), "the weights are not those of the seed"
    assert maps.description["rotating_heads"] == 4
    assert maps.description["band"]["factors"]["1"]["verdict"] in ("peak", "edge", "none")
    for name in ("head_influence.csv", "head_influence_bins.csv", "rope_heads.npz"):
        manifest = json.loads((tmp_path / f"{name}.manifest.json").read_text())
        assert manifest["influence"]["max_relative_error"] < 1e-4
        assert manifest["script"] == "scripts/probe_hybrid.py"


def test_initial_weights_are_those_of_the_seed(corpus, folder_of, monkeypatch):
    """A model that was never trained has the same maps before and after: the initial model is built by its seed."""
    model = folder_of("transformer")
    settings = settings_of("transformer")
    settings["model"]["seed"] = 7
    maps = probe_hybrid(settings, model, corpus.path).maps
    np.testing.assert_allclose(maps.rpd_initial, maps.rpd, atol=1e-7)
    np.testing.assert_allclose(maps.rfis_initial, maps.rfis, atol=1e-7)


def test_a_model_without_rotation_has_maps_without_layers(corpus, folder_of, tmp_path):
    probe = probe_hybrid(settings_of("hwh_std"), folder_of("hwh_std"), corpus.path)
    probe.save(tmp_path)
    maps = ProbeMaps.load(tmp_path / "rope_heads.npz")
    assert maps.rpd.shape[:2] == (3, 0)
    assert maps.description["band"] is None
    assert set(probe.heads["position_encoding"]) == {"none", "recurrent"}


def test_the_band_of_windowed_heads_is_sought_within_their_window(corpus, folder_of):
    probe = probe_hybrid(settings_of("hwh_swa"), folder_of("hwh_swa"), corpus.path)
    assert probe.maps.description["context"] == 32
    assert probe.maps.description["band"]["length"] == 32
    windowed = probe.heads[probe.heads["kind"] == SLIDING_WINDOW]
    assert set(windowed["window_tokens"]) == {32}
    assert windowed["mean_distance_tokens"].max() < 32
    assert set(windowed["share_within_64_tokens"].round(4)) == {1.0}


def test_the_same_settings_give_the_same_record(corpus, folder_of):
    model = folder_of("inter")
    first, second = (probe_hybrid(settings_of("inter"), model, corpus.path) for _ in range(2))
    pd.testing.assert_frame_equal(first.heads, second.heads)
    pd.testing.assert_frame_equal(first.bins, second.bins)


def test_what_does_not_fit_is_refused(corpus, folder_of):
    model = folder_of("gdn")
    with pytest.raises(ProbeError, match=r"hwh\.probe\.num_queries: 193 are more than the training length 192"):
        probe_hybrid(settings_of("gdn", num_queries=193), model, corpus.path)
    settings = settings_of("gdn") | {"training_length": 60}
    with pytest.raises(ProbeError, match=r"hwh\.probe: no prompt with a needle at the training length 60"):
        probe_hybrid(settings, model, corpus.path)
    with pytest.raises(ProbeError, match=r"key 'probe\.num_contexts' is missing"):
        probe_hybrid(settings_of("gdn") | {"probe": {"num_samples": 2, "num_queries": 8}}, model, corpus.path)
