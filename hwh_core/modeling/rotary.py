"""Rotary position encoding: angles in float32 from integer positions, and the one function that rotates q and k.

Probes replace :func:`apply_rotary_pos_emb` in this module to see q and k after QK-norm and before rotation, so every
caller reaches it as ``rotary.apply_rotary_pos_emb(q, k, cos, sin)``, an attribute of this module. Groups without
position encoding do not call it. The layout is half-split: dimensions (r, r + head_dim / 2) form frequency pair r.
"""

from __future__ import annotations

import torch


def inverse_frequencies(head_dim: int, rope_theta: float, device: torch.device | str | None = None) -> torch.Tensor:
    """Angular frequencies ``rope_theta ** (-2 r / head_dim)``, r = 0 the highest: float32 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return torch.pow(torch.tensor(rope_theta, dtype=torch.float64, device=device), -exponent).float()


def cos_sin(inv_freq: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the angles of integer ``positions`` [B, T]: two float32 tensors [B, T, head_dim].

    Computed anew in every forward pass, so that no buffer can be lost or cast to bfloat16 when a model is loaded.
    """
    angles = positions[..., None].to(torch.float32) * inv_freq.to(torch.float32)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(x1, x2) -> (-x2, x1) over the two halves of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q [B, H, T, head_dim] and k [B, G, T, head_dim] by float32 ``cos`` and ``sin`` [B or 1, T, head_dim].

    The product is taken in float32 and returned in the dtype of the inputs.
    """
    cos, sin = cos[:, None], sin[:, None]
    if q.dtype == torch.float64:
        cos, sin = cos.double(), sin.double()
    rotated_q = (q * cos + rotate_half(q) * sin).to(q.dtype)
    rotated_k = (k * cos + rotate_half(k) * sin).to(k.dtype)
    return rotated_q, rotated_k
