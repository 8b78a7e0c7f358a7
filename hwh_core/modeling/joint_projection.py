"""Several bias-free linear maps of the same input as one matrix product.

On a GPU one product over the stacked weights keeps the card busier than several narrow ones. The weights are stacked
anew in every pass, so parameters keep their names and shapes; that pays from some thousands of tokens on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from hwh_kernels.columns import split_columns

# With fewer tokens (decoding, above all) stacking the weights, which copies them once more, costs more than it saves.
MINIMUM_TOKENS = 4096
# Rows of the stacked weight are filled up to a multiple of this: 128 bytes in bfloat16, which the fast kernels ask for.
ALIGNMENT = 64


def is_worthwhile(x: torch.Tensor) -> bool:
    """Whether ``x`` [..., in_features] is better projected by :func:`joint_linear` than by one map after another."""
    return x.is_cuda and x.numel() // x.shape[-1] >= MINIMUM_TOKENS


def _stacked(weights: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """One weight of all rows, in the dtype that autocast would give it: converted before it is copied, not after."""
    if torch.is_autocast_enabled(x.device.type):
        weights = [weight.to(torch.get_autocast_dtype(x.device.type)) for weight in weights]
    return torch.cat(list(weights))


def joint_product(x: torch.Tensor, projections: Sequence[nn.Linear]) -> torch.Tensor:
    """The results of all ``projections`` of ``x`` side by side, in their order: [..., sum of out_features]."""
    return F.linear(x, _stacked([projection.weight for projection in projections], x))


def joint_linear(x: torch.Tensor, projections: Sequence[nn.Linear]) -> list[torch.Tensor]:
    """``[projection(x) for projection in projections]`` from one product; the results are views of one tensor.

    All ``projections`` take ``x`` [..., in_features] and have no bias. Wide ones come first in the product, so that
    narrow ones (one column a head) do not shift the others out of alignment.
    """
    widths = [projection.out_features for projection in projections]
    order = sorted(range(len(widths)), key=lambda index: widths[index] % ALIGNMENT != 0)
    weights: list[torch.Tensor] = [projections[index].weight for index in order]
    sizes = [widths[index] for index in order]
    missing = -sum(sizes) % ALIGNMENT
    if missing:
        weights.append(weights[0].new_zeros(missing, weights[0].shape[1]))
        sizes.append(missing)
    parts = split_columns(F.linear(x, _stacked(weights, x)), sizes)
    results: list[torch.Tensor] = [x] * len(widths)
    for place, index in enumerate(order):
        results[index] = parts[place]
    return results
