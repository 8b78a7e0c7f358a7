"""Gated delta rule by flash-linear-attention's Triton kernels, as operators that torch.compile traces.

``fla.ops.gated_delta_rule.chunk_gated_delta_rule`` is hidden from torch.compile. Here its inner functions, called as
version 0.6.0's autograd function calls them (q and k L2-normalised by kernels, chunks of 64 tokens, the state of each
chunk recomputed in the backward pass), are wrapped as

- ``hwh::gated_delta_rule_forward(q, k, v, g, beta, scale)`` -> output and what the backward pass needs,
- ``hwh::gated_delta_rule_backward(...)`` -> gradients of q, k, v, g and beta in the dtype of each.

Shapes: q, k, v [B, T, H, D], g (log decay, <= 0) and beta [B, T, H] in float32. Neither operator waits for the device
or allocates by data, so CUDA graphs can hold them. Passes with a cache use the library's own entry points.

fla and Triton are imported at the first call. Every import goes through :func:`prepare_fla`.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.
import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .fla_configs import prepare_fla

CHUNK_SIZE = 64
MAXIMUM_HEAD_DIM = 256


class _Library(NamedTuple):
    """The functions of fla that are used here."""

    l2norm_forward: Callable[..., Any]
    l2norm_backward: Callable[..., Any]
    chunk_forward: Callable[..., Any]
    chunk_backward: Callable[..., Any]
    chunk: Callable[..., Any]
    recurrent: Callable[..., Any]


def import_fla(name: str, device: torch.device) -> Any:
    """Module ``name`` of fla, launch configurations for ``device`` chosen. Raises ImportError that says the mend."""
    prepare_fla(device)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Gated DeltaNet backend 'fla' cannot import {name} ({error}); install flash-linear-attention 0.6.0 and "
            "Triton (make setup EXTRAS=gpu), or set delta_net_backend to 'torch'"
        ) from error


@functools.cache
def _library(device: torch.device) -> _Library:
    chunk = import_fla("fla.ops.gated_delta_rule.chunk", device)
    recurrent = import_fla("fla.ops.gated_delta_rule.fused_recurrent", device)
    return _Library(
        chunk.l2norm_fwd,
        chunk.l2norm_bwd,
        chunk.chunk_gated_delta_rule_fwd,
        chunk.chunk_gated_delta_rule_bwd,
        chunk.chunk_gated_delta_rule,
        recurrent.fused_recurrent_gated_delta_rule,
    )


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@torch.library.custom_op("hwh::gated_delta_rule_forward", mutates_args=())
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output, normalised q, inverse norms, normalised k, inverse norms, cumulated g, inverse of the system)."""
    library = _library(q.device)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    with _on_device(q.device):
        q, q_rstd = library.l2norm_forward(q)
        k, k_rstd = library.l2norm_forward(k)
        cumulative, output, system, *_ = library.chunk_forward(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            scale=scale,
            initial_state=None,
            output_final_state=False,
            chunk_size=CHUNK_SIZE,
        )
    return output.to(v.dtype), q, q_rstd, k, k_rstd, cumulative, system


@_forward.register_fake
def _(q, k, v, g, beta, scale):
    def new(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return like.new_empty(shape or like.shape, dtype=dtype or like.dtype)

    batch, length, heads, _ = q.shape
    system = new(k, batch, length, heads, CHUNK_SIZE)
    q_rstd, k_rstd = (new(x, batch, length, heads, dtype=torch.float32) for x in (q, k))
    return new(v), new(q), q_rstd, new(k), k_rstd, new(g, dtype=torch.float32), system


@torch.library.custom_op("hwh::gated_delta_rule_backward", mutates_args=())
def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    q_rstd: torch.Tensor,
    k: torch.Tensor,
    k_rstd: torch.Tensor,
    v: torch.Tensor,
    cumulative: torch.Tensor,
    beta: torch.Tensor,
    system: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k, v, g, beta from the gradient of the output and what the forward operator returned."""
    library = _library(q.device)
    grad, v, beta = (x.contiguous() for x in (grad, v, beta))
    with _on_device(q.device):
        dq, dk, dv, dbeta, dg, *_ = library.chunk_backward(
            q=q,
            k=k,
            v=v,
            g=cumulative,
            beta=beta,
            A=system,
            scale=scale,
            initial_state=None,
            do=grad,
            dht=None,
            chunk_size=CHUNK_SIZE,
        )
        dq = library.l2norm_backward(q, q_rstd, dq)
        dk = library.l2norm_backward(k, k_rstd, dk)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dg.to(cumulative.dtype), dbeta.to(beta.dtype)


@_backward.register_fake
def _(grad, q, q_rstd, k, k_rstd, v, cumulative, beta, system, scale):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, cumulative, beta))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, _, v, _, beta, ctx.scale = inputs
    _, q, q_rstd, k, k_rstd, cumulative, system = output
    ctx.save_for_backward(q, q_rstd, k, k_rstd, v, cumulative, beta, system)
    # Nobody differentiates what is only saved: no zero gradients are made for it.
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward_of_forward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    return (*torch.ops.hwh.gated_delta_rule_backward(grad, *ctx.saved_tensors, ctx.scale), None)


_forward.register_autograd(_backward_of_forward, setup_context=_setup_context)


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float
) -> torch.Tensor:
    """Output [B, T, H, D] in the dtype of v, without a state before or after; differentiable and traceable.

    q and k are L2-normalised here. Raises ValueError for g or beta in less than float32, whose gradients would lose
    what the decay accumulates, and for shapes that the kernels do not take.
    """
    if q.shape != k.shape or q.shape != v.shape or g.shape != q.shape[:-1] or beta.shape != q.shape[:-1]:
        raise ValueError(
            "gated delta rule: expected q, k, v [B, T, H, D] alike and g, beta [B, T, H], got "
            + ", ".join(str(tuple(x.shape)) for x in (q, k, v, g, beta))
        )
    if g.dtype != torch.float32 or beta.dtype != torch.float32:
        raise ValueError(f"gated delta rule: g and beta must be float32, got {g.dtype} and {beta.dtype}")
    if q.shape[-1] > MAXIMUM_HEAD_DIM:
        raise ValueError(f"gated delta rule: head_dim = {q.shape[-1]} is above {MAXIMUM_HEAD_DIM}; use backend 'torch'")
    return torch.ops.hwh.gated_delta_rule_forward(q, k, v, g, beta, scale)[0]


def gated_delta_rule_with_state(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor | None,
    recurrent: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output [B, T, H, D], state after it [B, H, D, D]), going on from ``initial_state``; not traceable.

    ``recurrent`` takes token by token, the cheaper way for a few tokens, and has no gradient.
    """
    library = _library(q.device)
    rule = library.recurrent if recurrent else library.chunk
    return rule(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
