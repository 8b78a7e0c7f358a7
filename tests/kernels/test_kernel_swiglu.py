"""SwiGLU with its projection down: the Triton kernels (on a GPU, otherwise interpreted) and operators against torch."""

from __future__ import annotations

import pytest
import torch
import triton

from hwh_kernels import swiglu
from hwh_kernels import swiglu_triton as kernel

DEVICE = "cuda" if isinstance(kernel._swiglu_forward, triton.runtime.JITFunction) else "cpu"
LAUNCH = kernel.Launch(rows=2, columns=16, num_warps=1)


def inputs(rows=5, width=21, hidden=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    gate_up = 3 * torch.randn(1, rows, 2 * width, generator=generator)
    weight = torch.randn(hidden, width, generator=generator)
    gradient = torch.randn(1, rows, hidden, generator=generator)
    return [value.to(dtype) for value in (gate_up, weight, gradient)]


def gradients(function, gate_up, weight, gradient):
    leaves = gate_up.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    output = function(*leaves)
    return [value.cpu().double() for value in (output.detach(), *torch.autograd.grad(output, leaves, gradient))]


def truth(gate_up, weight, gradient):
    """By the torch form in float64."""
    return gradients(swiglu.swiglu_down_torch, gate_up.double(), weight.double(), gradient.double())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_kernels(dtype, tolerance):
    """The product and the joint gradient, at sizes that fill no block."""
    gate_up, _, _ = inputs(dtype=dtype)
    joint = gate_up[0]
    generator = torch.Generator().manual_seed(1)
    outer = torch.randn(5, 21, generator=generator).to(dtype)
    leaf = joint.double().requires_grad_()
    gate, up = leaf.chunk(2, dim=-1)
    product = torch.nn.functional.silu(gate) * up
    (wanted,) = torch.autograd.grad(product, leaf, outer.double())
    joint, outer = joint.to(DEVICE), outer.to(DEVICE)
    joint_gradient, again = kernel.backward(outer, joint, LAUNCH)
    forward = kernel.forward(joint, LAUNCH)
    assert forward.dtype == joint_gradient.dtype == dtype
    torch.testing.assert_close(again, forward, rtol=0, atol=0)
    torch.testing.assert_close(forward.cpu().double(), product.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(joint_gradient.cpu().double(), wanted, rtol=tolerance, atol=tolerance)


def test_operators_differentiate_and_compile(monkeypatch):
    monkeypatch.setattr(swiglu, "uses_triton", lambda x: True)
    values = inputs()
    wanted = truth(*values)
    moved = [value.to(DEVICE) for value in values]
    compiled = torch.compile(swiglu.swiglu_down, fullgraph=True, backend="aot_eager")
    for function in (swiglu.swiglu_down, compiled):
        for value, exact in zip(gradients(function, *moved), wanted, strict=True):
            torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-5)


def test_without_a_gpu_plain_torch_is_taken():
    values = inputs(rows=3, width=4)
    for value, exact in zip(gradients(swiglu.swiglu_down, *values), truth(*values), strict=True):
        torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-5)


def test_operators_keep_their_contract():
    gate_up, weight, gradient = (value.to(DEVICE) for value in inputs(rows=2, width=8))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(swiglu._forward, (gate_up.requires_grad_(), weight), test_utils=tests)
    torch.library.opcheck(swiglu._backward, (gradient, gate_up.detach(), weight), test_utils=tests)
