"""Next-token loss with float32 softmax, without holding all logits of a large vocabulary at once."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hwh_kernels.cross_entropy import linear_cross_entropy

# Largest number of logits held at a time: 2^28 float32 logits are 1 GiB.
MAX_LOGITS = 2**28


def _summed(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")


def mean_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, max_logits: int = MAX_LOGITS
) -> torch.Tensor:
    """Mean cross entropy in nats a token, a float32 scalar.

    hidden [B, T, hidden_size], output embedding weight [vocab_size, hidden_size], targets int64 [B, T]. On CUDA the
    gradients are computed with the loss, chunk by chunk, with products in the dtype of autocast
    (:func:`~hwh_kernels.cross_entropy.linear_cross_entropy`). Elsewhere, where B * T * vocab_size exceeds
    ``max_logits``, the tokens are taken in chunks whose logits are computed again in backward.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if hidden.is_cuda and hidden.dtype != torch.float64:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else hidden.dtype
        return linear_cross_entropy(hidden.to(dtype), weight, targets)
    rows = max(1, max_logits // weight.shape[0])
    if hidden.shape[0] <= rows:
        return _summed(hidden, weight, targets) / targets.numel()
    total = hidden.new_zeros((), dtype=torch.float32)
    for part, wanted in zip(hidden.split(rows), targets.split(rows), strict=True):
        total = total + checkpoint(_summed, part, weight, wanted, use_reentrant=False)
    return total / targets.numel()
