"""Triton kernels of :mod:`.short_convolution`: forward and backward, each reading and writing everything once.

A program walks along time over a block of channels and keeps the last rows in registers, so that no tap loads a row
again. Importing this module needs Triton; :mod:`.short_convolution` imports it on the first CUDA tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Launch(NamedTuple):
    """Launch configuration: rows and channels of a program, and its warps."""

    rows: int = 32
    channels: int = 128
    num_warps: int = 1


DEFAULT_LAUNCH = Launch()


@triton.jit
def _forward(x, weight, y, batch_stride, row_stride, length, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    start = tl.program_id(1).to(tl.int64) * ROWS
    sequence = tl.program_id(2).to(tl.int64)
    x += sequence * batch_stride + channel
    y += sequence * length * width + channel
    w0 = tl.load(weight + channel * 4, mask=inside, other=0.0)
    w1 = tl.load(weight + channel * 4 + 1, mask=inside, other=0.0)
    w2 = tl.load(weight + channel * 4 + 2, mask=inside, other=0.0)
    w3 = tl.load(weight + channel * 4 + 3, mask=inside, other=0.0)
    x0 = tl.load(x + (start - 3) * row_stride, mask=inside & (start > 2), other=0.0).to(tl.float32)
    x1 = tl.load(x + (start - 2) * row_stride, mask=inside & (start > 1), other=0.0).to(tl.float32)
    x2 = tl.load(x + (start - 1) * row_stride, mask=inside & (start > 0), other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        t = start + row
        real = inside & (t < length)
        x3 = tl.load(x + t * row_stride, mask=real, other=0.0).to(tl.float32)
        z = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        tl.store(y + t * width, (z / (1.0 + tl.exp(-z))).to(y.dtype.element_ty), mask=real)
        x0, x1, x2 = x1, x2, x3


@triton.jit
def _backward(
    gradient,
    x,
    weight,
    x_gradient,
    weight_gradient,
    gradient_batch_stride,
    gradient_row_stride,
    batch_stride,
    row_stride,
    length,
    width,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    block = tl.program_id(1)
    start = block.to(tl.int64) * ROWS
    sequence = tl.program_id(2).to(tl.int64)
    x += sequence * batch_stride + channel
    gradient += sequence * gradient_batch_stride + channel
    x_gradient += sequence * length * width + channel
    w0 = tl.load(weight + channel * 4, mask=inside, other=0.0)
    w1 = tl.load(weight + channel * 4 + 1, mask=inside, other=0.0)
    w2 = tl.load(weight + channel * 4 + 2, mask=inside, other=0.0)
    w3 = tl.load(weight + channel * 4 + 3, mask=inside, other=0.0)
    x0 = tl.load(x + (start - 3) * row_stride, mask=inside & (start > 2), other=0.0).to(tl.float32)
    x1 = tl.load(x + (start - 2) * row_stride, mask=inside & (start > 1), other=0.0).to(tl.float32)
    x2 = tl.load(x + (start - 1) * row_stride, mask=inside & (start > 0), other=0.0).to(tl.float32)
    nothing = tl.zeros([CHANNELS], tl.float32)
    d0, d1, d2 = nothing, nothing, nothing
    s0, s1, s2, s3 = nothing, nothing, nothing, nothing
    # Three rows more: the input at t reaches the outputs up to t + 3.
    for row in tl.static_range(ROWS + 3):
        t = start + row
        real = inside & (t < length)
        x3 = tl.load(x + t * row_stride, mask=real, other=0.0).to(tl.float32)
        z = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        sigmoid = 1.0 / (1.0 + tl.exp(-z))
        d3 = tl.load(gradient + t * gradient_row_stride, mask=real, other=0.0).to(tl.float32)
        d3 = d3 * (sigmoid + z * sigmoid * (1.0 - sigmoid))
        if row < ROWS:
            s0 += d3 * x0
            s1 += d3 * x1
            s2 += d3 * x2
            s3 += d3 * x3
        if row >= 3:
            value = w3 * d0 + w2 * d1 + w1 * d2 + w0 * d3
            stored = inside & (t - 3 < length)
            tl.store(x_gradient + (t - 3) * width, value.to(x_gradient.dtype.element_ty), mask=stored)
        x0, x1, x2 = x1, x2, x3
        d0, d1, d2 = d1, d2, d3
    partial = weight_gradient + (sequence * tl.num_programs(1) + block) * width * 4 + channel * 4
    tl.store(partial, s0, mask=inside)
    tl.store(partial + 1, s1, mask=inside)
    tl.store(partial + 2, s2, mask=inside)
    tl.store(partial + 3, s3, mask=inside)


def forward(x: torch.Tensor, taps: torch.Tensor, launch: Launch = DEFAULT_LAUNCH) -> torch.Tensor:
    """SiLU of the convolution of x [B, T, C] (unit stride along C) with taps float32 [C, 4]: contiguous [B, T, C]."""
    batch, length, width = x.shape
    y = torch.empty((batch, length, width), dtype=x.dtype, device=x.device)
    grid = (math.ceil(width / launch.channels), math.ceil(length / launch.rows), batch)
    _forward[grid](
        x, taps, y, x.stride(0), x.stride(1), length, width,
        ROWS=launch.rows, CHANNELS=launch.channels, num_warps=launch.num_warps,
    )  # fmt: skip
    return y


def backward(
    gradient: torch.Tensor, x: torch.Tensor, taps: torch.Tensor, launch: Launch = DEFAULT_LAUNCH
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x (contiguous, its dtype) and of the taps (float32 [C, 4]) from that of the output [B, T, C]."""
    batch, length, width = x.shape
    x_gradient = torch.empty((batch, length, width), dtype=x.dtype, device=x.device)
    blocks = math.ceil(length / launch.rows)
    partial = torch.empty((batch * blocks, width, 4), dtype=torch.float32, device=x.device)
    grid = (math.ceil(width / launch.channels), blocks, batch)
    _backward[grid](
        gradient, x, taps, x_gradient, partial, gradient.stride(0), gradient.stride(1), x.stride(0), x.stride(1),
        length, width, ROWS=launch.rows, CHANNELS=launch.channels, num_warps=launch.num_warps,
    )  # fmt: skip
    return x_gradient, partial.sum(dim=0)
