"""Triton kernels of :mod:`.short_convolution`: forward and backward, each reading and writing everything once.

A program walks along time over a block of channels and keeps the last rows in registers, so that no tap loads a row
again. It takes four rows a turn and loads the next four before it works on them, which is what hides the memory's
latency: the compiler moves no load in front of an earlier store. Importing this module needs Triton;
:mod:`.short_convolution` imports it on the first CUDA tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launching import on_device


class Launch(NamedTuple):
    """Launch configuration: rows (a multiple of 4) and channels of a program, and its warps."""

    rows: int
    channels: int = 128
    num_warps: int = 1


def default_launch(batch: int, length: int, width: int) -> Launch:
    """The more rows, the fewer are read twice, as long as there are programs enough to fill a large card."""
    for rows in (64, 32):
        if batch * math.ceil(length / rows) * math.ceil(width / 128) >= 4096:
            return Launch(rows)
    return Launch(16)


@triton.jit
def _load_row(first, row_stride, row, start, length, inside):
    """Row ``start + row`` of what has row ``start`` at ``first``; zeros before and behind the sequence."""
    t = start + row
    return tl.load(first + row * row_stride, mask=inside & (t >= 0) & (t < length), other=0.0)


@triton.jit
def _through_silu(gradient, z):
    """Gradient of z from that of silu(z), in float32."""
    sigmoid = 1.0 / (1.0 + tl.exp(-z))
    return gradient.to(tl.float32) * (sigmoid + z * sigmoid * (1.0 - sigmoid))


@triton.jit
def _forward(
    x, weight, y, batch_stride, row_stride, length, width,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    start = tl.program_id(1) * ROWS
    sequence = tl.program_id(2).to(tl.int64)
    x += sequence * batch_stride + start.to(tl.int64) * row_stride + channel
    y += (sequence * length + start) * width + channel
    w0 = tl.load(weight + channel * 4, mask=inside, other=0.0)
    w1 = tl.load(weight + channel * 4 + 1, mask=inside, other=0.0)
    w2 = tl.load(weight + channel * 4 + 2, mask=inside, other=0.0)
    w3 = tl.load(weight + channel * 4 + 3, mask=inside, other=0.0)
    x0 = _load_row(x, row_stride, -3, start, length, inside).to(tl.float32)
    x1 = _load_row(x, row_stride, -2, start, length, inside).to(tl.float32)
    x2 = _load_row(x, row_stride, -1, start, length, inside).to(tl.float32)
    a = _load_row(x, row_stride, 0, start, length, inside)
    b = _load_row(x, row_stride, 1, start, length, inside)
    c = _load_row(x, row_stride, 2, start, length, inside)
    d = _load_row(x, row_stride, 3, start, length, inside)
    for turn in range(ROWS // 4):
        row = turn * 4
        e = _load_row(x, row_stride, row + 4, start, length, inside)
        f = _load_row(x, row_stride, row + 5, start, length, inside)
        g = _load_row(x, row_stride, row + 6, start, length, inside)
        h = _load_row(x, row_stride, row + 7, start, length, inside)
        for step in tl.static_range(4):
            x3 = a.to(tl.float32)
            a, b, c = b, c, d
            z = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
            value = z / (1.0 + tl.exp(-z))
            t = row + step
            tl.store(y + t * width, value.to(y.dtype.element_ty), mask=inside & (start + t < length))
            x0, x1, x2 = x1, x2, x3
        a, b, c, d = e, f, g, h


@triton.jit
def _backward(
    gradient, x, weight, x_gradient, weight_gradient, gradient_batch_stride, gradient_row_stride, batch_stride,
    row_stride, length, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    block = tl.program_id(1)
    start = block * ROWS
    sequence = tl.program_id(2).to(tl.int64)
    x += sequence * batch_stride + start.to(tl.int64) * row_stride + channel
    gradient += sequence * gradient_batch_stride + start.to(tl.int64) * gradient_row_stride + channel
    x_gradient += (sequence * length + start) * width + channel
    w0 = tl.load(weight + channel * 4, mask=inside, other=0.0)
    w1 = tl.load(weight + channel * 4 + 1, mask=inside, other=0.0)
    w2 = tl.load(weight + channel * 4 + 2, mask=inside, other=0.0)
    w3 = tl.load(weight + channel * 4 + 3, mask=inside, other=0.0)
    x0 = _load_row(x, row_stride, -3, start, length, inside).to(tl.float32)
    x1 = _load_row(x, row_stride, -2, start, length, inside).to(tl.float32)
    x2 = _load_row(x, row_stride, -1, start, length, inside).to(tl.float32)
    a = _load_row(x, row_stride, 0, start, length, inside)
    b = _load_row(x, row_stride, 1, start, length, inside)
    c = _load_row(x, row_stride, 2, start, length, inside)
    d = _load_row(x, row_stride, 3, start, length, inside)
    ga = _load_row(gradient, gradient_row_stride, 0, start, length, inside)
    gb = _load_row(gradient, gradient_row_stride, 1, start, length, inside)
    gc = _load_row(gradient, gradient_row_stride, 2, start, length, inside)
    gd = _load_row(gradient, gradient_row_stride, 3, start, length, inside)
    d0 = tl.zeros([CHANNELS], tl.float32)
    d1, d2 = d0, d0
    s0, s1, s2, s3 = d0, d0, d0, d0
    for turn in range(ROWS // 4):
        row = turn * 4
        e = _load_row(x, row_stride, row + 4, start, length, inside)
        f = _load_row(x, row_stride, row + 5, start, length, inside)
        g = _load_row(x, row_stride, row + 6, start, length, inside)
        h = _load_row(x, row_stride, row + 7, start, length, inside)
        ge = _load_row(gradient, gradient_row_stride, row + 4, start, length, inside)
        gf = _load_row(gradient, gradient_row_stride, row + 5, start, length, inside)
        gg = _load_row(gradient, gradient_row_stride, row + 6, start, length, inside)
        gh = _load_row(gradient, gradient_row_stride, row + 7, start, length, inside)
        for step in tl.static_range(4):
            x3 = a.to(tl.float32)
            d3 = _through_silu(ga, w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3)
            a, b, c = b, c, d
            ga, gb, gc = gb, gc, gd
            s0 += d3 * x0
            s1 += d3 * x1
            s2 += d3 * x2
            s3 += d3 * x3
            # The input at t reaches the outputs up to t + 3, so it is only now that its gradient is complete. The
            # first three belong to the program before.
            t = row + step - 3
            value = w3 * d0 + w2 * d1 + w1 * d2 + w0 * d3
            stored = inside & (t >= 0) & (start + t < length)
            tl.store(x_gradient + t * width, value.to(x_gradient.dtype.element_ty), mask=stored)
            x0, x1, x2 = x1, x2, x3
            d0, d1, d2 = d1, d2, d3
        a, b, c, d = e, f, g, h
        ga, gb, gc, gd = ge, gf, gg, gh
    # Three rows more complete the last three inputs; they count for the taps in the next program.
    for step in tl.static_range(3):
        x3 = a.to(tl.float32)
        d3 = _through_silu(ga, w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3)
        a, b = b, c
        ga, gb = gb, gc
        t = ROWS + step - 3
        value = w3 * d0 + w2 * d1 + w1 * d2 + w0 * d3
        tl.store(x_gradient + t * width, value.to(x_gradient.dtype.element_ty), mask=inside & (start + t < length))
        x0, x1, x2 = x1, x2, x3
        d0, d1, d2 = d1, d2, d3
    # One row of the four taps after the other, so that threads side by side write side by side.
    partial = weight_gradient + (sequence * tl.num_programs(1) + block) * width * 4 + channel
    tl.store(partial, s0, mask=inside)
    tl.store(partial + width, s1, mask=inside)
    tl.store(partial + 2 * width, s2, mask=inside)
    tl.store(partial + 3 * width, s3, mask=inside)


def forward(x: torch.Tensor, taps: torch.Tensor, launch: Launch | None = None) -> torch.Tensor:
    """SiLU of the convolution of x [B, T, C] (unit stride along C) with taps float32 [C, 4]: contiguous [B, T, C]."""
    batch, length, width = x.shape
    launch = launch or default_launch(batch, length, width)
    y = torch.empty((batch, length, width), dtype=x.dtype, device=x.device)
    grid = (math.ceil(width / launch.channels), math.ceil(length / launch.rows), batch)
    with on_device(x.device):
        _forward[grid](
            x, taps, y, x.stride(0), x.stride(1), length, width,
            ROWS=launch.rows, CHANNELS=launch.channels, num_warps=launch.num_warps,
        )  # fmt: skip
    return y


def backward(
    gradient: torch.Tensor, x: torch.Tensor, taps: torch.Tensor, launch: Launch | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x (contiguous, its dtype) and of the taps (float32 [C, 4]) from that of the output [B, T, C]."""
    batch, length, width = x.shape
    launch = launch or default_launch(batch, length, width)
    x_gradient = torch.empty((batch, length, width), dtype=x.dtype, device=x.device)
    blocks = math.ceil(length / launch.rows)
    partial = torch.empty((batch * blocks, 4, width), dtype=torch.float32, device=x.device)
    grid = (math.ceil(width / launch.channels), blocks, batch)
    with on_device(x.device):
        _backward[grid](
            gradient, x, taps, x_gradient, partial, gradient.stride(0), gradient.stride(1), x.stride(0), x.stride(1),
            length, width, ROWS=launch.rows, CHANNELS=launch.channels, num_warps=launch.num_warps,
        )  # fmt: skip
    return x_gradient, partial.sum(dim=0).T.contiguous()
