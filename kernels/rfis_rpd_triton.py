"""RFIS and RPD by the Triton kernel of :mod:`hwh_kernels.rfis_rpd_kernels`: its inputs and launches, chunk by chunk.

Launch configurations are passed in (:class:`LaunchConfig`), so that the kernel runs in Triton's interpreter too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .launching import on_device
from .rfis_rpd_kernels import LOG2E, divergence_kernel
from .rfis_rpd_reference import (
    Pairing,
    angles,
    js_of_removed,
    rotate_pairs,
    softcapped_difference,
    split_pairs,
    visible_keys,
)

CHUNK_BYTES = 32 * 2**20
"""Log-probabilities that stand in memory at a time; a chunk holds at least one head."""


@dataclass(frozen=True)
class LaunchConfig:
    """Frequencies, queries and keys of a tile (powers of two), warps of a program, tiles of keys read ahead."""

    block_f: int
    block_q: int
    block_k: int
    num_warps: int
    num_stages: int = 3


DEFAULT_CONFIG = LaunchConfig(block_f=1, block_q=4, block_k=128, num_warps=1)


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for the compiler (TRITON_INTERPRET=1 when the kernel was defined)."""
    return not isinstance(divergence_kernel, triton.runtime.JITFunction)


def rfis_rpd_triton(
    q: Tensor,
    k: Tensor,
    inv_freq: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scaling: float,
    attention_scaling: float = 1.0,
    pairing: Pairing = "half",
    window: int | None = None,
    key_mask: Tensor | None = None,
    softcap: float | None = None,
    config: LaunchConfig = DEFAULT_CONFIG,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """RFIS and RPD of every query, each float32 [H, F, Q], and RFIS [H, Q] of the unrotated dimensions (None: none).

    Arguments as in :func:`hwh_kernels.rfis_rpd_reference.rfis_rpd_per_query`, float32 on a CUDA device (anywhere in the
    interpreter). Extra memory: about twice :data:`CHUNK_BYTES` (or two heads' log-probabilities [Q, T]), 16 bytes for
    each frequency of each key, and the results.
    """
    heads, queries, head_dim = q.shape
    groups, keys, _ = k.shape
    frequencies, per_group = inv_freq.numel(), heads // groups
    padded = math.ceil(keys / config.block_k) * config.block_k
    visible = visible_keys(query_positions, key_positions, window, key_mask)
    scale = scaling * attention_scaling**2

    key_factors = k.new_zeros(groups, 4, frequencies, padded)
    plain = split_pairs(k, frequencies, pairing)
    rotated = rotate_pairs(*plain, angles(key_positions, inv_freq, torch.float32))
    for index, factor in enumerate((*rotated, *plain)):
        key_factors[:, index, :, :keys] = factor.transpose(1, 2)
    del plain, rotated, factor
    first, second = split_pairs(q, frequencies, pairing)
    turned = rotate_pairs(first, second, angles(query_positions, inv_freq, torch.float32))
    # -c log2(e) of a frequency is the product of these with the key's factors: rotated pairs, and minus the plain ones.
    query_factors = torch.stack((-turned[0], -turned[1], first, second), dim=1).mul_(scale * LOG2E)  # [H, 4, Q, F]
    query_factors = query_factors.permute(0, 3, 1, 2).contiguous()  # [H, F, 4, Q]
    turned_q = torch.cat(turned, dim=-1).mul_(scale)  # [H, Q, 2F]
    rotated_k = key_factors[:, :2].reshape(groups, 2 * frequencies, padded)

    out = q.new_empty(2, heads, frequencies, queries)
    rest_out = q.new_empty(heads, queries) if head_dim > 2 * frequencies else None
    lengths = (key_factors[:, 2].square() + key_factors[:, 3].square()).amax(dim=-1).sqrt_()
    spread = (query_positions[:, None] - key_positions[None, :]).abs().max()
    turns = (inv_freq.float().abs() * spread).clamp_max_(2.0)
    seen = _tiles_seen(visible, config)
    grid_fq = (triton.cdiv(frequencies, config.block_f), triton.cdiv(queries, config.block_q))
    for start, stop in _head_chunks(heads, per_group, max(1, CHUNK_BYTES // (4 * queries * padded))):
        low, high = start // per_group, (stop - 1) // per_group + 1
        rows = turned_q[start:stop].reshape(high - low, -1, 2 * frequencies)
        logits = torch.bmm(rows, rotated_k[low:high]).view(stop - start, queries, padded)
        rest = None
        if rest_out is not None:
            rest_q = q[start:stop, :, 2 * frequencies :].reshape(high - low, -1, head_dim - 2 * frequencies)
            rest = torch.bmm(rest_q, k[low:high, :, 2 * frequencies :].transpose(1, 2)).mul_(scaling)
            rest = rest.view(stop - start, queries, keys)
            logits[..., :keys] += rest
        capped = logits if softcap is None else torch.tanh(logits / softcap).mul_(softcap)
        log_p = torch.empty_like(capped)
        log_p[..., keys:] = -math.inf
        log_p[..., :keys] = torch.log_softmax(capped[..., :keys].masked_fill(~visible, -math.inf), dim=-1)
        if rest_out is not None and rest is not None:
            removed = rest if softcap is None else softcapped_difference(logits[..., :keys], rest, softcap)
            rest_out[start:stop] = js_of_removed(log_p[..., :keys], removed, visible)
        with on_device(q.device):
            divergence_kernel[(*grid_fq, stop - start)](
                query_factors, key_factors, lengths, turns, log_p.mul_(LOG2E), logits, seen, out,
                start, per_group, heads, queries, padded, frequencies, softcap or 1.0,
                CAPPED=softcap is not None, FAST=not interpreted(),
                BLOCK_F=config.block_f, BLOCK_Q=config.block_q, BLOCK_K=config.block_k, STAGES=config.num_stages,
                num_warps=config.num_warps,
            )  # fmt: skip
    return out[0].clamp_min_(0.0), out[1].clamp_min_(0.0), rest_out


def _head_chunks(heads: int, per_group: int, most: int) -> list[tuple[int, int]]:
    """Ranges of at most ``most`` heads: whole groups that share keys, or parts of one such group."""
    size = most // per_group * per_group
    if size:
        return [(start, min(heads, start + size)) for start in range(0, heads, size)]
    return [
        (start, min(group + per_group, start + most))
        for group in range(0, heads, per_group)
        for start in range(group, group + per_group, most)
    ]


def _tiles_seen(visible: Tensor, config: LaunchConfig) -> Tensor:
    """First tile of keys and last + 1 that any query of a block sees: int32 [query blocks, 2]."""
    queries, keys = visible.shape
    blocks = math.ceil(queries / config.block_q)
    tiles = math.ceil(keys / config.block_k)
    seen = torch.nn.functional.pad(visible, (0, tiles * config.block_k - keys, 0, blocks * config.block_q - queries))
    seen = seen.view(blocks, config.block_q, tiles, config.block_k).any(dim=3).any(dim=1)
    places = torch.arange(tiles, device=visible.device)
    first = torch.where(seen, places, tiles).amin(dim=1)
    last = torch.where(seen, places, -1).amax(dim=1) + 1
    return torch.stack((first, last), dim=1).to(torch.int32).contiguous()
