"""Cutting a tensor into columns, with gradients that are put together by one plain copy.

torch.compile turns the gradient of a split into few into one element-wise kernel that computes every part for every
column and discards all but one: up to four times slower than copying. On CUDA the parts are therefore joined by an
operator of its own, which nothing is fused into. More than :data:`MAXIMUM_PARTS` it leaves alone: there torch.compile
writes each part in place.
"""

# No `from __future__ import annotations` here: torch.library reads the operators' schemas from the annotations.
from collections.abc import Sequence

import torch

from .launching import TRITON_IS_INSTALLED

MAXIMUM_PARTS = 8


@torch.library.custom_op("hwh::join_columns", mutates_args=())
def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    if not (parts[0].is_cuda and TRITON_IS_INSTALLED):
        return torch.cat(parts, dim=-1)
    from . import columns_triton as kernel

    return kernel.join(parts)


@_join.register_fake
def _(parts):
    return parts[0].new_empty(*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *sizes):
        return x.split(sizes, dim=-1)

    @staticmethod
    def backward(ctx, *gradients):
        return (_join(list(gradients)), *[None] * len(gradients))


def split_columns(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """``x.split(sizes, dim=-1)``: views of x [..., sum of sizes]."""
    if not x.is_cuda or len(sizes) > MAXIMUM_PARTS:
        return x.split(list(sizes), dim=-1)
    return _Split.apply(x, *sizes)
