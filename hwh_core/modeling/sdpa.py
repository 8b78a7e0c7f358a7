"""torch's scaled dot-product attention, without cuDNN where the shapes of inference keep changing.

On Hopper cards torch (2.11 to 2.14) prefers cuDNN, which builds a plan on the host for every new combination of batch
and lengths, in tens of milliseconds. In training a plan serves all steps. In decoding each token lengthens the keys,
and one plan a token and kind of head group would cost several times what all else in the step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F

# From this many queries a pass takes so long that cuDNN, the faster kernel, gains more than its plan costs.
CUDNN_MINIMUM_QUERIES = 16384


def plan_pays(query_length: int, grad_enabled: bool) -> bool:
    """Whether a plan for just these lengths is worth building: in training and for long prompts."""
    return grad_enabled or query_length >= CUDNN_MINIMUM_QUERIES


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Leave cuDNN out of torch's choice of attention kernels; torch keeps that choice for the whole process."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def scaled_dot_product_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scaling: float, mask: torch.Tensor | None, causal: bool
) -> torch.Tensor:
    """q [B, H, Tq, d], k and v [B, G, Tk, d] -> [B, H, Tq, d]; query head h reads key head ``h // (H / G)``.

    ``mask`` is boolean, broadcast to [B, H, Tq, Tk], True where a key is visible. ``causal`` (with Tq = Tk and without
    a mask) hides later keys.
    """
    shared = q.shape[1] != k.shape[1]
    if torch.compiler.is_compiling() or not q.is_cuda or plan_pays(q.shape[2], torch.is_grad_enabled()):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=shared
        )
    with without_cudnn():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=shared
        )
