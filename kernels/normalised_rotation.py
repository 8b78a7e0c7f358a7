"""RMS norm of every head's query or key, then rotary position encoding, as one pass over memory.

For a head vector x of size d with halves a, b: n = x / sqrt(mean(x^2) + eps) * weight, then pair r of n's halves is
turned by the angle whose cosine and sine are given (half-split layout). On CUDA a Triton kernel computes both in
float32 and rounds once (:mod:`.normalised_rotation_triton`, imported on first use), as operators that torch.compile
traces and CUDA graphs hold; the torch form is for everything else.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.

import torch
from torch.nn import functional as F

from .launching import TRITON_IS_INSTALLED

MAXIMUM_HEAD_DIM = 256


def uses_triton(x: torch.Tensor) -> bool:
    """Whether :func:`normalised_rotation` takes the kernels for x [B, T, H, d]: halves must be powers of two."""
    half = x.shape[-1] // 2
    fits = x.shape[-1] <= MAXIMUM_HEAD_DIM and half & (half - 1) == 0
    return x.is_cuda and fits and x.dtype != torch.float64 and TRITON_IS_INSTALLED


def normalised_rotation_torch(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """:func:`normalised_rotation` in plain torch operations, in float32 at least."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    normalised = F.rms_norm(x.to(dtype), (x.shape[-1],), weight.to(dtype), eps)
    first, second = normalised.chunk(2, dim=-1)
    half = x.shape[-1] // 2
    cos, sin = (value[:, :, None, :half].to(dtype) for value in (cos, sin))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def normalised_rotation(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """x [B, T, H, d], weight [d], cos and sin float32 [1 or B, T, d] (halves alike) -> [B, T, H, d], contiguous."""
    if uses_triton(x):
        return _forward(x, weight.float(), cos, sin, eps)
    return normalised_rotation_torch(x, weight, cos, sin, eps)


@torch.library.custom_op("hwh::normalised_rotation_forward", mutates_args=())
def _forward(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
    from . import normalised_rotation_triton as kernel

    return kernel.forward(x, weight, cos, sin, eps)


@_forward.register_fake
def _(x, weight, cos, sin, eps):
    return x.new_empty(x.shape)


@torch.library.custom_op("hwh::normalised_rotation_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x, contiguous in its dtype, and of weight in float32."""
    from . import normalised_rotation_triton as kernel

    return kernel.backward(gradient, x, weight, cos, sin, eps)


@_backward.register_fake
def _(gradient, x, weight, cos, sin, eps):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, gradient):
    return (*_backward(gradient, *ctx.saved_tensors, ctx.eps), None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)
