"""Input projections of all head groups as one product: same results, same parameters, left alone where it must be."""

import pytest
import torch
from torch import nn

from hwh_core.modeling import joint_projection


@pytest.mark.parametrize("widths", [(64, 128), (7, 64, 7, 128), (3,), (8, 24, 1)])
def test_one_product_equals_one_after_another(widths):
    torch.manual_seed(0)
    projections = [nn.Linear(32, width, bias=False) for width in widths]
    x = torch.randn(2, 5, 32, requires_grad=True)
    parts = joint_projection.joint_linear(x, projections)
    assert [part.shape for part in parts] == [(2, 5, width) for width in widths]
    # Rows of wide results start at multiples of 128 bytes in bfloat16.
    assert all(part.stride(1) % joint_projection.ALIGNMENT == 0 for part in parts)
    assert all(
        part.storage_offset() % joint_projection.ALIGNMENT == 0
        for part, width in zip(parts, widths, strict=True)
        if width % joint_projection.ALIGNMENT == 0
    )
    single = [projection(x) for projection in projections]
    gradients = []
    for results in (parts, single):
        loss = sum((result * (index + 1)).square().sum() for index, result in enumerate(results))
        inputs = [x, *(projection.weight for projection in projections)]
        gradients.append(torch.autograd.grad(loss, inputs, retain_graph=True))
    torch.testing.assert_close(list(parts), single)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_models_with_joint_projections_give_the_same_logits_and_gradients(model, tokens, monkeypatch):
    model.double()  # In float32 gradients of eight layers differ by 1e-4, for rounding alone.
    ids, targets = tokens(2, 40), tokens(2, 40, seed=1)
    calls, outcomes = [], []
    for name in ("joint_linear", "joint_product"):
        original = getattr(joint_projection, name)
        monkeypatch.setattr(
            joint_projection, name, lambda *given, original=original: calls.append(given) or original(*given)
        )
    for forced in (False, True):
        monkeypatch.setattr(joint_projection, "is_worthwhile", lambda x, forced=forced: forced)
        model.zero_grad()
        loss = model.next_token_loss(ids, targets)
        loss.backward()
        outcomes.append({"loss": loss.detach()} | {name: p.grad.clone() for name, p in model.named_parameters()})
        assert len(calls) == (2 * len(model.config.layers) if forced else 0)  # mixer and SwiGLU of every layer
    torch.testing.assert_close(outcomes[1], outcomes[0], atol=1e-9, rtol=1e-9)


@torch.no_grad()
def test_padding_keeps_projections_apart(make_model, tokens, monkeypatch):
    model, ids = make_model("hwh_std"), tokens(2, 20)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :6] = 0
    expected = model(ids, attention_mask=mask).logits
    monkeypatch.setattr(joint_projection, "is_worthwhile", lambda x: True)
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[:, 6:], expected[:, 6:])


def test_the_cpu_and_few_tokens_keep_projections_apart():
    assert not joint_projection.is_worthwhile(torch.zeros(4, 4096, 8))
    assert not joint_projection.is_worthwhile(torch.zeros(2, 8))
