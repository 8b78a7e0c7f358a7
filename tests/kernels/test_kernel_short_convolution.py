"""Convolution with SiLU: the Triton kernels (on a GPU, otherwise interpreted) and their operators against torch."""

from __future__ import annotations

import pytest
import torch
import triton
from torch.nn import functional as F

from hwh_kernels import short_convolution as convolution
from hwh_kernels import short_convolution_triton as kernel

DEVICE = "cuda" if isinstance(kernel._forward, triton.runtime.JITFunction) else "cpu"
LAUNCH = kernel.Launch(rows=8, channels=16, num_warps=1)


def by_conv1d(x, weight):
    """The same by torch's own convolution, in float64."""
    size, width = weight.shape[1], x.shape[2]
    z = F.conv1d(F.pad(x.double().mT, (size - 1, 0)), weight.double()[:, None], groups=width).mT
    return F.silu(z)


def inputs(batch=2, length=21, width=19, size=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(batch, length, width + 5, generator=generator).to(dtype)
    weight = torch.randn(width, size, generator=generator)
    gradient = torch.randn(batch, length, width, generator=generator).to(dtype)
    return whole[..., 3 : 3 + width], weight, gradient


def gradients(function, x, weight, gradient):
    leaves = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    output = function(*leaves)
    return output, *torch.autograd.grad(output, leaves, gradient.to(output.dtype))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 21])
def test_torch_form(size, length):
    x, weight, _ = inputs(length=length, size=size)
    value = convolution.short_convolution(x, weight)
    torch.testing.assert_close(value.double(), by_conv1d(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 8, 21])
def test_kernels_in_float32(length):
    """Output and both gradients; x is a slice whose rows are farther apart than they are wide."""
    x, weight, gradient = inputs(length=length)
    wanted = gradients(by_conv1d, x, weight, gradient)
    moved = [value.to(DEVICE) for value in (x, weight, gradient)]
    output = kernel.forward(moved[0], moved[1], LAUNCH).cpu()
    x_gradient, weight_gradient = (value.cpu() for value in kernel.backward(moved[2], *moved[:2], LAUNCH))
    for value, truth in zip((output, x_gradient, weight_gradient), wanted, strict=True):
        torch.testing.assert_close(value.double(), truth.double(), rtol=1e-5, atol=1e-5)


def test_kernels_in_bfloat16():
    """Inputs are rounded once; sums are float32, so the error is that of rounding the results."""
    x, weight, gradient = inputs(dtype=torch.bfloat16)
    wanted = gradients(by_conv1d, x.float(), weight, gradient.float())
    moved = [value.to(DEVICE) for value in (x, weight, gradient)]
    output = kernel.forward(moved[0], moved[1], LAUNCH).cpu()
    x_gradient, weight_gradient = (value.cpu() for value in kernel.backward(moved[2], *moved[:2], LAUNCH))
    assert output.dtype == x_gradient.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), wanted[0].double(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(x_gradient.double(), wanted[1].double(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(weight_gradient.double(), wanted[2].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_operators_differentiate_and_compile(size, monkeypatch):
    """What CUDA tensors take, in one graph: the taps are filled up, gradients reach the unpadded weight."""
    monkeypatch.setattr(convolution, "uses_triton", lambda x, size: True)
    x, weight, gradient = (value.to(DEVICE) for value in inputs(size=size, length=9))
    wanted = gradients(by_conv1d, x, weight, gradient)
    compiled = torch.compile(convolution.short_convolution, fullgraph=True, backend="aot_eager")
    for function in (convolution.short_convolution, compiled):
        for value, truth in zip(gradients(function, x, weight, gradient), wanted, strict=True):
            torch.testing.assert_close(value.double(), truth.double(), rtol=1e-5, atol=1e-5)


def test_operators_keep_their_contract():
    x, weight, gradient = (value.to(DEVICE) for value in inputs(length=9))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(convolution._forward, (x.clone().requires_grad_(), weight), test_utils=tests)
    torch.library.opcheck(convolution._backward, (gradient, x, weight), test_utils=tests)
