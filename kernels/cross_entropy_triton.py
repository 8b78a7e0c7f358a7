"""Triton kernel of :mod:`.cross_entropy`: row-wise cross entropy of logits, their gradient written over them.

Importing this module needs Triton; :mod:`.cross_entropy` imports it on the first CUDA tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launching import on_device


class Launch(NamedTuple):
    """Launch configuration: columns taken at a time, and warps of a row's program."""

    block_size: int = 8192
    num_warps: int = 16


DEFAULT_LAUNCH = Launch()


@triton.jit
def _cross_entropy_rows(
    logits,
    targets,
    losses,
    row_stride,
    columns,
    scale,
    WRITE_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    target = tl.load(targets + row)
    # Read before anything is written over it: all warps pass the reductions below in between.
    wanted = tl.load(logits + target).to(tl.float32)
    offsets = tl.arange(0, BLOCK)
    maximum = float("-inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        inside = start + offsets < columns
        x = tl.load(logits + start + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(maximum, tl.max(x, axis=0))
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(x - larger), axis=0)
        maximum = larger
    normaliser = maximum + tl.log(total)
    tl.store(losses + row, normaliser - wanted)
    if WRITE_GRADIENT:
        for start in range(0, columns, BLOCK):
            place = start + offsets
            inside = place < columns
            x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(x - normaliser) - tl.where(place == target, 1.0, 0.0)
            tl.store(logits + place, (gradient * scale).to(logits.dtype.element_ty), mask=inside)


def cross_entropy_rows_(
    logits: torch.Tensor, targets: torch.Tensor, scale: float | None, launch: Launch = DEFAULT_LAUNCH
) -> torch.Tensor:
    """The contract of :func:`hwh_kernels.cross_entropy.cross_entropy_rows_`, with a launch configuration."""
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    with on_device(logits.device):
        _cross_entropy_rows[(rows,)](
            logits,
            targets,
            losses,
            logits.stride(0),
            columns,
            0.0 if scale is None else scale,
            WRITE_GRADIENT=scale is not None,
            BLOCK=min(launch.block_size, triton.next_power_of_2(columns)),
            num_warps=launch.num_warps,
        )
    return losses
