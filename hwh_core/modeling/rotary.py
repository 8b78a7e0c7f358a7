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
    # A plain number as the base: as a tensor it would have to be copied to the device, which CUDA graphs forbid.
    return torch.pow(float(rope_theta), -exponent).float()


def cos_sin(inv_freq: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the angles of integer ``positions`` [B, T]: two float32 tensors [B, T, head_dim].

    Computed anew in every forward pass, so that no buffer can be lost or cast to bfloat16 when a model is loaded.
    """
    angles = positions[..., None].to(torch.float32) * inv_freq.to(torch.float32)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # unbind rather than two slices: its backward is one stack, that of slices fills two tensors with zeros and adds.
    first, second = x.unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q [B, H, T, head_dim] and k [B, G, T, head_dim] by float32 ``cos`` and ``sin`` [B or 1, T, head_dim].

    The product is taken in float32 and returned in the dtype of the inputs.
    """
    half = q.shape[-1] // 2
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    cos, sin = cos[:, None, :, :half].to(dtype), sin[:, None, :, :half].to(dtype)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)
