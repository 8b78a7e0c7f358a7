"""AdamW on everything, or Muon on the matrices of the blocks with AdamW on the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..config import OptimizerConfig
from .muon import Muon


def split_parameters(model: nn.Module, muon: bool) -> dict[str, dict[str, nn.Parameter]]:
    """Named parameters in groups ``muon``, ``decayed`` and ``plain``, each parameter once.

    Weight decay applies to matrices (embeddings included) and to nothing else: norms, A_log, dt_bias and convolution
    taps (three dimensions) are ``plain``. With ``muon`` the matrices inside ``model.layers`` go to Muon.
    """
    groups: dict[str, dict[str, nn.Parameter]] = {"muon": {}, "decayed": {}, "plain": {}}
    for name, parameter in model.named_parameters():
        if parameter.ndim != 2:
            groups["plain"][name] = parameter
        elif muon and ".layers." in f".{name}":
            groups["muon"][name] = parameter
        else:
            groups["decayed"][name] = parameter
    return groups


class Optimizer:
    """One or two torch optimizers driven as one: a common schedule factor, one state dict."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        groups = split_parameters(model, config.kind == "muon_adamw")
        self.adamw = torch.optim.AdamW(
            [
                {"params": list(groups["decayed"].values()), "weight_decay": config.weight_decay},
                {"params": list(groups["plain"].values()), "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            fused=True,
        )
        self.parts: dict[str, torch.optim.Optimizer] = {"adamw": self.adamw}
        self._peaks = {"adamw": config.learning_rate}
        if config.matrix_learning_rate is not None:
            self.parts["muon"] = Muon(
                groups["muon"].values(), lr=config.matrix_learning_rate, weight_decay=config.weight_decay
            )
            self._peaks["muon"] = config.matrix_learning_rate

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to its peak times ``factor``."""
        for name, part in self.parts.items():
            for group in part.param_groups:
                group["lr"] = self._peaks[name] * factor

    def step(self) -> None:
        """Apply the gradients."""
        for part in self.parts.values():
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """States of all parts."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
