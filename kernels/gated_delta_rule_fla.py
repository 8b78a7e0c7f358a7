"""Gated delta rule by flash-linear-attention's Triton kernels, as operators that torch.compile traces.

``fla.ops.gated_delta_rule.chunk_gated_delta_rule`` is hidden from torch.compile. Here its inner functions, called as
version 0.6.0's autograd function calls them (q and k L2-normalised by kernels, chunks of 64 tokens), are wrapped as

- ``hwh::gated_delta_rule_forward(q, k, v, g, beta, scale)`` -> output and what the backward pass needs,
- ``hwh::gated_delta_rule_backward(...)`` -> gradients of q, k, v, g and beta in the dtype of each.

What that function computes anew in the backward pass, the state of each chunk and what it is made of, is kept here:
(3 + D / 64) B T H D values a group more, for a fiftieth of the time of a training step at 380M.

Shapes: q, k, v [B, T, H, D], g (log decay, <= 0) and beta [B, T, H] in float32. Neither operator waits for the device
or allocates by data, so CUDA graphs can hold them. Passes with a cache use the library's own entry points.

fla and Triton are imported at the first call. Every import goes through :func:`prepare_fla`.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.
import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .fla_configs import prepare_fla
from .launching import on_device

CHUNK_SIZE = 64
MAXIMUM_HEAD_DIM = 256


class _Library(NamedTuple):
    """The functions of fla that are used here; the two of chunks are put together from its own."""

    l2norm_forward: Callable[..., Any]
    l2norm_backward: Callable[..., Any]
    chunk_forward: Callable[..., Any]
    chunk_backward: Callable[..., Any]
    chunk: Callable[..., Any]
    recurrent: Callable[..., Any]


@contextlib.contextmanager
def _kernels_alone() -> Iterator[None]:
    """Let the package ``fla`` be imported without its layers and models, which take most of its seconds.

    A package marked as missing is taken for the optional one that it is; afterwards it can be imported as ever.
    """
    heavy = [name for name in ("fla.layers", "fla.models") if "fla" not in sys.modules]
    sys.modules.update(dict.fromkeys(heavy))
    try:
        yield
    finally:
        for name in heavy:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


def import_fla(name: str, device: torch.device) -> Any:
    """Module ``name`` of fla, launch configurations for ``device`` chosen. Raises ImportError that says the mend."""
    prepare_fla(device)
    try:
        with _kernels_alone():
            return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Gated DeltaNet backend 'fla' cannot import {name} ({error}); install flash-linear-attention 0.6.0 and "
            "Triton (make setup EXTRAS=gpu), or set delta_net_backend to 'torch'"
        ) from error


def _chunk_functions(chunk: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward pass over chunks from the functions of fla's module ``chunk``."""

    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, ...]:
        """(output, cumulated g, inverse of the system, w, new values, states before the chunks)."""
        cumulative = chunk.chunk_local_cumsum(g, chunk_size=CHUNK_SIZE, scale=chunk.RCP_LN2)
        w, u, system = chunk.chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=cumulative, beta=beta, chunk_size=CHUNK_SIZE)
        states, new_values, _ = chunk.chunk_gated_delta_rule_fwd_h(
            k=k, w=w, u=u, g=cumulative, initial_state=None, output_final_state=False, chunk_size=CHUNK_SIZE
        )
        output = chunk.chunk_fwd_o(q=q, k=k, v=new_values, h=states, g=cumulative, scale=scale, chunk_size=CHUNK_SIZE)
        return output, cumulative, system, w, new_values, states

    def backward(
        grad: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cumulative: torch.Tensor,
        beta: torch.Tensor,
        system: torch.Tensor,
        w: torch.Tensor,
        new_values: torch.Tensor,
        states: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of q, k, v, g and beta."""
        common = {"q": q, "k": k, "g": cumulative, "do": grad, "scale": scale, "chunk_size": CHUNK_SIZE}
        dv = chunk.chunk_bwd_dv_local(**common)
        dstates, _, dv = chunk.chunk_gated_delta_rule_bwd_dhu(**common, w=w, h0=None, dht=None, dv=dv)
        dq, dk, dw, dg = chunk.chunk_bwd_dqkwg(**common, v=new_values, w=w, h=states, dv=dv, dh=dstates)
        more_dk, dv, dbeta, more_dg = chunk.prepare_wy_repr_bwd(
            k=k, v=v, beta=beta, g=cumulative, A=system, dw=dw, du=dv
        )
        dg = chunk.chunk_local_cumsum(dg.add_(more_dg), chunk_size=CHUNK_SIZE, reverse=True)
        return dq, dk.add_(more_dk), dv, dg, dbeta

    return forward, backward


@functools.cache
def _library(device: torch.device) -> _Library:
    chunk = import_fla("fla.ops.gated_delta_rule.chunk", device)
    recurrent = import_fla("fla.ops.gated_delta_rule.fused_recurrent", device)
    return _Library(
        chunk.l2norm_fwd,
        chunk.l2norm_bwd,
        *_chunk_functions(chunk),
        chunk.chunk_gated_delta_rule,
        recurrent.fused_recurrent_gated_delta_rule,
    )


@torch.library.custom_op("hwh::gated_delta_rule_forward", mutates_args=())
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float
) -> list[torch.Tensor]:
    """Output, normalised q, inverse norms, normalised k, inverse norms, and what the pass over chunks gives further."""
    library = _library(q.device)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    with on_device(q.device):
        q, q_rstd = library.l2norm_forward(q)
        k, k_rstd = library.l2norm_forward(k)
        output, *kept = library.chunk_forward(q, k, v, g, beta, scale)
    return [output.to(v.dtype), q, q_rstd, k, k_rstd, *kept]


@_forward.register_fake
def _(q, k, v, g, beta, scale):
    def new(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return like.new_empty(shape or like.shape, dtype=dtype or like.dtype)

    batch, length, heads, head_dim = q.shape
    system = new(k, batch, length, heads, CHUNK_SIZE)
    states = new(k, batch, (length + CHUNK_SIZE - 1) // CHUNK_SIZE, heads, head_dim, head_dim)
    q_rstd, k_rstd = (new(x, batch, length, heads, dtype=torch.float32) for x in (q, k))
    kept = [new(g, dtype=torch.float32), system, new(k), new(v), states]
    return [new(v), new(q), q_rstd, new(k), k_rstd, *kept]


@torch.library.custom_op("hwh::gated_delta_rule_backward", mutates_args=())
def _backward(
    grad: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, kept: list[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k, v, g, beta from the gradient of the output and what the forward operator returned besides."""
    library = _library(v.device)
    grad, v, beta = (x.contiguous() for x in (grad, v, beta))
    q, q_rstd, k, k_rstd, cumulative, system, w, new_values, states = kept
    with on_device(v.device):
        dq, dk, dv, dg, dbeta = library.chunk_backward(
            grad, q, k, v, cumulative, beta, system, w, new_values, states, scale
        )
        dq = library.l2norm_backward(q, q_rstd, dq)
        dk = library.l2norm_backward(k, k_rstd, dk)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dg.to(cumulative.dtype), dbeta.to(beta.dtype)


@_backward.register_fake
def _(grad, v, beta, kept, scale):
    q, _, k, _, cumulative, *_ = kept
    return tuple(x.new_empty(x.shape) for x in (q, k, v, cumulative, beta))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    _, _, v, _, beta, ctx.scale = inputs
    ctx.save_for_backward(v, beta, *output[1:])
    # Nobody differentiates what is only saved: no zero gradients are made for it.
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward_of_forward(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    if grads[0] is None:
        return (None,) * 6
    v, beta, *kept = ctx.saved_tensors
    return (*torch.ops.hwh.gated_delta_rule_backward(grads[0], v, beta, kept, ctx.scale), None)


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
