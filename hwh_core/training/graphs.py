"""A training step recorded as CUDA graphs: replayed as a whole, so that the host launches two things, not thousands.

One graph holds forward and backward of a micro-batch, the second clipping and AdamW. Whether loss and gradient are
finite is decided on the device: if not, AdamW leaves weights, moments and its step counter untouched. The same rule
makes warm-up harmless: it runs the update with a loss that is no number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .step import EagerStep

Function = Callable[[], None]
Recorder = Callable[[Function, Function], Function]
# The first pass compiles and chooses kernels, the second shows that everything is in place.
WARMUP_PASSES = 2


class CudaGraphRecorder:
    """Records functions on one side stream: ``recorder(function, prepare)`` returns the replay of ``function``.

    ``function`` works on tensors that stay where they are; ``prepare`` puts them into the state that it expects. Both
    run some times first. Raises what CUDA or torch raise for work that cannot be captured.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def __call__(self, function: Function, prepare: Function) -> Function:
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(WARMUP_PASSES):
                prepare()
                function()
            prepare()
        current.wait_stream(self.stream)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            function()
        return graph.replay


class GraphedStep:
    """The step of ``eager`` for batches shaped like ``batch``, recorded by ``recorder``.

    Weights and optimizer state are as before afterwards. An optimizer with a part besides AdamW (Muon) is applied
    outside of the graphs, in :meth:`finish`; the gradients are recorded all the same. A single process only.
    """

    def __init__(self, eager: EagerStep, batch: torch.Tensor, recorder: Recorder) -> None:
        self.eager = eager
        self.parts = batch.shape[0] // eager.micro_rows
        self._tokens = batch[: eager.micro_rows].clone()
        self._loss = torch.zeros((), device=batch.device)
        self._result = torch.zeros(2, device=batch.device)
        self._update: Function | None = None
        self._add_gradients = recorder(self._record_gradients, self._prepare_gradients)
        if eager.optimizer.is_capturable:
            self._found_inf = eager.optimizer.make_capturable(batch.device)
            self._update = recorder(self._record_update, self._prepare_update)
        self._clear()

    def start(self, batch: torch.Tensor, factor: float) -> torch.Tensor:
        """See :class:`~hwh_core.training.step.Step`. The result is overwritten by the next step."""
        self.eager.optimizer.set_factor(factor)
        for part in batch.split(self.eager.micro_rows):
            self._tokens.copy_(part)
            self._add_gradients()
        if self._update is None:
            self._result.copy_(torch.stack((self._loss, self.eager.clip())))
        else:
            self._update()
        return self._result

    def finish(self) -> None:
        """See :class:`~hwh_core.training.step.Step`; the update has happened already where it is recorded."""
        if self._update is None:
            self.eager.optimizer.step()
            self._clear()

    def _record_gradients(self) -> None:
        self._loss += self.eager.add_gradients(self._tokens, self.parts)

    def _prepare_gradients(self) -> None:
        # A single micro-batch writes its gradients anew in every replay; several add to tensors that must exist.
        for parameter in self.eager.parameters:
            if self.parts == 1:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._clear()

    def _record_update(self) -> None:
        self._result.copy_(torch.stack((self._loss, self.eager.clip())))
        self._found_inf.copy_(self._result.isfinite().all().logical_not())
        self.eager.optimizer.step()
        self._clear()

    def _prepare_update(self) -> None:
        self._loss.fill_(float("nan"))

    def _clear(self) -> None:
        self._loss.zero_()
        if self.parts > 1:
            torch._foreach_zero_([p.grad for p in self.eager.parameters if p.grad is not None])
