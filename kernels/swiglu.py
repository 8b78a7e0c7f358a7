"""SwiGLU's product and its projection down, ``(silu(gate) * up) @ weight.T``, from gate and up side by side.

Gate and up come as one tensor, as one matrix product makes them, and their gradients leave as one, so that nothing is
cut or joined in memory. The product is not kept for the backward pass but computed again along with the gradients: a
single kernel reads gate, up and the gradient and writes all three. On CUDA that kernel is Triton's
(:mod:`.swiglu_triton`, imported on first use), as operators that torch.compile traces and CUDA graphs hold.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.

import torch
from torch.nn import functional as F

from .launching import TRITON_IS_INSTALLED


def uses_triton(x: torch.Tensor) -> bool:
    """Whether :func:`swiglu_down` takes the kernels for ``x``."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and TRITON_IS_INSTALLED


def swiglu_down_torch(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """:func:`swiglu_down` in plain torch operations."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weight)


def swiglu_down(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """gate_up [..., 2 I] (gate, then up), weight [H, I] of the same dtype -> [..., H].

    silu is taken in float32 and the product rounded once.
    """
    if uses_triton(gate_up):
        return _forward(gate_up, weight)
    return swiglu_down_torch(gate_up, weight)


@torch.library.custom_op("hwh::swiglu_down_forward", mutates_args=())
def _forward(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from . import swiglu_triton as kernel

    product = kernel.forward(gate_up.reshape(-1, gate_up.shape[-1]))
    return (product @ weight.T).view(*gate_up.shape[:-1], weight.shape[0])


@_forward.register_fake
def _(gate_up, weight):
    return gate_up.new_empty(*gate_up.shape[:-1], weight.shape[0])


@torch.library.custom_op("hwh::swiglu_down_backward", mutates_args=())
def _backward(gradient: torch.Tensor, gate_up: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gate_up, contiguous, and of weight, each in its dtype."""
    from . import swiglu_triton as kernel

    rows = gradient.reshape(-1, gradient.shape[-1])
    joint_gradient, product = kernel.backward(rows @ weight, gate_up.reshape(-1, gate_up.shape[-1]))
    return joint_gradient.view(gate_up.shape), rows.T @ product


@_backward.register_fake
def _(gradient, gate_up, weight):
    return gate_up.new_empty(gate_up.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, gradient):
    return _backward(gradient, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_save)
