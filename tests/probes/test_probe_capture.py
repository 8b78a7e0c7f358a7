"""Capture of q and k across families; models that cannot be rebuilt are refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from probe_helpers import HYBRID_SHAPE, controlled_model

from hwh_core.modeling import rotary
from hwh_core.probes.capture import capture, stream_layers
from hwh_core.probes.errors import LogitMismatchError, ProbeError, UnsupportedModelError

BASE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2,
}  # fmt: skip


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 1e4, **parameters}}


def llama(**changes):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**(BASE | changes))).eval()


def longrope(original_length):
    """Frequencies divided by other factors from ``original_length`` tokens on; sequences here have 64."""
    scaling = rope(rope_type="longrope", factor=4.0, original_max_position_embeddings=original_length,
                   short_factor=[1.0] * 8, long_factor=[1.0 + r for r in range(8)])  # fmt: skip
    config = tf.Phi3Config(**BASE, **scaling, original_max_position_embeddings=original_length)
    return tf.Phi3ForCausalLM(config).eval()


FAMILIES = {
    "llama": lambda: llama(),
    "llama3 scaling": lambda: llama(
        **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32)),
    "yarn": lambda: llama(**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "linear": lambda: llama(**rope(rope_type="linear", factor=4.0)),
    "llama 2 (one key head a query head)": lambda: llama(num_key_value_heads=4),
    "gemma 1 (heads of 256)": lambda: tf.GemmaForCausalLM(
        tf.GemmaConfig(**(BASE | {"num_key_value_heads": 4}), head_dim=256)).eval(),
    "longrope, short": lambda: longrope(64),
    "longrope, long": lambda: longrope(32),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**BASE)).eval(),
    "olmo2 (QK-norm over all heads)": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**BASE)).eval(),
    "qwen3 (QK-norm)": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**BASE, head_dim=32)).eval(),
    "phi3 (fused projections)": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**BASE)).eval(),
    "mistral (window)": lambda: tf.MistralForCausalLM(tf.MistralConfig(**BASE, sliding_window=16)).eval(),
    "gemma2 (softcap, window)": lambda: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(**BASE, head_dim=16, sliding_window=16, attn_logit_softcapping=2.0)).eval(),
    "gemma3 (two tables)": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**BASE, head_dim=16, sliding_window=16,
                            layer_types=["sliding_attention", "full_attention"])).eval(),
    "neox (partial)": lambda: tf.GPTNeoXForCausalLM(
        tf.GPTNeoXConfig(**{k: v for k, v in BASE.items() if k != "num_key_value_heads"})).eval(),
    "phi (sliced partial)": lambda: tf.PhiForCausalLM(tf.PhiConfig(**BASE)).eval(),
    "cohere (interleaved)": lambda: tf.CohereForCausalLM(tf.CohereConfig(**BASE)).eval(),
    "glm (interleaved, partial)": lambda: tf.GlmForCausalLM(tf.GlmConfig(**BASE, head_dim=16)).eval(),
    "hwh": lambda: controlled_model(),
    "hwh without QK-norm": lambda: controlled_model(qk_norm=False),
}  # fmt: skip


@pytest.fixture(params=list(FAMILIES))
def model(request):
    torch.manual_seed(0)
    return FAMILIES[request.param]()


def own_attention(model, ids):
    """Attention of a model as it computes it itself in eager mode, [layer][H, T, T]."""
    model.set_attn_implementation("eager")
    return [layer[0] for layer in model(ids, output_attentions=True).attentions]


def test_attention_is_the_models_own(model, ids):
    """Probabilities rebuilt from captured q and k equal those of the family's own eager attention."""
    before = model(ids[:1]).logits
    layers = capture(model, ids[0], 20)
    assert torch.equal(model(ids[:1]).logits, before), "the model must be left as it was"
    assert [layer.layer for layer in layers] == [0, 1]
    for layer in layers:
        assert layer.q.shape[1] == 20
        assert layer.k.shape[1] == 64
        assert layer.max_logit_error < 1e-5
        assert layer.rotates
        assert layer.query_positions.tolist() == list(range(44, 64))
    if model.config.model_type == "hwh":
        return
    for layer, own in zip(layers, own_attention(model, ids[:1]), strict=True):
        torch.testing.assert_close(layer.probabilities(), own[:, -20:].detach(), rtol=1e-3, atol=1e-6)


def test_special_mechanisms_are_recorded():
    torch.manual_seed(0)
    tokens = torch.arange(10, 74)
    layers = {name: capture(FAMILIES[name](), tokens, 4) for name in FAMILIES}
    assert layers["yarn"][0].attention_scaling == pytest.approx(1.1386, abs=1e-4)
    assert layers["llama"][0].attention_scaling == 1.0
    assert [layer.window for layer in layers["gemma2 (softcap, window)"]] == [16, None]
    assert {layer.softcap for layer in layers["gemma2 (softcap, window)"]} == {2.0}
    assert layers["cohere (interleaved)"][0].pairing == "interleaved"
    assert layers["llama"][0].pairing == "half"
    assert layers["neox (partial)"][0].num_frequency_groups == 3
    assert layers["phi (sliced partial)"][0].num_frequency_groups == 5
    assert layers["gemma 1 (heads of 256)"][0].num_frequency_groups == 128
    assert layers["qwen3 (QK-norm)"][0].k.shape[0] == 2
    assert layers["mistral (window)"][0].window == 16
    short, long = layers["longrope, short"][0].inv_freq, layers["longrope, long"][0].inv_freq
    torch.testing.assert_close(short / long, torch.arange(1.0, 9.0))
    assert layers["longrope, long"][0].attention_scaling > 1
    local, full = layers["gemma3 (two tables)"]
    assert not torch.equal(local.inv_freq, full.inv_freq)
    scaled, plain = layers["llama3 scaling"][0].inv_freq, layers["llama"][0].inv_freq
    assert float((plain / scaled).max()) == pytest.approx(8.0)


def test_frequencies_are_those_of_the_loaded_model(ids):
    """A model whose table was changed after loading is measured with that table, not with its config's base."""
    model = llama()
    model.model.rotary_emb.inv_freq.mul_(0.5)
    layer = capture(model, ids[0], 8)[0]
    assert float(layer.inv_freq[0]) == 0.5
    assert layer.max_logit_error < 1e-5


def test_batch_equals_single_samples(ids):
    model = controlled_model()
    layers = []
    stream_layers(model, ids, 8, layers.append)
    for index in range(2):
        for batched, single in zip(layers, capture(model, ids[index], 8), strict=True):
            torch.testing.assert_close(batched.sample(index).q, single.q, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(batched.sample(index).k, single.k, rtol=1e-5, atol=1e-6)


def test_q_and_k_are_taken_after_qk_norm_and_before_rotation(ids):
    model = controlled_model()
    layer = capture(model, ids[0], 64)[0]
    block = model.model.layers[0]
    group = block.mixer.groups[0]
    hidden = block.input_layernorm(model.model.embed_tokens(ids[:1]))
    expected = group.q_norm(group.q_proj(hidden).view(1, 64, 3, 16)).transpose(1, 2)[0]
    torch.testing.assert_close(layer.q, expected.detach())
    assert float((layer.q.square().mean(-1) - 1).abs().max()) < 1e-3


def test_hybrids_give_their_rope_groups_only(ids):
    hybrid = controlled_model(architecture="hwh_std_r", **HYBRID_SHAPE)
    captured = [(layer.layer, layer.group) for layer in capture(hybrid, ids[0], 4)]
    assert captured == [(layer, group) for layer, group, _ in hybrid.rope_groups()]
    assert captured
    without = controlled_model(architecture="hwh_std", **HYBRID_SHAPE)
    assert capture(without, ids[0], 4) == []
    plain = capture(without, ids[0], 4, nope="include")
    assert len(plain) == len(without.attention_groups())
    assert all(not layer.rotates and float(layer.inv_freq.abs().max()) == 0.0 for layer in plain)


def test_half_precision_has_its_own_tolerance(ids):
    torch.manual_seed(0)
    layer = capture(llama().to(torch.bfloat16), ids[0], 8)[0]
    assert layer.q.dtype == torch.float32
    assert 1e-5 < layer.max_logit_error < 3e-2


def test_gpt2_is_refused_by_name(ids):
    model = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)
    )
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*apply_rotary_pos_emb"):
        capture(model, ids[0], 4)


def test_learned_sinks_are_refused_by_name(ids):
    config = tf.GptOssConfig(**BASE, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(UnsupportedModelError, match="'s_aux'"):
        capture(tf.GptOssForCausalLM(config), ids[0], 4)


def latent_attention(**changes):
    config = tf.DeepseekV3Config(
        **(BASE | {"num_key_value_heads": 4}), q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=5, **changes,
    )  # fmt: skip
    return tf.DeepseekV3ForCausalLM(config).eval()


REFUSED = {
    "ALiBi": lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=300, hidden_size=64, n_layer=2, n_head=4)),
    "ALiBi: a bias": lambda: tf.MptForCausalLM(tf.MptConfig(vocab_size=300, d_model=64, n_layers=2, n_heads=4)),
    "ALiBi: a bias by": lambda: tf.FalconForCausalLM(
        tf.FalconConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=True)),
    "dynamic NTK": lambda: llama(**rope(rope_type="dynamic", factor=2.0)),
    "multi-head latent attention": latent_attention,
    "takes \\['tensor', 'sin', 'cos'\\]": lambda: tf.GPTJForCausalLM(
        tf.GPTJConfig(vocab_size=300, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, bos_token_id=1, eos_token_id=2)),
}  # fmt: skip


@pytest.mark.parametrize("reason", list(REFUSED))
def test_what_cannot_be_taken_apart_is_refused_by_name(ids, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        capture(REFUSED[reason](), ids[0], 4)


def test_latent_attention_that_rotates_halves_has_a_group_without_rotation(ids):
    layer = capture(latent_attention(rope_interleave=False), ids[0], 4)[0]
    assert layer.num_frequency_groups == 9
    assert layer.max_logit_error < 1e-5


def test_a_model_that_rotates_in_another_way_is_refused(ids, monkeypatch):
    model = llama()
    attention = type(model.model.layers[0].self_attn)
    monkeypatch.setattr(attention, "forward", lambda self, hidden_states, **_: (hidden_states, None))
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM.*rotates in another way"):
        capture(model, ids[0], 4)


def test_plain_modules_are_refused(ids):
    with pytest.raises(UnsupportedModelError, match="Linear: not a transformers model"):
        capture(torch.nn.Linear(2, 2), ids[0], 4)


def test_contributions_that_do_not_add_up_stop_the_probe(ids, monkeypatch):
    """An attention whose logits hold more than the sum over frequencies: layer 1 adds to k after the rotation."""
    model = controlled_model()
    rotate, calls = rotary.apply_rotary_pos_emb, []

    def altered(q, k, cos, sin):
        calls.append(1)
        q, k = rotate(q, k, cos, sin)
        return (q, k) if len(calls) == 1 else (q, k + 0.05)

    monkeypatch.setattr(rotary, "apply_rotary_pos_emb", altered)
    with pytest.raises(LogitMismatchError, match="layer 1 miss the model's own logits"):
        capture(model, ids[0], 8)
    monkeypatch.setattr(rotary, "apply_rotary_pos_emb", rotate)
    assert len(capture(model, ids[0], 8)) == 2


def test_unknown_frequencies_stop_the_probe(ids):
    """cos and sin that no table of the model explains, as with shifted positions."""
    model = llama()
    forward = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids, **k: forward(x, position_ids + 3, **k)
    with pytest.raises(UnsupportedModelError, match="no frequency table"):
        capture(model, ids[0], 4)


def test_another_mask_stops_the_probe(ids, monkeypatch):
    """Attention that hides a key which a causal row sees."""
    from hwh_core.modeling import model as model_module

    own = model_module.visible_keys

    def hides_a_key(*args):
        mask = own(*args)
        mask = torch.ones(64, 64, dtype=torch.bool).tril()[None, None] if mask is None else mask.clone()
        mask[..., 50:, 3] = False
        return mask

    monkeypatch.setattr(model_module, "visible_keys", hides_a_key)
    with pytest.raises(LogitMismatchError, match="layer 0 sees are not those of causal attention"):
        capture(controlled_model(), ids[0], 8)


@pytest.mark.parametrize(("tokens", "queries", "named"), [(10, 0, "num_queries: 0"), (10, 11, "num_queries: 11")])
def test_impossible_numbers_of_queries(tokens, queries, named):
    with pytest.raises(ProbeError, match=named):
        capture(controlled_model(), torch.arange(tokens), queries)


def test_capture_takes_one_sample(ids):
    with pytest.raises(ProbeError, match="one sample, got 2"):
        capture(controlled_model(), ids, 4)
    with pytest.raises(ProbeError, match=r"expected \[samples, tokens\]"):
        capture(controlled_model(), ids[None], 4)
