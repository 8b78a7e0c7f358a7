"""Cross entropy of a linear output layer, whose gradients are computed along with the loss.

The logits of a chunk of tokens are made, turned into their own gradient in place, multiplied into the gradients of the
hidden states and of the weight, and overwritten by the next chunk: they never stand in memory at full length, and
nothing is computed twice. Softmax is taken in float32 whatever the dtype of the logits. The row-wise part is a Triton
kernel on CUDA (:mod:`.cross_entropy_triton`, imported on first use) and :func:`cross_entropy_rows_torch_` elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from .launching import TRITON_IS_INSTALLED

# Tokens whose logits stand at a time. With a vocabulary of 32,000 in bfloat16 that is 0.5 GiB.
CHUNK_ROWS = 8192


def cross_entropy_rows_torch_(logits: torch.Tensor, targets: torch.Tensor, scale: float | None) -> torch.Tensor:
    """:func:`cross_entropy_rows_` in plain torch operations."""
    values = logits.float()
    normaliser = values.logsumexp(dim=-1)
    losses = normaliser - values.gather(1, targets[:, None])[:, 0]
    if scale is not None:
        gradient = (values - normaliser[:, None]).exp_()
        gradient.scatter_add_(1, targets[:, None], gradient.new_full((len(targets), 1), -1.0))
        logits.copy_(gradient.mul_(scale))
    return losses


def cross_entropy_rows_(logits: torch.Tensor, targets: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Cross entropy of every row, float32 [N], in nats.

    logits [N, V] with unit stride along V, targets int64 [N] in 0 .. V - 1. With ``scale``, logits are overwritten by
    ``scale * (softmax(logits) - one_hot(targets))``, computed in float32 and rounded to their dtype; with None they
    stay.
    """
    if not (logits.is_cuda and TRITON_IS_INSTALLED):
        return cross_entropy_rows_torch_(logits, targets, scale)
    from .cross_entropy_triton import cross_entropy_rows_ as on_triton

    return on_triton(logits, targets, scale)


def _product_in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``, rounded to nothing narrower than float32."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk_rows: int
    ) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            losses, hidden_gradient, weight_gradient = _losses_and_gradients(hidden, weight, targets, chunk_rows)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        return losses.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradient, (weight_gradient * gradient).to(ctx.weight_dtype), None, None


def _losses_and_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk_rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses of all tokens float32 [N], gradients of their mean: hidden [N, H] in its dtype, weight float32 [V, H]."""
    narrow = weight.to(hidden.dtype)
    hidden_gradient = torch.empty_like(hidden)
    weight_gradient: torch.Tensor | None = None
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    for start in range(0, len(targets), chunk_rows):
        rows = slice(start, start + chunk_rows)
        logits = hidden[rows] @ narrow.T
        losses[rows] = cross_entropy_rows_(logits, targets[rows], 1 / len(targets))
        torch.mm(logits, narrow, out=hidden_gradient[rows])
        part = _product_in_float32(logits.T, hidden[rows])
        weight_gradient = part if weight_gradient is None else weight_gradient.add_(part)
    assert weight_gradient is not None
    return losses, hidden_gradient, weight_gradient


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunk_rows: int = CHUNK_ROWS
) -> torch.Tensor:
    """Mean of ``cross_entropy(hidden @ weight.T, targets)`` in nats, a float32 scalar, differentiable once.

    hidden [N, H] decides the dtype of the products (float32, bfloat16 or float16); weight [V, H] is rounded to it;
    targets int64 [N], N > 0. The gradient of ``hidden`` comes in its own dtype, that of ``weight`` is summed in
    float32. ``chunk_rows`` tokens are taken at a time. Raises ValueError for shapes that do not fit.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"linear_cross_entropy: hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and targets "
            f"{tuple(targets.shape)} do not fit; expected [N, H], [V, H] and [N]"
        )
    if chunk_rows < 1 or len(targets) == 0:
        raise ValueError(
            f"linear_cross_entropy: {len(targets)} targets in chunks of {chunk_rows}; both must be positive"
        )
    targets = targets.contiguous()
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        return _LinearCrossEntropy.apply(hidden, weight, targets, chunk_rows)
    with torch.autocast(hidden.device.type, enabled=False):
        narrow = weight.to(hidden.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        for part, wanted in zip(hidden.split(chunk_rows), targets.split(chunk_rows), strict=True):
            total += cross_entropy_rows_(part @ narrow.T, wanted, None).sum()
    return total / len(targets)
