"""Root-mean-square normalisation, computed in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class HwHRMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last dimension, in float32 at least; the result has the dtype of ``x``."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"
