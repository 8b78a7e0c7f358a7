"""The model over head groups: definition, masks, rotation, loss, initialisation, errors."""

import math

import pytest
import torch
from torch.nn import functional as F

from hwh_core.architectures import ARCHITECTURES, parameter_count
from hwh_core.heads import FULL_ATTENTION, SLIDING_WINDOW, ArchitectureError, HeadGroup, layers_to_dicts
from hwh_core.modeling import HwHConfig, HwHForCausalLM, build_model, rotary
from hwh_core.modeling.attention import AttentionGroup, visible_keys
from hwh_core.modeling.delta_net import GatedDeltaNetGroup
from hwh_core.modeling.loss import mean_cross_entropy

VOCABULARY = 61


def test_parameter_count_is_that_of_the_model(make_model):
    for name in ARCHITECTURES:
        for changes in ({}, {"gate": False, "tie_embeddings": True, "attention_output_norm": True}):
            model = make_model(name, **changes)
            expected = parameter_count(
                model.config.layers,
                hidden_size=64,
                intermediate_size=96,
                vocab_size=VOCABULARY,
                tie_embeddings=changes.get("tie_embeddings", False),
            )
            assert sum(parameter.numel() for parameter in model.parameters()) == expected, (name, changes)


@torch.no_grad()
def test_no_token_sees_a_later_one(model, tokens):
    ids = tokens(1, 40)
    changed = ids.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % VOCABULARY
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :25], after[:, :25])
    assert not torch.allclose(before[:, 25:], after[:, 25:])


@torch.no_grad()
def test_right_padding_changes_nothing_before_it(model, tokens):
    ids = tokens(1, 20)
    padded = torch.cat((ids, tokens(1, 7, seed=3)), dim=1)
    mask = torch.tensor([[1] * 20 + [0] * 7])
    logits = model(padded, attention_mask=mask).logits
    assert logits.isfinite().all()
    assert (logits[:, :20] - model(ids).logits).abs().max() < 1e-5


def naive_attention(group: HeadGroup, module: AttentionGroup, x: torch.Tensor) -> torch.Tensor:
    """Attention written out in float64, one head and one query at a time, complex numbers for RoPE."""
    state = {name: parameter.double() for name, parameter in module.named_parameters()}
    x = x.double()
    length, half = x.shape[0], group.head_dim // 2
    q = (x @ state["q_proj.weight"].T).view(length, group.heads, group.head_dim)
    k = (x @ state["k_proj.weight"].T).view(length, group.key_value_heads, group.head_dim)
    v = (x @ state["v_proj.weight"].T).view(length, group.key_value_heads, group.head_dim)

    def normed(y, weight):
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    if group.qk_norm:
        q, k = normed(q, state["q_norm.weight"]), normed(k, state["k_norm.weight"])
    if group.rope_theta is not None:
        frequencies = torch.tensor([group.rope_theta ** (-r / half) for r in range(half)], dtype=torch.float64)
        turn = torch.polar(torch.ones(length, half).double(), torch.arange(length)[:, None] * frequencies)[:, None]

        def rotated(y):
            z = torch.complex(y[..., :half], y[..., half:]) * turn
            return torch.cat((z.real, z.imag), dim=-1)

        q, k = rotated(q), rotated(k)
    output = torch.zeros(length, group.heads, group.head_dim, dtype=torch.float64)
    for head in range(group.heads):
        shared = head // (group.heads // group.key_value_heads)
        for i in range(length):
            first = 0 if group.window is None else max(0, i - group.window + 1)
            logits = k[first : i + 1, shared] @ q[i, head] / math.sqrt(group.head_dim)
            output[i, head] = logits.softmax(0) @ v[first : i + 1, shared]
    if group.output_norm:
        output = normed(output, state["o_norm.weight"])
    output = output.reshape(length, -1)
    return output * F.silu(x @ state["g_proj.weight"].T) if group.gate else output


@torch.no_grad()
@pytest.mark.parametrize(
    "group",
    [
        HeadGroup(FULL_ATTENTION, 2, 8),
        HeadGroup(FULL_ATTENTION, 2, 8, rope_theta=100.0, qk_norm=True),
        HeadGroup(FULL_ATTENTION, 4, 8, kv_heads=2, rope_theta=1e4, gate=True),
        HeadGroup(FULL_ATTENTION, 2, 8, qk_norm=True, gate=True, output_norm=True),
        HeadGroup(SLIDING_WINDOW, 2, 8, rope_theta=100.0, qk_norm=True, window=5, gate=True),
        HeadGroup(SLIDING_WINDOW, 4, 8, kv_heads=1, window=1),
    ],
    ids=lambda group: "-".join(str(value) for value in group.to_dict().values()),
)
def test_attention_is_as_written_out(group):
    config = HwHConfig(
        vocab_size=11,
        hidden_size=24,
        intermediate_size=16,
        layer_groups=layers_to_dicts([(group,)]),
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    model = HwHForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5)
    module = model.model.layers[0].mixer.groups[0]
    seen = {}
    module.register_forward_hook(lambda _, args, output: seen.update(x=args[0], y=output))
    model(torch.randint(0, 11, (1, 19)))
    assert (seen["y"][0] - naive_attention(group, module, seen["x"][0])).abs().max() < 2e-5


def test_masks():
    device = torch.device("cpu")
    assert visible_keys(4, 4, None, None, device) is None
    assert visible_keys(4, 4, 4, None, device) is None
    window = visible_keys(4, 4, 2, None, device)[0, 0].int().tolist()
    assert window == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    cached = visible_keys(2, 5, None, None, device)[0, 0].int().tolist()
    assert cached == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    padded = visible_keys(3, 3, None, torch.tensor([[False, True, True]]), device)[0, 0].int().tolist()
    assert padded == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


@torch.no_grad()
def test_rotation_goes_through_one_function_that_can_be_replaced(make_model, tokens, monkeypatch):
    original, calls = rotary.apply_rotary_pos_emb, []

    def spy(q, k, cos, sin):
        assert cos.dtype == sin.dtype == torch.float32
        calls.append((tuple(q.shape), tuple(k.shape), tuple(cos.shape)))
        return original(q, k, cos, sin)

    monkeypatch.setattr(rotary, "apply_rotary_pos_emb", spy)
    for name in ARCHITECTURES:
        model = make_model(name)
        calls.clear()
        model(tokens(2, 9))
        groups = model.rope_groups()
        assert calls == [((2, m.num_heads, 9, 8), (2, m.num_key_value_heads, 9, 8), (1, 9, 8)) for _, _, m in groups]
        expected = {"transformer": 4, "hwh_std_r": 2, "hwh_swa": 4, "hwh_swa_r": 6}
        assert len(groups) == expected.get(name, 0)
        for layer, place, module in groups:
            assert model.model.layers[layer].mixer.groups[place] is module
            assert (module.head_dim, module.scaling) == (8, 8**-0.5)
            assert module.window == (12 if module.group.kind == SLIDING_WINDOW else None)
            frequencies = [10000.0 ** (-2 * r / 8) for r in range(4)]
            assert module.inv_freq.tolist() == pytest.approx(frequencies, rel=1e-6)


def test_angles_are_float32_of_integer_positions_whatever_the_weights(make_model):
    model = make_model("transformer").bfloat16()
    module = model.rope_groups()[0][2]
    assert module.inv_freq.dtype == torch.float32
    cos, sin = rotary.cos_sin(module.inv_freq, torch.tensor([[8191]]))
    exact = 8191 * module.inv_freq.double()
    assert (cos[0, 0, :4] - exact.cos()).abs().max() < 1e-3
    assert (sin[0, 0, :4] - exact.sin()).abs().max() < 1e-3


@torch.no_grad()
def test_without_rope_order_of_earlier_tokens_does_not_matter(make_model, tokens):
    ids = tokens(1, 10)
    shuffled = torch.cat((ids[:, [3, 1, 0, 2, 5, 4, 7, 8, 6]], ids[:, 9:]), dim=1)
    shape = {"num_layers": 1}
    nope, rope = make_model("nope_transformer", **shape), make_model("transformer", **shape)
    assert (nope(ids).logits[:, -1] - nope(shuffled).logits[:, -1]).abs().max() < 1e-5
    assert (rope(ids).logits[:, -1] - rope(shuffled).logits[:, -1]).abs().max() > 1e-3


@torch.no_grad()
def test_loss_agrees_however_it_is_computed(make_model, tokens):
    model = make_model("hwh_std")
    ids = tokens(3, 21)
    logits = model(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert model(ids, labels=ids).loss == pytest.approx(expected.item(), rel=1e-6)
    assert model.next_token_loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(expected.item(), rel=1e-5)


def test_chunked_loss_has_the_gradients_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 7, (2, 9), generator=generator)

    def gradients(max_logits):
        hidden = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
        weight = torch.randn(7, 5, generator=torch.Generator().manual_seed(2)).requires_grad_()
        loss = mean_cross_entropy(hidden, weight, targets, max_logits)
        loss.backward()
        return loss, hidden.grad, weight.grad

    for whole, chunked in zip(gradients(10**9), gradients(4 * 7), strict=True):
        torch.testing.assert_close(chunked, whole)


def test_all_parameters_get_finite_gradients(model, tokens):
    model.train()
    model.next_token_loss(tokens(2, 40), tokens(2, 40, seed=1)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_initialisation_depends_on_the_seed_alone(make_model):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = make_model("hwh_std", seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    second, other = make_model("hwh_std", seed=3).state_dict(), make_model("hwh_std", seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_initial_values(make_model):
    model = make_model("gdn", hidden_size=256, initializer_range=0.02)
    for module in model.modules():
        if isinstance(module, GatedDeltaNetGroup):
            assert (module.A_log.exp() <= 16).all()
            step = F.softplus(module.dt_bias)
            assert ((step > 0.0009) & (step < 0.11)).all()
            assert module.q_conv1d.weight.std().item() == pytest.approx(0.02, rel=0.15)
            assert module.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert (module.o_norm.weight == 1).all()


def test_parameter_names_are_those_of_flash_linear_attention(make_model):
    group = make_model("gdn").model.layers[0].mixer.groups[0]
    assert {name: tuple(parameter.shape) for name, parameter in group.named_parameters()} == {
        "A_log": (8,),
        "dt_bias": (8,),
        **{f"{name}_proj.weight": (64, 64) for name in "qkvg"},
        **{f"{name}_proj.weight": (8, 64) for name in "ab"},
        **{f"{name}_conv1d.weight": (64, 1, 4) for name in "qkv"},
        "o_norm.weight": (8,),
    }


@torch.no_grad()
def test_hidden_states_and_kept_logits(make_model, tokens):
    model = make_model("hwh_std")
    ids = tokens(2, 9)
    output = model(ids, output_hidden_states=True)
    assert len(output.hidden_states) == 5
    assert torch.equal(model.lm_head(output.hidden_states[-1]), output.logits)
    assert torch.allclose(model(ids, logits_to_keep=2).logits, output.logits[:, -2:], atol=1e-6)
    assert isinstance(model(ids, return_dict=False), tuple)


def test_what_the_model_refuses(make_model, tokens):
    model = make_model("hwh_std")
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="output_attentions"):
        model(tokens(1, 3), output_attentions=True)
    with pytest.raises(ValueError, match="needs a CUDA device, not cpu"):
        HwHForCausalLM(HwHConfig(**(model.config.to_dict() | {"delta_net_backend": "fla"})))(tokens(1, 3))
    with pytest.raises(ValueError, match="'cuda' is unknown"):
        HwHForCausalLM(HwHConfig(**(model.config.to_dict() | {"delta_net_backend": "cuda"})))
    with pytest.raises(ArchitectureError, match="num_hidden_layers = 9 contradicts"):
        HwHConfig(**(model.config.to_dict() | {"num_hidden_layers": 9}))
    with pytest.raises(ArchitectureError, match="gdn_head_dim = 48"):
        build_model(
            {
                "num_layers": 4,
                "hidden_size": 64,
                "intermediate_size": 96,
                "attention_head_dim": 8,
                "gdn_head_dim": 48,
                "gate": True,
            },
            "hwh_std", 1e4, True, 64, 61, 0,
        )  # fmt: skip
