"""Triton kernels of :mod:`.swiglu`: element by element, each value read and written once.

Importing this module needs Triton; :mod:`.swiglu` imports it on the first CUDA tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launching import on_device


class Launch(NamedTuple):
    """Launch configuration: rows and columns of a program, and its warps."""

    rows: int = 4
    columns: int = 256
    num_warps: int = 4


DEFAULT_LAUNCH = Launch()


@triton.jit
def _swiglu_forward(joint, product, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None].to(tl.int64) * (2 * width) + column[None, :]
    gate = tl.load(joint + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joint + place + width, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    value = gate * sigmoid * up
    target = product + row[:, None].to(tl.int64) * width + column[None, :]
    tl.store(target, value.to(product.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gradient, joint, joint_gradient, product, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None].to(tl.int64) * (2 * width) + column[None, :]
    narrow = row[:, None].to(tl.int64) * width + column[None, :]
    gate = tl.load(joint + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joint + place + width, mask=inside, other=0.0).to(tl.float32)
    outer = tl.load(gradient + narrow, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    activated = gate * sigmoid
    gate_gradient = outer * up * (sigmoid + activated * (1.0 - sigmoid))
    up_gradient = outer * activated
    tl.store(product + narrow, (activated * up).to(product.dtype.element_ty), mask=inside)
    tl.store(joint_gradient + place, gate_gradient.to(joint_gradient.dtype.element_ty), mask=inside)
    tl.store(joint_gradient + place + width, up_gradient.to(joint_gradient.dtype.element_ty), mask=inside)


def _grid(rows: int, width: int, launch: Launch) -> tuple[int, int]:
    return math.ceil(rows / launch.rows), math.ceil(width / launch.columns)


def forward(joint: torch.Tensor, launch: Launch = DEFAULT_LAUNCH) -> torch.Tensor:
    """``silu(gate) * up`` [N, I] from joint [N, 2 I], which holds gate, then up."""
    joint = joint.contiguous()
    rows, width = joint.shape[0], joint.shape[1] // 2
    product = joint.new_empty(rows, width)
    with on_device(joint.device):
        _swiglu_forward[_grid(rows, width, launch)](
            joint, product, rows, width, ROWS=launch.rows, COLUMNS=launch.columns, num_warps=launch.num_warps
        )
    return product


def backward(
    gradient: torch.Tensor, joint: torch.Tensor, launch: Launch = DEFAULT_LAUNCH
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of joint [N, 2 I], ``silu(gate) * up`` [N, I]) from the gradient [N, I] of the latter."""
    gradient, joint = gradient.contiguous(), joint.contiguous()
    rows, width = gradient.shape
    joint_gradient, product = torch.empty_like(joint), torch.empty_like(gradient)
    with on_device(joint.device):
        _swiglu_backward[_grid(rows, width, launch)](
            gradient, joint, joint_gradient, product, rows, width,
            ROWS=launch.rows, COLUMNS=launch.columns, num_warps=launch.num_warps,
        )  # fmt: skip
    return joint_gradient, product
