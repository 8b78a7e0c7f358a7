"""Self-check of the Gated DeltaNet kernels: right ones pass, wrong ones end the run and leave the refusal in place."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from hwh_core.heads import GATED_DELTANET, HeadGroup
from hwh_core.modeling import delta_net_check
from hwh_core.modeling.delta_net import GatedDeltaNetGroup, l2_normalize
from hwh_core.scripting import UserError
from hwh_kernels import gated_delta_rule_check
from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule
from hwh_kernels.gated_delta_rule_check import (
    LENGTHS,
    TENSORS,
    TOLERANCE,
    HopperGuard,
    KernelsDisagree,
    check_gated_delta_rule,
)

CPU = torch.device("cpu")
SHAPES = [(3, 16), (2, 8)]


def right(q, k, v, g, beta, scale):
    """As bfloat16 kernels are: normalised q and k are rounded."""
    q, k = l2_normalize(q).to(q.dtype), l2_normalize(k).to(k.dtype)
    return chunk_gated_delta_rule(q, k, v, g, beta, scale)[0]


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def with_wrong_gradient(name, factor):
    """The right rule, but for the gradient of one input."""

    def rule(q, k, v, g, beta, scale):
        given = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        given[name] = ScaledGradient.apply(given[name], factor)
        return right(*given.values(), scale)

    return rule


def refusing_module(hopper=True, above_3_7_1=False):
    return SimpleNamespace(IS_NVIDIA_HOPPER=hopper, TRITON_ABOVE_3_4_0=True, TRITON_ABOVE_3_7_1=above_3_7_1)


def test_right_kernels_pass_and_the_refusal_stays_lifted():
    module = refusing_module()
    check = check_gated_delta_rule(CPU, SHAPES, batch=2, rule=right, guard=HopperGuard(module))
    assert check.passed
    assert check.guard_was_bypassed
    assert module.TRITON_ABOVE_3_7_1
    assert set(check.errors) == {"3x16", "2x8"}
    for errors in check.errors.values():
        assert tuple(errors) == TENSORS
        assert all(0 < error < TOLERANCE for error in errors.values())
    assert json.loads(json.dumps(check.as_dict())) == check.as_dict()


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
def test_a_wrong_gradient_is_named_and_the_refusal_comes_back(name):
    module = refusing_module()
    with pytest.raises(KernelsDisagree, match=rf"gradient of {name} by 1\d\.\d%.*Triton 3\.7\.1") as raised:
        check_gated_delta_rule(CPU, SHAPES, rule=with_wrong_gradient(name, 1.1), guard=HopperGuard(module))
    assert str(raised.value).count("gradient of") == 1
    assert not module.TRITON_ABOVE_3_7_1


def test_a_wrong_gradient_in_the_last_unfilled_chunk_only_is_found():
    def rule(q, k, v, g, beta, scale):
        tail = k.shape[1] % 64
        if tail:
            k = torch.cat((k[:, :-tail], ScaledGradient.apply(k[:, -tail:], 0.0)), dim=1)
        return right(q, k, v, g, beta, scale)

    with pytest.raises(KernelsDisagree, match=f"gradient of k.*{LENGTHS[1]} tokens"):
        check_gated_delta_rule(CPU, [(3, 16)], rule=rule)


def test_results_that_are_not_numbers_fail():
    with pytest.raises(KernelsDisagree, match="output by nan"):
        check_gated_delta_rule(CPU, [(3, 16)], rule=lambda *given: right(*given) * float("nan"))


def test_any_other_failure_restores_the_refusal_too():
    module = refusing_module()

    def broken(*given):
        assert module.TRITON_ABOVE_3_7_1, "not lifted for the check"
        raise RuntimeError("out of shared memory")

    with pytest.raises(RuntimeError, match="shared memory"):
        check_gated_delta_rule(CPU, SHAPES, rule=broken, guard=HopperGuard(module))
    assert not module.TRITON_ABOVE_3_7_1


@pytest.mark.parametrize(("hopper", "above"), [(True, True), (False, False)])
def test_without_a_refusal_nothing_is_lifted(hopper, above):
    module = refusing_module(hopper, above)
    check = check_gated_delta_rule(CPU, [(2, 8)], rule=right, guard=HopperGuard(module))
    assert not check.guard_was_bypassed
    assert module.TRITON_ABOVE_3_7_1 is above


def test_it_checks_in_the_dtype_of_the_training():
    seen = set()

    def rule(q, *rest):
        seen.add(q.dtype)
        return right(q, *rest)

    check = check_gated_delta_rule(CPU, [(2, 8)], dtype=torch.float32, rule=rule)
    assert seen == {torch.float32}
    assert max(check.errors["2x8"].values()) < 1e-5


def test_it_warms_up_the_size_of_the_training():
    seen = []

    def rule(q, *rest):
        seen.append(tuple(q.shape))
        return right(q, *rest)

    check_gated_delta_rule(CPU, [(2, 8)], batch=3, length=70, rule=rule)
    assert seen == [(3, tokens, 2, 8) for tokens in (*LENGTHS, 70)]


def group(heads, backend):
    return GatedDeltaNetGroup(
        32, HeadGroup(GATED_DELTANET, heads=heads, head_dim=8, conv_size=4), 1e-6, backend=backend
    )


def test_a_model_is_checked_with_its_own_heads(monkeypatch):
    asked = {}

    def check(device, shapes, **size):
        asked.update(size, device=device, shapes=shapes)
        return "result"

    monkeypatch.setattr(delta_net_check, "check_gated_delta_rule", check)
    monkeypatch.setattr(GatedDeltaNetGroup, "uses_fla", lambda self, device: self.backend == "fla")
    model = torch.nn.ModuleList([group(4, "fla"), group(3, "fla"), group(3, "fla"), group(2, "torch")])
    assert delta_net_check.check_model(model, CPU, batch=8, length=2048) == "result"
    assert asked == {"device": CPU, "shapes": [(3, 8), (4, 8)], "batch": 8, "length": 2048, "dtype": torch.bfloat16}


def test_a_model_on_the_torch_form_needs_no_check():
    assert delta_net_check.check_model(group(2, "auto"), CPU) is None


def test_a_failed_check_of_a_model_is_an_error_that_a_user_can_mend(monkeypatch):
    monkeypatch.setattr(GatedDeltaNetGroup, "uses_fla", lambda self, device: True)
    monkeypatch.setattr(gated_delta_rule_check.fla, "gated_delta_rule", with_wrong_gradient("k", 0.5))
    monkeypatch.setattr(gated_delta_rule_check, "hopper_guard", lambda device: HopperGuard(refusing_module()))
    with pytest.raises(UserError, match="gradient of k by"):
        delta_net_check.check_model(group(2, "fla"), CPU)
