"""One training step: gradients of all micro-batches, clipping, update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from .distributed import Workers
from .optimizer import Optimizer
from .sharding import clip_gradients


class Step(Protocol):
    """A training step in two halves, so that the host can work between them and look at the result."""

    def start(self, batch: torch.Tensor, factor: float) -> torch.Tensor:
        """Launch the step on ``batch`` int64 [rows, length + 1] with learning rates of ``factor`` times their peaks.

        Returns float32 [2] on the device, not waited for: mean loss over all processes, and norm of the gradient.
        """

    def finish(self) -> None:
        """Complete the step; to be called once the result is known to be finite."""


class EagerStep:
    """A step launched operation by operation. ``finish`` applies the gradients.

    ``loss`` maps inputs and targets int64 [rows, length] to a mean loss. ``around(last)`` surrounds the passes of each
    micro-batch, with ``last`` for the last one: it has gradients averaged over processes, if there are several.
    """

    def __init__(
        self,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        *,
        micro_rows: int,
        gradient_clip: float,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        workers: Workers,
        around: Callable[[bool], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.loss = loss
        self.optimizer = optimizer
        self.parameters = list(parameters)
        self.micro_rows = micro_rows
        self.gradient_clip = gradient_clip
        self.autocast = autocast
        self.workers = workers
        self.around = around

    def add_gradients(self, part: torch.Tensor, parts: int) -> torch.Tensor:
        """Add the gradients of one of ``parts`` micro-batches; returns its share of the mean loss, detached."""
        with self.autocast():
            loss = self.loss(part[:, :-1], part[:, 1:]) / parts
        loss.backward()
        return loss.detach()

    def clip(self) -> torch.Tensor:
        """Scale the gradients down to the permitted norm; returns the norm before."""
        return clip_gradients(self.parameters, self.gradient_clip)

    def start(self, batch: torch.Tensor, factor: float) -> torch.Tensor:
        """See :class:`Step`."""
        self.optimizer.set_factor(factor)
        parts = batch.split(self.micro_rows)
        loss = torch.zeros((), device=batch.device)
        for index, part in enumerate(parts):
            with self.around(index + 1 == len(parts)):
                loss += self.add_gradients(part, len(parts))
        return torch.stack((self.workers.mean(loss), self.clip()))

    def finish(self) -> None:
        """See :class:`Step`."""
        self.optimizer.step()
        self.optimizer.zero_grad()
