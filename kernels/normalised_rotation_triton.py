"""Triton kernels of :mod:`.normalised_rotation`; a row is one head of one token.

A program takes several blocks of rows, one after the other, so that few partial sums of the weight's gradient are
left. Importing this module needs Triton; :mod:`.normalised_rotation` imports it on the first CUDA tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launching import on_device


class Launch(NamedTuple):
    """Launch configuration: rows of a block, blocks of a program, and its warps."""

    rows: int = 32
    blocks: int = 8
    num_warps: int = 4


DEFAULT_LAUNCH = Launch()


@triton.jit
def _normalised_rotation_forward(
    x, weight, cos, sin, y, batch_stride, token_stride, head_stride, angle_batch_stride, rows, length, heads, eps,
    HALF: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF)
    first_weight = tl.load(weight + column)[None, :]
    second_weight = tl.load(weight + HALF + column)[None, :]
    for block in range(BLOCKS):
        row = (tl.program_id(0) * BLOCKS + block) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None]
        sequence, token, head = row // heads // length, row // heads % length, row % heads
        source = sequence.to(tl.int64) * batch_stride + token.to(tl.int64) * token_stride + head * head_stride
        source = source[:, None] + column[None, :]
        first = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + source + HALF, mask=inside, other=0.0).to(tl.float32)
        angle = sequence.to(tl.int64) * angle_batch_stride + token * (2 * HALF)
        angle = angle[:, None] + column[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        mean = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        inverse = tl.rsqrt(mean + eps)[:, None]
        first = first * inverse * first_weight
        second = second * inverse * second_weight
        target = row.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
        tl.store(y + target, (first * c - second * s).to(y.dtype.element_ty), mask=inside)
        tl.store(y + target + HALF, (second * c + first * s).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _normalised_rotation_backward(
    gradient, x, weight, cos, sin, x_gradient, weight_gradient, gradient_batch_stride, gradient_token_stride,
    gradient_head_stride, batch_stride, token_stride, head_stride, angle_batch_stride, rows, length, heads, eps,
    HALF: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, HALF)
    first_weight = tl.load(weight + column)[None, :]
    second_weight = tl.load(weight + HALF + column)[None, :]
    first_sum = tl.zeros([ROWS, HALF], tl.float32)
    second_sum = tl.zeros([ROWS, HALF], tl.float32)
    for block in range(BLOCKS):
        row = (tl.program_id(0) * BLOCKS + block) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None]
        sequence, token, head = row // heads // length, row // heads % length, row % heads
        source = sequence.to(tl.int64) * batch_stride + token.to(tl.int64) * token_stride + head * head_stride
        source = source[:, None] + column[None, :]
        outer = sequence.to(tl.int64) * gradient_batch_stride + token.to(tl.int64) * gradient_token_stride
        outer = (outer + head * gradient_head_stride)[:, None] + column[None, :]
        first = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(x + source + HALF, mask=inside, other=0.0).to(tl.float32)
        first_outer = tl.load(gradient + outer, mask=inside, other=0.0).to(tl.float32)
        second_outer = tl.load(gradient + outer + HALF, mask=inside, other=0.0).to(tl.float32)
        angle = sequence.to(tl.int64) * angle_batch_stride + token * (2 * HALF)
        angle = angle[:, None] + column[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        mean = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        inverse = tl.rsqrt(mean + eps)[:, None]
        first, second = first * inverse, second * inverse
        # Turned back, the gradient is that of the normalised vector times the weight.
        first_turned = first_outer * c + second_outer * s
        second_turned = second_outer * c - first_outer * s
        first_sum += first_turned * first
        second_sum += second_turned * second
        first_turned *= first_weight
        second_turned *= second_weight
        along = (tl.sum(first_turned * first + second_turned * second, axis=1) / (2 * HALF))[:, None]
        target = row.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
        value = inverse * (first_turned - first * along)
        tl.store(x_gradient + target, value.to(x_gradient.dtype.element_ty), mask=inside)
        value = inverse * (second_turned - second * along)
        tl.store(x_gradient + target + HALF, value.to(x_gradient.dtype.element_ty), mask=inside)
    partial = weight_gradient + tl.program_id(0) * (2 * HALF) + column
    tl.store(partial, tl.sum(first_sum, axis=0))
    tl.store(partial + HALF, tl.sum(second_sum, axis=0))


def _with_unit_stride(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _angles(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, 0 if cos.shape[0] == 1 else cos.stride(0)


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    launch: Launch = DEFAULT_LAUNCH,
) -> torch.Tensor:
    """x [B, T, H, d], weight float32 [d], cos and sin float32 [1 or B, T, d] -> contiguous [B, T, H, d]."""
    x = _with_unit_stride(x)
    batch, length, heads, head_dim = x.shape
    cos, sin, angle_batch_stride = _angles(cos, sin)
    y = x.new_empty(x.shape)
    rows = batch * length * heads
    with on_device(x.device):
        _normalised_rotation_forward[(math.ceil(rows / (launch.rows * launch.blocks)),)](
            x, weight.contiguous(), cos, sin, y, x.stride(0), x.stride(1), x.stride(2), angle_batch_stride, rows,
            length, heads, eps, HALF=head_dim // 2, ROWS=launch.rows, BLOCKS=launch.blocks, num_warps=launch.num_warps,
        )  # fmt: skip
    return y


def backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    launch: Launch = DEFAULT_LAUNCH,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x (contiguous, its dtype) and of weight (float32 [d]) from that of the output [B, T, H, d]."""
    gradient, x = _with_unit_stride(gradient), _with_unit_stride(x)
    batch, length, heads, head_dim = x.shape
    cos, sin, angle_batch_stride = _angles(cos, sin)
    x_gradient = x.new_empty(x.shape)
    rows = batch * length * heads
    programs = math.ceil(rows / (launch.rows * launch.blocks))
    partial = torch.empty((programs, head_dim), dtype=torch.float32, device=x.device)
    with on_device(x.device):
        _normalised_rotation_backward[(programs,)](
            gradient, x, weight.contiguous(), cos, sin, x_gradient, partial, gradient.stride(0), gradient.stride(1),
            gradient.stride(2), x.stride(0), x.stride(1), x.stride(2), angle_batch_stride, rows, length, heads, eps,
            HALF=head_dim // 2, ROWS=launch.rows, BLOCKS=launch.blocks, num_warps=launch.num_warps,
        )  # fmt: skip
    return x_gradient, partial.sum(dim=0)
