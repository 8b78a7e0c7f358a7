"""The training loop: the batch at a step depends on (seed, step) alone, so a resumed run equals an unbroken one."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from ..config import TrainingConfig
from ..modeling import HwHForCausalLM
from .checkpoint import CheckpointFolder, truncate_log
from .compilation import should_compile
from .distributed import Workers
from .optimizer import Optimizer
from .schedule import learning_rate_factor
from .settings import TrainingError
from .signals import StopRequest


class Loader(Protocol):
    """What the trainer needs of a data loader."""

    def batch(self, step: int) -> np.ndarray:
        """int64 [sequences, length + 1], depending on the step alone."""


class _Loss(nn.Module):
    """The model as a function from tokens to loss: what is compiled, and what is wrapped for data parallelism."""

    def __init__(self, model: HwHForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.model.next_token_loss(inputs, targets)


@dataclass(frozen=True)
class Outcome:
    """Result of :meth:`Trainer.run`: log rows of the whole run, its seconds, the exit code if a signal ended it."""

    rows: list[dict[str, Any]]
    seconds: float
    exit_code: int | None
    compiled: bool

    def train_loss(self) -> float:
        """Mean loss of the last twentieth of the steps, nats a token."""
        last = self.rows[-max(1, len(self.rows) // 20) :]
        return statistics.fmean(row["loss"] for row in last)

    def tokens_per_second(self) -> float:
        """Tokens of a step over the median duration of a step."""
        return statistics.median(row["tokens_per_second"] for row in self.rows)


class Trainer:
    """Trains ``model`` in place on ``loader``; ``length`` is the number of tokens of a sequence."""

    def __init__(
        self,
        model: HwHForCausalLM,
        loader: Loader,
        config: TrainingConfig,
        length: int,
        checkpoints: CheckpointFolder,
        workers: Workers,
    ) -> None:
        self.model = model.to(workers.device).train()
        self.loader = loader
        self.config = config
        self.length = length
        self.checkpoints = checkpoints
        self.workers = workers
        self.share = workers.share(config.tokens_per_step // length)
        rows = self.share.stop - self.share.start
        self.micro_rows = rows if config.micro_batch_tokens is None else config.micro_batch_tokens // length
        if rows % self.micro_rows:
            raise TrainingError(
                f"training.micro_batch_tokens = {config.micro_batch_tokens} does not divide the {rows * length} tokens "
                "of a step that one process takes"
            )
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = Optimizer(self.model, config.optimizer)
        total = config.steps * config.tokens_per_step
        self.compiled = should_compile(config.compile, self.model.config.layers, total, workers.device.type)
        loss: nn.Module = _Loss(self.model)
        if workers.world_size > 1:
            ids = [workers.device.index] if workers.device.type == "cuda" else None
            loss = nn.parallel.DistributedDataParallel(loss, device_ids=ids)
        self.loss = torch.compile(loss, dynamic=False) if self.compiled else loss
        self._distributed = loss if workers.world_size > 1 else None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 autocast over float32 master weights, or nothing at precision float32."""
        return torch.autocast(
            self.workers.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bfloat16"
        )

    def run(self) -> Outcome:
        """Train to the last step, or to the next step's end after SIGTERM or SIGINT; resumes by itself.

        Raises :class:`TrainingError` when loss or gradient is not finite, and for a checkpoint that does not fit.
        """
        done, before = self._resume()
        if self.workers.is_first:
            truncate_log(self.checkpoints.log_path, done)
        started = time.perf_counter()
        steps, every = self.config.steps, self.config.checkpoint_every_steps
        exit_code = None
        with StopRequest() as stop, self._log() as write:
            bar = tqdm(
                total=steps,
                initial=done,
                unit="step",
                disable=not (self.workers.is_first and sys.stderr.isatty()),
                desc="training",
            )
            with bar:
                for step in range(done, steps):
                    row = self._step(step)
                    write(row)
                    bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)
                    bar.update()
                    stopped = self.workers.any(stop.signal is not None) and step + 1 < steps
                    if stopped or (step + 1) % every == 0 or step + 1 == steps:
                        self._save(step + 1, before + time.perf_counter() - started)
                    if stopped:
                        exit_code = stop.exit_code
                        break
        rows = self._rows() if self.workers.is_first else []
        return Outcome(rows, before + time.perf_counter() - started, exit_code, self.compiled)

    def _resume(self) -> tuple[int, float]:
        checkpoint = self.checkpoints.load_latest()
        if checkpoint is None:
            return 0, 0.0
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(checkpoint.model[name])
        self.optimizer.load_state_dict(checkpoint.optimizer)
        if self.workers.is_first:
            print(f"going on after step {checkpoint.step} of {self.config.steps}", file=sys.stderr, flush=True)
        return checkpoint.step, checkpoint.seconds

    def _save(self, step: int, seconds: float) -> None:
        if self.workers.is_first:
            self.checkpoints.save(step, seconds, dict(self.model.named_parameters()), self.optimizer.state_dict())
        self.workers.wait()

    def _step(self, step: int) -> dict[str, Any]:
        config, started = self.config, time.perf_counter()
        factor = learning_rate_factor(
            step,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            final_fraction=config.final_learning_rate_fraction,
        )
        self.optimizer.set_factor(factor)
        batch = torch.from_numpy(self.loader.batch(step)[self.share]).to(self.workers.device)
        parts = batch.split(self.micro_rows)
        loss = torch.zeros((), device=self.workers.device)
        for index, part in enumerate(parts):
            last = index + 1 == len(parts)
            quiet = self._distributed.no_sync() if self._distributed is not None and not last else None
            with quiet or contextlib.nullcontext():
                with self.autocast():
                    part_loss = self.loss(part[:, :-1], part[:, 1:]) / len(parts)
                part_loss.backward()
            loss += part_loss.detach()
        norm = nn.utils.clip_grad_norm_(self.parameters, config.gradient_clip)
        loss_value, norm_value = torch.stack((self.workers.mean(loss), norm)).tolist()
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            raise TrainingError(
                f"step {step + 1}: loss is {loss_value} and the gradient's norm {norm_value}; the last checkpoint "
                "is kept. Lower the learning rate, or lengthen the warm-up"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds = time.perf_counter() - started
        return {
            "step": step + 1,
            "loss": loss_value,
            "learning_rate": config.optimizer.learning_rate * factor,
            "gradient_norm": norm_value,
            "tokens": (step + 1) * config.tokens_per_step,
            "tokens_per_second": config.tokens_per_step / seconds,
            "seconds": seconds,
        }

    @contextlib.contextmanager
    def _log(self) -> Iterator[Any]:
        if not self.workers.is_first:
            yield lambda row: None
            return
        self.checkpoints.path.mkdir(parents=True, exist_ok=True)
        with open(self.checkpoints.log_path, "a", encoding="utf-8") as stream:

            def write(row: dict[str, Any]) -> None:
                stream.write(json.dumps(row) + "\n")
                stream.flush()

            yield write

    def _rows(self) -> list[dict[str, Any]]:
        with open(self.checkpoints.log_path, encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]


@torch.no_grad()
def held_out_loss(model: HwHForCausalLM, windows: np.ndarray, rows: int, autocast: Callable[[], Any]) -> float:
    """Mean loss in nats a token over ``windows`` int64 [count, length + 1], ``rows`` of them at a time."""
    device = model.lm_head.weight.device
    training = model.training
    model.eval()
    total = 0.0
    for part in torch.from_numpy(windows).split(rows):
        part = part.to(device)
        with autocast():
            total += model.next_token_loss(part[:, :-1], part[:, 1:]).item() * part.shape[0]
    model.train(training)
    return total / windows.shape[0]
