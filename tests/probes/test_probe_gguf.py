"""GGUF files: probed as they lie there, and no scaling of frequencies is lost."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from probe_helpers import gguf_of

from hwh_core.probes.capture import capture
from hwh_core.probes.errors import ProbeError, UnsupportedModelError
from hwh_core.probes.pretrained import load_model, load_tokenizer, locate_model

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama31(random_llama):
    """A Llama with the scaled frequencies of Llama 3.1, and its tokenizer."""
    tokenizer = load_tokenizer(random_llama)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=131072, rope_parameters=LLAMA3, pad_token_id=None,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tf.LlamaForCausalLM(config).eval(), tokenizer


def factors_of(model):
    """What a converter writes: unscaled over scaled frequencies."""
    scaled = model.model.rotary_emb.inv_freq.double()
    return LLAMA3["rope_theta"] ** -(torch.arange(scaled.numel()) / scaled.numel()) / scaled


def test_scaled_frequencies_of_llama_31_are_kept(llama31, tmp_path):
    model, tokenizer = llama31
    path = tmp_path / "llama.gguf"
    gguf_of(model, tokenizer, path, factors_of(model))
    loaded = load_model(locate_model(str(path)))
    torch.testing.assert_close(loaded.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    tokens = torch.arange(5, 60)
    torch.testing.assert_close(loaded(tokens[None]).logits, model(tokens[None]).logits, rtol=1e-4, atol=1e-5)
    layer = capture(loaded, tokens, 8)[0]
    torch.testing.assert_close(layer.inv_freq, model.model.rotary_emb.inv_freq)
    assert load_tokenizer(path)("the river")["input_ids"] == tokenizer("the river")["input_ids"]


def test_without_factors_the_frequencies_are_unscaled(llama31, tmp_path):
    """What transformers makes of the file alone: the reason for the test above."""
    model, tokenizer = llama31
    gguf_of(model, tokenizer, tmp_path / "llama.gguf", torch.ones(16))
    inv_freq = load_model(tmp_path / "llama.gguf").model.rotary_emb.inv_freq
    assert float(inv_freq[-1] / model.model.rotary_emb.inv_freq[-1]) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("factors", "keys", "named"),
    [
        ([2.0] * 16, {}, r"rope_freqs\.weight holds factors from 2 to 2 that are not those of Llama 3\.1"),
        (None, {"llama_rope_scaling_type": "yarn"}, r"llama\.rope\.scaling\.type = yarn"),
        (None, {"llama_rope_scaling_type": "linear"}, "use the model's safetensors"),
    ],
)
def test_other_scalings_are_refused_by_name(llama31, tmp_path, factors, keys, named):
    model, tokenizer = llama31
    gguf_of(model, tokenizer, tmp_path / "llama.gguf", factors, **keys)
    with pytest.raises(UnsupportedModelError, match=named):
        load_model(tmp_path / "llama.gguf")


def test_half_precision(llama31, tmp_path):
    model, tokenizer = llama31
    gguf_of(model, tokenizer, tmp_path / "llama.gguf", factors_of(model))
    loaded = load_model(tmp_path / "llama.gguf", dtype="bfloat16")
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert capture(loaded, torch.arange(5, 60), 8)[0].max_logit_error < 3e-2


def test_damaged_and_divided_files_are_named(llama31, tmp_path):
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ProbeError, match="is one part of several"):
        load_model(path)
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ProbeError, match=r"cut\.gguf"):
        load_model(tmp_path / "cut.gguf")
    with pytest.raises(ProbeError, match=r"cut\.gguf"):
        load_tokenizer(tmp_path / "cut.gguf")
