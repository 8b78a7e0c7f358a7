"""Depthwise causal convolution of a few taps, then SiLU: what Gated DeltaNet puts behind its q, k and v projections.

y_t = silu(sum_j w_j x_(t - size + 1 + j)) for every channel. On CUDA a Triton kernel (:mod:`.short_convolution_triton`)
computes it as operators that torch.compile traces and CUDA graphs hold; elsewhere plain torch does.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.

import torch
from torch.nn import functional as F

from .launching import TRITON_IS_INSTALLED

MAXIMUM_SIZE = 4
"""Taps that the kernel holds."""


def short_convolution_torch(padded: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """SiLU of the convolution in torch: padded [B, size - 1 + T, C], weight [C, size] -> [B, T, C], in its dtype."""
    size = weight.shape[1]
    length = padded.shape[1] - size + 1
    # A sum of shifted products: for 4 taps faster than conv1d on CPU, forward and backward, without a transpose.
    taps = weight.to(padded.dtype)
    output = padded[:, :length] * taps[:, 0]
    for offset in range(1, size):
        output = torch.addcmul(output, padded[:, offset : offset + length], taps[:, offset])
    return F.silu(output)


def uses_triton(x: torch.Tensor, size: int) -> bool:
    """Whether :func:`short_convolution` takes the kernel for ``x``."""
    return x.is_cuda and size <= MAXIMUM_SIZE and x.dtype != torch.float64 and TRITON_IS_INSTALLED


def short_convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [B, T, C], weight [C, size] -> [B, T, C] in the dtype of x; zeros stand before the first token.

    On CUDA the sum is taken in float32, with float32 taps; elsewhere in the dtype of x.
    """
    size = weight.shape[1]
    if uses_triton(x, size):
        # Fewer taps are four whose first ones are zero.
        return _forward(_rows(x), F.pad(weight.float(), (MAXIMUM_SIZE - size, 0)))
    return short_convolution_torch(F.pad(x, (0, 0, size - 1, 0)), weight)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("hwh::short_convolution_forward", mutates_args=())
def _forward(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Kernel: x [B, T, C] with unit stride along C, taps float32 [C, 4]."""
    from . import short_convolution_triton as kernel

    return kernel.forward(_rows(x), taps.contiguous())


@_forward.register_fake
def _(x, taps):
    return x.new_empty(x.shape)


@torch.library.custom_op("hwh::short_convolution_backward", mutates_args=())
def _backward(gradient: torch.Tensor, x: torch.Tensor, taps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Kernel: gradients of x, contiguous in its dtype, and of taps float32 [C, 4]."""
    from . import short_convolution_triton as kernel

    return kernel.backward(_rows(gradient), _rows(x), taps.contiguous())


@_backward.register_fake
def _(gradient, x, taps):
    return x.new_empty(x.shape), taps.new_empty(taps.shape, dtype=torch.float32)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, gradient):
    return _backward(gradient, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_save)
