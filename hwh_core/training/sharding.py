"""What training does with tensors that are whole in every process or spread over them (DTensor), for both alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with the rows of all processes; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Mapping[Any, Any], keep: bool) -> dict[Any, Any]:
    """Whole values one after the other, those that were spread on the CPU, or dropped (None) without ``keep``.

    One at a time, since no device may have room for all; every process must ask.
    """
    collected = {}
    for name, value in tensors.items():
        full = whole(value) if isinstance(value, torch.Tensor) else value
        if isinstance(value, DTensor):
            full = full.cpu() if keep else None
        collected[name] = full
    return collected


def spread_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The whole ``tensor``, which all processes have, in the form of ``parameter``: its rows of this process."""
    if not isinstance(parameter, DTensor):
        return tensor
    tensor = tensor.to(parameter.device)
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float) -> torch.Tensor:
    """Scale gradients down to the norm ``limit`` over all of them, spread or not; returns the norm before."""
    spread = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
    if not spread:
        return nn.utils.clip_grad_norm_(parameters, limit)
    parts = [spread, [parameter for parameter in parameters if not isinstance(parameter, DTensor)]]
    norms = [whole(nn.utils.get_total_norm([p.grad for p in part if p.grad is not None])) for part in parts]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for part in parts:
        nn.utils.clip_grads_with_norm_(part, limit, norm)
    return norm
