"""Muon (Jordan et al. 2024): momentum, then orthogonalisation of each matrix's update by Newton-Schulz iterations.

The rule is that of ``torch.optim.Muon`` with its default learning-rate adjustment. Two differences, both for speed:
matrices of one shape are orthogonalised together, and on a CPU the iteration runs in float32, since bfloat16 products
without hardware support made this step ten times slower than float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from .sharding import spread_like, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPSILON = 1e-7


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Approximate orthogonal factors of matrices [N, rows, columns]: singular values come to lie near 1."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(EPSILON)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon on matrices: ``lr`` and decoupled ``weight_decay`` as in AdamW, Nesterov ``momentum``.

    Matrices whose rows are spread over processes are gathered to be orthogonalised, by each process for itself.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(list(params), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon takes matrices, got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Apply the gradients; a closure is not supported."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                momenta = [whole(self._momentum(parameter, group["momentum"])) for parameter in parameters]
                updates = orthogonalize(torch.stack(momenta))
                rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(spread_like(update.to(parameter.dtype), parameter), alpha=-rate)

    def _momentum(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)
