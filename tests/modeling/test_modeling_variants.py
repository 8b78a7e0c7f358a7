"""Variants of architectures as a preset writes them: DeltaNet, shared key heads, a fraction for every layer."""

import pytest
import torch

from hwh_core.architectures import layers_of_shape, parameter_count
from hwh_core.config import ArchitectureVariant, ModelShape, VariedShape
from hwh_core.heads import DELTANET, FULL_ATTENTION, SLIDING_WINDOW, HeadGroup
from hwh_core.modeling import HwHForCausalLM, build_model
from hwh_core.modeling.delta_net import GatedDeltaNetGroup, l2_normalize

VARIANTS = {
    "delta": {"base": "hwh_std", "recurrence": "deltanet"},
    "delta_alone": {"base": "gdn", "recurrence": "deltanet"},
    "grouped": {
        "base": "hwh_swa",
        "full_attention_fractions": [0.25, 0.25, 0.5, 0.25],
        "full_attention_queries_per_key": 2,
        "sliding_window_queries_per_key": 2,
    },
    "rising": {"base": "hwh_std_r", "full_attention_fractions": [0, 0.125, 0.5, 1]},
}
SHAPE = ModelShape(
    num_layers=4,
    hidden_size=64,
    intermediate_size=96,
    attention_head_dim=8,
    gdn_head_dim=8,
    gate=True,
    sliding_window=12,
    initializer_range=0.1,
)


def varied(name: str, **changes: object) -> dict:
    variant = ArchitectureVariant(name=name, **(VARIANTS[name] | changes))
    return VariedShape(**SHAPE.model_dump(), variant=variant).model_dump()


@pytest.fixture(params=list(VARIANTS))
def variant_model(request) -> HwHForCausalLM:
    return build_model(varied(request.param), request.param, 10000.0, True, 64, 61, 0).eval()


def test_parameters_are_those_of_the_arithmetic(variant_model):
    layers = layers_of_shape(varied(variant_model.config.architecture), variant_model.config.architecture)
    counted = parameter_count(layers, hidden_size=64, intermediate_size=96, vocab_size=61, tie_embeddings=False)
    assert variant_model.num_parameters() == counted


@torch.no_grad()
def test_cached_logits_equal_the_full_forward_also_after_saving(variant_model, tokens, tmp_path):
    ids = tokens(2, 50)
    full = variant_model(ids).logits
    output = variant_model(ids[:, :40], use_cache=True)
    rest = [variant_model(ids[:, place : place + 1], cache=output.cache).logits for place in range(40, 50)]
    assert (torch.cat([output.logits, *rest], dim=1) - full).abs().max() < 1e-4
    variant_model.save_pretrained(tmp_path)
    assert torch.equal(HwHForCausalLM.from_pretrained(tmp_path).eval()(ids).logits, full)


def test_every_parameter_gets_a_gradient(variant_model, tokens):
    ids = tokens(2, 33)
    variant_model.train().next_token_loss(ids[:, :-1], ids[:, 1:]).backward()
    for name, parameter in variant_model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def delta_rule(q, k, v, beta, decay):
    """One head and token at a time: S_t = decay_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t.

    As the papers write it: DeltaNet (arXiv 2406.06484) with a decay of 1, Gated DeltaNet (arXiv 2412.06464) with one.
    """
    output = torch.zeros_like(v)
    for batch in range(q.shape[0]):
        for head in range(q.shape[2]):
            state = q.new_zeros(v.shape[3], q.shape[3])
            for t in range(q.shape[1]):
                key, strength = k[batch, t, head], beta[batch, t, head]
                kept = torch.eye(len(key), dtype=q.dtype) - strength * torch.outer(key, key)
                state = decay[batch, t, head] * state @ kept + strength * torch.outer(v[batch, t, head], key)
                output[batch, t, head] = state @ q[batch, t, head]
    return output


@pytest.mark.parametrize("length", [1, 31, 70])
def test_deltanet_is_the_delta_rule_forwards_and_backwards(length):
    generator = torch.Generator().manual_seed(length)
    group = GatedDeltaNetGroup(16, HeadGroup(DELTANET, 2, 8, conv_size=4), 1e-6)
    q, k, v = (torch.randn(2, length, 2, 8, generator=generator).double().requires_grad_() for _ in range(3))
    beta = torch.rand(2, length, 2, generator=generator).double().requires_grad_()
    weight = torch.randn(2, length, 2, 8, generator=generator).double()
    ours, _ = group._delta_rule(q, k, v, torch.zeros_like(beta), beta, None)
    expected = delta_rule(l2_normalize(q) * group.scaling, l2_normalize(k), v, beta, torch.ones_like(beta))
    assert (ours - expected).abs().max() < 1e-10
    gradients = torch.autograd.grad((ours * weight).sum(), (q, k, v, beta))
    for one, other in zip(gradients, torch.autograd.grad((expected * weight).sum(), (q, k, v, beta)), strict=True):
        assert (one - other).abs().max() < 1e-9


def head_group_by_its_definition(group, x):
    """Output of a recurrent head group for hidden states [B, T, hidden_size], all written out."""

    def silu(y):
        return y / (1 + (-y).exp())

    def convolved(projection, convolution):
        taps = convolution.weight[:, 0]
        y = projection(x)
        padded = torch.cat((y.new_zeros(y.shape[0], taps.shape[1] - 1, y.shape[2]), y), dim=1)
        windows = torch.stack([padded[:, t : t + taps.shape[1]] for t in range(y.shape[1])], dim=1)
        return silu((windows * taps.T).sum(2)).unflatten(-1, (group.num_heads, group.head_dim))

    def unit(y):
        return y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    q = unit(convolved(group.q_proj, group.q_conv1d)) / group.head_dim**0.5
    k, v = unit(convolved(group.k_proj, group.k_conv1d)), convolved(group.v_proj, group.v_conv1d)
    beta = 1 / (1 + (-group.b_proj(x)).exp())
    decay = torch.ones_like(beta)
    if group.a_proj is not None:
        decay = (-group.A_log.exp() * (1 + (group.a_proj(x) + group.dt_bias).exp()).log()).exp()
    read = delta_rule(q, k, v, beta, decay)
    normed = read / (read.square().mean(-1, keepdim=True) + 1e-6).sqrt() * group.o_norm.weight
    return normed.flatten(2) * silu(group.g_proj(x))


@pytest.mark.parametrize(
    ("name", "shape"), [("delta", varied("delta")), ("delta_alone", varied("delta_alone")), ("gdn", SHAPE.model_dump())]
)
def test_recurrent_head_groups_are_their_definition_forwards_and_backwards(name, shape):
    """With convolutions, norms and gate; in float64, but that the group has write strength and decay in float32."""
    model = build_model(shape, name, 10000.0, True, 64, 61, 0).double()
    group = next(group for group in model.model.layers[1].mixer.groups if isinstance(group, GatedDeltaNetGroup))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in group.parameters():
            parameter.normal_(std=0.3, generator=generator)
        if group.dt_bias is not None:
            group.dt_bias -= 4  # Slow enough a decay for the state to matter from one chunk to the next.
    x, weight = (torch.randn(2, 70, size, generator=generator).double() for size in (64, group.group.width))
    wanted = (x.requires_grad_(), *group.parameters())
    ours, expected = group(x, padding=None, state=None), head_group_by_its_definition(group, x)
    assert (ours - expected).abs().max() < 1e-6 * expected.abs().max()
    gradients = (torch.autograd.grad((output * weight).sum(), wanted) for output in (ours, expected))
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max()


def test_deltanet_has_no_parameter_of_a_decay():
    group = GatedDeltaNetGroup(16, HeadGroup(DELTANET, 2, 8, conv_size=4, gate=True), 1e-6)
    assert {name.partition(".")[0] for name, _ in group.named_parameters()} == {
        *("q_proj", "k_proj", "v_proj", "b_proj", "g_proj", "q_conv1d", "k_conv1d", "v_conv1d", "o_norm"),
    }


def test_retrieval_and_position_have_key_heads_of_their_own():
    """Full attention shares keys between 2 query heads, windows between 2; neither shares with the other."""
    model = build_model(varied("grouped"), "grouped", 10000.0, True, 64, 61, 0)
    seen = {}
    for block in model.model.layers:
        for module in block.mixer.groups:
            group = module.group
            assert module.k_proj.weight.shape == (group.key_value_heads * 8, 64)
            seen.setdefault(group.kind, set()).add((group.heads, group.key_value_heads, group.rope_theta))
    assert seen == {
        FULL_ATTENTION: {(2, 1, None), (4, 2, None)},
        SLIDING_WINDOW: {(6, 3, 10000.0), (4, 2, 10000.0)},
    }
