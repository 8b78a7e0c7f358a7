"""Linear cross entropy with gradients in the forward pass; its Triton kernel on a GPU or in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional as F

from hwh_kernels import cross_entropy
from hwh_kernels.cross_entropy import cross_entropy_rows_torch_, linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(rows=37, hidden_size=16, vocab_size=83, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, hidden_size, generator=generator).to(DEVICE, dtype)
    weight = torch.randn(vocab_size, hidden_size, generator=generator).to(DEVICE)
    targets = torch.randint(0, vocab_size, (rows,), generator=generator).to(DEVICE)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def outcome(function, hidden, weight, targets):
    loss = function(hidden, weight, targets)
    return [loss.detach(), *torch.autograd.grad(loss * 3, (hidden, weight))]


def plain(hidden, weight, targets):
    """The definition, in float64."""
    return F.cross_entropy(hidden.double() @ weight.double().T, targets)


def relative(value, reference):
    return ((value.double() - reference.double()).norm() / reference.double().norm()).item()


def triton_rows(logits, targets, scale, **launch):
    kernel = pytest.importorskip("hwh_kernels.cross_entropy_triton")
    return kernel.cross_entropy_rows_(logits, targets, scale, kernel.Launch(**launch))


@pytest.fixture(params=["torch", "triton"])
def rows_function(request, monkeypatch):
    """The row-wise part in both forms, put in place for :func:`linear_cross_entropy`."""
    chosen = cross_entropy_rows_torch_
    if request.param == "triton":

        def chosen(logits, targets, scale):
            return triton_rows(logits, targets, scale, block_size=32, num_warps=4)

    monkeypatch.setattr(cross_entropy, "cross_entropy_rows_", chosen)
    return chosen


@pytest.mark.parametrize("chunk_rows", [1, 8, 37, 100])
def test_float32_loss_and_gradients(rows_function, chunk_rows):
    given = draw()
    expected = outcome(plain, *given)
    found = outcome(lambda *a: linear_cross_entropy(*a, chunk_rows=chunk_rows), *given)
    assert [value.dtype for value in found] == [torch.float32] * 3
    for value, reference in zip(found, expected, strict=True):
        assert relative(value, reference) < 1e-6


@pytest.mark.parametrize("chunk_rows", [16, 100])
def test_bfloat16_loss_and_gradients(rows_function, chunk_rows):
    """bfloat16 keeps 8 bits: logits of size 4 carry errors near 0.01, gradients relative ones near 2^-8."""
    given = draw(rows=96, hidden_size=32, vocab_size=130, dtype=torch.bfloat16)
    expected = outcome(plain, *given)
    loss, hidden_gradient, weight_gradient = outcome(lambda *a: linear_cross_entropy(*a, chunk_rows=chunk_rows), *given)
    assert (loss.dtype, hidden_gradient.dtype, weight_gradient.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    assert relative(loss, expected[0]) < 2e-3
    assert relative(hidden_gradient, expected[1]) < 1.5e-2
    assert relative(weight_gradient, expected[2]) < 1.5e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "block"), [(1, 8), (31, 32), (64, 32), (83, 16), (83, 128)])
def test_the_kernel_is_its_torch_form(dtype, columns, block):
    generator = torch.Generator().manual_seed(1)
    logits = (6 * torch.randn(9, columns, generator=generator)).to(DEVICE, dtype)
    targets = torch.randint(0, columns, (9,), generator=generator).to(DEVICE)
    for scale in (None, 0.25):
        by_torch, by_kernel = logits.clone(), logits.clone()
        expected = cross_entropy_rows_torch_(by_torch, targets, scale)
        found = triton_rows(by_kernel, targets, scale, block_size=block, num_warps=4)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
        # One unit in the last place of bfloat16: the interpreter cuts off where hardware rounds.
        step = 1e-6 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(by_kernel, by_torch, rtol=step, atol=1e-6)
        assert torch.equal(by_kernel, logits) == (scale is None)


def test_large_logits_do_not_overflow(rows_function):
    logits = torch.tensor([[200.0, -200.0, 199.0]], device=DEVICE)
    losses = rows_function(logits, torch.tensor([2], device=DEVICE), 1.0)
    assert losses.item() == pytest.approx(1 + 0.3132617, rel=1e-4)
    assert logits[0].tolist() == pytest.approx([0.7310586, 0.0, 0.2689414 - 1], rel=1e-3)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_the_loss(rows_function, poison):
    hidden, weight, targets = draw()
    with torch.no_grad():
        weight[5, 3] = poison
    assert not linear_cross_entropy(hidden, weight, targets).isfinite()


def test_without_gradients_only_the_loss_is_computed(rows_function, monkeypatch):
    hidden, weight, targets = draw()
    expected = plain(hidden, weight, targets).item()
    monkeypatch.setattr(cross_entropy, "_losses_and_gradients", None)
    with torch.no_grad():
        assert linear_cross_entropy(hidden, weight, targets, chunk_rows=8).item() == pytest.approx(expected, rel=1e-6)
    found = linear_cross_entropy(hidden.detach(), weight.detach(), targets, chunk_rows=8)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_what_does_not_fit_is_refused():
    hidden, weight, targets = draw()
    with pytest.raises(ValueError, match=r"\[N, H\]"):
        linear_cross_entropy(hidden, weight[:, 1:], targets)
    with pytest.raises(ValueError, match=r"\[N\]"):
        linear_cross_entropy(hidden, weight, targets[1:])
    with pytest.raises(ValueError, match="chunks of 0"):
        linear_cross_entropy(hidden, weight, targets, chunk_rows=0)
