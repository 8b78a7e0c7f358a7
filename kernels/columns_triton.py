"""Triton kernel of :mod:`.columns`; importing this module needs Triton."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from .launching import on_device

ROWS, COLUMNS = 4, 256


@triton.jit
def _copy(source, target, rows, width, source_stride, target_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    long_row = row.to(tl.int64)[:, None]
    value = tl.load(source + long_row * source_stride + column[None, :], mask=inside)
    tl.store(target + long_row * target_stride + column[None, :], value, mask=inside)


def join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """``torch.cat(parts, dim=-1)`` for parts [..., C_i] of one dtype and device, one launch a part."""
    widths = [part.shape[-1] for part in parts]
    joined = parts[0].new_empty(*parts[0].shape[:-1], sum(widths))
    flat = joined.view(-1, joined.shape[-1])
    start = 0
    for part, width in zip(parts, widths, strict=True):
        rows = part.reshape(-1, width)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        target = flat[:, start : start + width]
        with on_device(rows.device):
            _copy[(math.ceil(rows.shape[0] / ROWS), math.ceil(width / COLUMNS))](
                rows, target, rows.shape[0], width, rows.stride(0), target.stride(0), ROWS, COLUMNS, num_warps=4
            )
        start += width
    return joined
