"""AdamW on everything, or Muon on the matrices of the blocks with AdamW on the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..config import OptimizerConfig
from .muon import Muon
from .sharding import gathered, spread_like


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
                rate = self._peaks[name] * factor
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    @property
    def is_capturable(self) -> bool:
        """Whether :meth:`step` can be recorded in a CUDA graph: with AdamW alone."""
        return set(self.parts) == {"adamw"}

    def make_capturable(self, device: torch.device) -> torch.Tensor:
        """Prepare :meth:`step` for a CUDA graph: learning rates become tensors, and a flag can forbid the update.

        Returns the flag, a float32 scalar: where it is 1, a step leaves weights, moments and counters as they are.
        """
        for group in self.adamw.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
            group["capturable"] = True
        self.adamw.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        return self.adamw.found_inf

    def make_plain(self) -> None:
        """Inverse of :meth:`make_capturable`; without effect otherwise."""
        for group in self.adamw.param_groups:
            group["lr"], group["capturable"] = float(group["lr"]), False
        self.adamw.found_inf = None

    def step(self) -> None:
        """Apply the gradients."""
        for part in self.parts.values():
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def state_dict(self, keep: bool = True) -> dict[str, Any]:
        """States of all parts, the same whether or not a CUDA graph holds the step or processes share the moments.

        Where they do every process must ask, and only those with ``keep`` get the moments.
        """
        states = {name: part.state_dict() for name, part in self.parts.items()}
        for state in states.values():
            state["state"] = {index: gathered(values, keep) for index, values in state["state"].items()}
            for group in state["param_groups"]:
                group["lr"] = float(group["lr"])
                if "capturable" in group:
                    group["capturable"] = False
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; before :meth:`make_capturable`, since a graph holds on to its tensors."""
        for name, part in self.parts.items():
            parameters = [parameter for group in part.param_groups for parameter in group["params"]]
            moments = {
                index: {
                    key: spread_like(value, parameters[index]) if value.ndim else value for key, value in values.items()
                }
                for index, values in state[name]["state"].items()
            }
            part.load_state_dict({**state[name], "state": moments})
