"""QK-norm with RoPE: the Triton kernels (on a GPU, otherwise interpreted) and operators against torch and the model."""

from __future__ import annotations

import pytest
import torch
import triton

from hwh_core.modeling import rotary
from hwh_core.modeling.norm import HwHRMSNorm
from hwh_kernels import normalised_rotation as rotation
from hwh_kernels import normalised_rotation_triton as kernel

DEVICE = "cuda" if isinstance(kernel._normalised_rotation_forward, triton.runtime.JITFunction) else "cpu"
LAUNCH = kernel.Launch(rows=4, blocks=2, num_warps=1)
EPS = 1e-6


def inputs(batch=2, length=5, heads=3, head_dim=8, dtype=torch.float32, own_positions=False):
    """x as a slice of a wider product, weight, cos, sin, and a gradient with heads before tokens."""
    generator = torch.Generator().manual_seed(0)
    product = torch.randn(batch, length, heads * head_dim + 8, generator=generator).to(dtype)
    x = product[..., 4 : 4 + heads * head_dim].unflatten(-1, (heads, head_dim))
    weight = 1 + 0.3 * torch.randn(head_dim, generator=generator)
    positions = torch.arange(length)[None] + (torch.tensor([[3], [700]]) if own_positions else 0)
    cos, sin = rotary.cos_sin(rotary.inverse_frequencies(head_dim, 100.0), positions)
    gradient = torch.randn(batch, heads, length, head_dim, generator=generator).to(dtype).transpose(1, 2)
    return x, weight, cos, sin, gradient


def gradients(function, x, weight, cos, sin, gradient):
    leaves = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    output = function(*leaves, cos, sin, EPS)
    return [value.cpu().double() for value in (output.detach(), *torch.autograd.grad(output, leaves, gradient))]


def truth(x, weight, cos, sin, gradient):
    """By the torch form in float64."""
    doubles = [value.double() for value in (x, weight, cos, sin, gradient)]
    return gradients(rotation.normalised_rotation_torch, *doubles)


@pytest.mark.parametrize("own_positions", [False, True])
def test_torch_form_is_norm_then_rotation_of_the_model(own_positions):
    x, weight, cos, sin, _ = inputs(own_positions=own_positions)
    norm = HwHRMSNorm(8, EPS)
    norm.weight.data = weight
    normalised = norm(x).transpose(1, 2)
    wanted, _ = rotary.apply_rotary_pos_emb(normalised, normalised, cos, sin)
    value = rotation.normalised_rotation(x, weight, cos, sin, EPS)
    torch.testing.assert_close(value.transpose(1, 2), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "own_positions", "tolerance"),
    [(torch.float32, False, 1e-5), (torch.float32, True, 1e-5), (torch.bfloat16, False, 2e-2)],
)
def test_kernels(dtype, own_positions, tolerance):
    """Output and both gradients; x and the gradient are views with strides of their own."""
    values = inputs(dtype=dtype, own_positions=own_positions)
    wanted = truth(*values)
    x, weight, cos, sin, gradient = (value.to(DEVICE) for value in values)
    output = kernel.forward(x, weight, cos, sin, EPS, LAUNCH)
    x_gradient, weight_gradient = kernel.backward(gradient, x, weight, cos, sin, EPS, LAUNCH)
    assert output.dtype == x_gradient.dtype == dtype
    assert weight_gradient.dtype == torch.float32
    for value, exact in zip((output, x_gradient, weight_gradient), wanted, strict=True):
        torch.testing.assert_close(value.cpu().double(), exact, rtol=tolerance, atol=tolerance)


def test_operators_differentiate_and_compile(monkeypatch):
    monkeypatch.setattr(rotation, "uses_triton", lambda x: True)
    values = inputs(length=3)
    wanted = truth(*values)
    moved = [value.to(DEVICE) for value in values]
    compiled = torch.compile(rotation.normalised_rotation, fullgraph=True, backend="aot_eager")
    for function in (rotation.normalised_rotation, compiled):
        for value, exact in zip(gradients(function, *moved), wanted, strict=True):
            torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-5)


def test_operators_keep_their_contract():
    x, weight, cos, sin, gradient = (value.to(DEVICE) for value in inputs(length=3))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    leaf = x.clone().requires_grad_()
    torch.library.opcheck(rotation._forward, (leaf, weight, cos, sin, EPS), test_utils=tests)
    torch.library.opcheck(rotation._backward, (gradient, x, weight, cos, sin, EPS), test_utils=tests)


@pytest.mark.parametrize(("head_dim", "taken"), [(64, True), (128, True), (96, False), (512, False)])
def test_head_sizes_that_the_kernels_take(head_dim, taken):
    x = torch.empty(1, 1, 1, head_dim, device="meta")
    x_on_cuda = type("OnCuda", (), {"shape": x.shape, "is_cuda": True, "dtype": torch.bfloat16})()
    assert rotation.uses_triton(x_on_cuda) is taken
    assert not rotation.uses_triton(x)
