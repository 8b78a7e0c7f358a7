"""Check of a model's Gated DeltaNet kernels before it is trained; see :mod:`hwh_kernels.gated_delta_rule_check`."""

from __future__ import annotations

import torch
from torch import nn

from hwh_kernels.gated_delta_rule_check import GdnCheck, KernelsDisagree, check_gated_delta_rule

from ..scripting import UserError
from .delta_net import GatedDeltaNetGroup


class DeltaNetKernelError(UserError):
    """The kernels at hand cannot train this model rightly."""


def head_shapes(model: nn.Module, device: torch.device) -> list[tuple[int, int]]:
    """(heads, head_dim) of the groups that run flash-linear-attention's kernels on ``device``, each once."""
    groups = [module for module in model.modules() if isinstance(module, GatedDeltaNetGroup)]
    return sorted({(group.num_heads, group.head_dim) for group in groups if group.uses_fla(device)})


def check_model(
    model: nn.Module,
    device: torch.device,
    *,
    batch: int = 1,
    length: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> GdnCheck | None:
    """Check and warm up the kernels that training ``model`` on ``device`` will use; None if it uses none of them.

    Call it once before the first step, with ``batch`` sequences of ``length`` tokens a micro-batch and the ``dtype``
    that matrix products run in: the kernels are then compiled for exactly these. The result's ``as_dict()`` belongs
    into the training's manifest. Raises :class:`DeltaNetKernelError` when outputs or gradients are wrong or the package
    is missing.
    """
    shapes = head_shapes(model, device)
    if not shapes:
        return None
    try:
        return check_gated_delta_rule(device, shapes, batch=batch, length=length, dtype=dtype)
    except (KernelsDisagree, ImportError) as error:
        raise DeltaNetKernelError(str(error)) from error
