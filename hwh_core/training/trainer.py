"""The training loop: the batch at a step depends on (seed, step) alone, so a resumed run equals an unbroken one."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from ..config import TrainingConfig
from ..files import errors_name
from ..modeling import HwHForCausalLM
from .batches import Batches, Loader
from .checkpoint import CheckpointFolder, truncate_log
from .compilation import NextTokenLoss, compiled_blocks, delta_net_backend, should_compile
from .distributed import Workers, averaged_with_the_last
from .graphs import CudaGraphRecorder, GraphedStep, Recorder
from .optimizer import Optimizer
from .schedule import learning_rate_factor
from .settings import TrainingError
from .sharded_model import ShardedModel
from .sharding import gathered, spread_like
from .signals import StopRequest
from .snapshots import Snapshots
from .step import EagerStep, Step


@dataclass(frozen=True)
class Outcome:
    """Result of :meth:`Trainer.run`: log rows of the whole run, its seconds, the exit code if a signal ended it.

    ``delta_net_check``: what the check of the Gated DeltaNet kernels found, None where none of them is used.
    """

    rows: list[dict[str, Any]]
    seconds: float
    exit_code: int | None
    compiled: bool
    cuda_graph: bool
    delta_net_check: dict[str, Any] | None

    def train_loss(self) -> float:
        """Mean loss of the last twentieth of the steps, nats a token."""
        last = self.rows[-max(1, len(self.rows) // 20) :]
        return statistics.fmean(row["loss"] for row in last)

    def tokens_per_second(self) -> float:
        """Tokens of a step over the median duration of a step, of the last of the :meth:`parts`."""
        first = self.parts()[-1]["first_step"]
        return statistics.median(row["tokens_per_second"] for row in self.rows[first - 1 :])

    def parts(self) -> list[dict[str, Any]]:
        """Stretches of steps that ran on as many processes, in the same way; all but the first went on from another."""
        found: list[dict[str, Any]] = []
        for row in self.rows:
            how = {key: row[key] for key in ("processes", "parallel")}
            if not found or how != {key: found[-1][key] for key in how}:
                found.append({"first_step": row["step"], **how})
            found[-1]["last_step"] = row["step"]
        return found


class Trainer:
    """Trains ``model`` in place on ``loader``; ``length`` is the number of tokens of a sequence.

    ``snapshots`` keeps the weights after some steps; None: only checkpoints. With ``training.parallel: fsdp`` and
    several processes, ``model`` has the trained weights in the first process, and there after :meth:`run` only.
    """

    def __init__(
        self,
        model: HwHForCausalLM,
        loader: Loader,
        config: TrainingConfig,
        length: int,
        checkpoints: CheckpointFolder,
        workers: Workers,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.model = model.train()
        self.sharded: ShardedModel | None = None
        if config.parallel == "fsdp" and workers.world_size > 1:
            self.sharded = ShardedModel(model, workers, config.precision)
        trained = model.to(workers.device) if self.sharded is None else self.sharded.trained
        self.config = config
        self.length = length
        self.checkpoints = checkpoints
        self.workers = workers
        self.snapshots = snapshots
        self.share = workers.share(config.tokens_per_step // length)
        rows = self.share.stop - self.share.start
        self.micro_rows = min(rows, (config.micro_batch_tokens or config.tokens_per_step) // length)
        if rows % self.micro_rows:
            raise TrainingError(
                f"training.micro_batch_tokens = {config.micro_batch_tokens} does not divide the {rows * length} tokens "
                "of a step that one process takes"
            )
        self.parameters = {name: value for name, value in trained.named_parameters() if value.requires_grad}
        self.optimizer = Optimizer(trained, config.optimizer)
        self.batches = Batches(loader, self.share, workers.device)
        layers, total = self.model.config.layers, config.steps * config.tokens_per_step
        backend = delta_net_backend(self.model, workers.device)
        self.compiled = should_compile(config.compile, layers, total, workers.device.type, backend)
        self.delta_net_check: dict[str, Any] | None = None
        graphs = workers.device.type == "cuda" and workers.world_size == 1 and config.compile != "never"
        self.make_recorder: Callable[[], Recorder] | None = (
            functools.partial(CudaGraphRecorder, workers.device) if graphs else None
        )
        self._step: Step | None = None

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
            if self.snapshots is not None:
                self.snapshots.resume(done)
        started = time.perf_counter()
        steps, every = self.config.steps, self.config.checkpoint_every_steps
        exit_code = None
        with StopRequest() as stop, self._log() as write, self._failures_of_hardware_named():
            bar = tqdm(
                total=steps,
                initial=done,
                unit="step",
                disable=not (self.workers.is_first and sys.stderr.isatty()),
                desc="training",
            )
            with bar:
                for step in range(done, steps):
                    row = self.run_step(step)
                    write(row)
                    bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)
                    bar.update()
                    # Before the checkpoint: a run that goes on from there does not come by here again.
                    if self.snapshots is not None and step + 1 in self.snapshots.steps:
                        self._collect()
                        if self.workers.is_first:
                            self.snapshots.take(step + 1, self.model)
                    stopped = self.workers.any(stop.signal is not None) and step + 1 < steps
                    if stopped or (step + 1) % every == 0 or step + 1 == steps:
                        self._save(step + 1, before + time.perf_counter() - started)
                    if stopped:
                        exit_code = stop.exit_code
                        break
        rows = self._rows() if self.workers.is_first else []
        seconds, cuda_graph = before + time.perf_counter() - started, self.cuda_graph
        self._release_step()
        self._collect()
        self.model.to(self.workers.device)
        return Outcome(rows, seconds, exit_code, self.compiled, cuda_graph, self.delta_net_check)

    def _resume(self) -> tuple[int, float]:
        checkpoint = None
        if self.workers.is_first:
            checkpoint = self.checkpoints.load_latest(set_damaged_aside=True)
        # The others look only now: what is damaged is out of their way.
        self.workers.wait()
        if not self.workers.is_first:
            checkpoint = self.checkpoints.load_latest()
        if checkpoint is None:
            return 0, 0.0
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(spread_like(checkpoint.model[name], parameter))
        self.optimizer.load_state_dict(checkpoint.optimizer)
        if self.workers.is_first:
            print(f"going on after step {checkpoint.step} of {self.config.steps}", file=sys.stderr, flush=True)
        return checkpoint.step, checkpoint.seconds

    def _save(self, step: int, seconds: float) -> None:
        keep = self.workers.is_first
        weights, optimizer = gathered(self.parameters, keep), self.optimizer.state_dict(keep)
        if keep:
            self.checkpoints.save(step, seconds, weights, optimizer)
        self.workers.wait()

    def _collect(self) -> None:
        """Have the present weights in ``model`` of the first process; every process must ask."""
        if self.sharded is not None:
            self.sharded.collect()

    def run_step(self, step: int) -> dict[str, Any]:
        """Train on the batch of ``step`` (0, 1, ...); returns its row of the log.

        The first call checks, compiles and records what the steps will run. Raises :class:`TrainingError` when loss or
        gradient is not finite, with the weights as they were before the step.
        """
        config, started = self.config, time.perf_counter()
        factor = learning_rate_factor(
            step,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            final_fraction=config.final_learning_rate_fraction,
        )
        batch = self.batches.take(step)
        if self._step is None:
            self._step = self._build_step(batch)
        result = self._step.start(batch, factor)
        if step + 1 < config.steps:
            self.batches.read_ahead(step + 1)
        loss, norm = result.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"step {step + 1}: loss is {loss} and the gradient's norm {norm}; the last checkpoint "
                "is kept. Lower the learning rate, or lengthen the warm-up"
            )
        self._step.finish()
        seconds = time.perf_counter() - started
        return {
            "step": step + 1,
            "loss": loss,
            "learning_rate": config.optimizer.learning_rate * factor,
            "gradient_norm": norm,
            "tokens": (step + 1) * config.tokens_per_step,
            "tokens_per_second": config.tokens_per_step / seconds,
            "seconds": seconds,
            "processes": self.workers.world_size,
            "parallel": config.parallel if self.workers.world_size > 1 else None,
        }

    @property
    def cuda_graph(self) -> bool:
        """Whether steps are replayed from CUDA graphs; known after the first step."""
        return isinstance(self._step, GraphedStep)

    def _build_step(self, batch: torch.Tensor) -> Step:
        device = self.workers.device
        if device.type == "cuda":
            from ..modeling.delta_net_check import check_model

            dtype = torch.bfloat16 if self.config.precision == "bfloat16" else torch.float32
            check = check_model(self.model, device, batch=self.micro_rows, length=self.length, dtype=dtype)
            self.delta_net_check = None if check is None else check.as_dict()
        step = self._eager_step()
        if self.make_recorder is None:
            return step
        try:
            return GraphedStep(step, batch, self.make_recorder())
        except Exception as error:
            # Whatever the reason, the step can run without graphs, only slower; if it cannot, its own error follows.
            reason = _first_cause(error)
        print(f"warning: training goes on without a CUDA graph of its step: {reason}", file=sys.stderr, flush=True)
        self._release_step()
        return step

    def _release_step(self) -> None:
        """Give back the memory of graphs and gradients."""
        self._step = None
        self.optimizer.make_plain()
        self.optimizer.zero_grad()

    def _eager_step(self) -> EagerStep:
        device = self.workers.device
        make = functools.partial(
            EagerStep,
            optimizer=self.optimizer,
            parameters=self.parameters.values(),
            micro_rows=self.micro_rows,
            gradient_clip=self.config.gradient_clip,
            autocast=self.autocast,
            workers=self.workers,
        )
        if self.sharded is not None:
            if self.compiled:
                self.sharded.compile_blocks()
            return make(self.sharded.loss, around=self.sharded.around)
        loss: nn.Module = NextTokenLoss(self.model)
        # A GPU compiles block by block, for a short start; a CPU the whole, which is faster there.
        if self.compiled and device.type == "cuda":
            loss = NextTokenLoss(self.model, compiled_blocks(self.model.config.layers))
        around = contextlib.nullcontext
        if self.workers.world_size > 1:
            ids = [device.index] if device.type == "cuda" else None
            loss = replicas = nn.parallel.DistributedDataParallel(loss, device_ids=ids)
            around = averaged_with_the_last(replicas)
        if self.compiled and device.type == "cpu":
            loss = torch.compile(loss, dynamic=False)
        return make(loss, around=around)

    @contextlib.contextmanager
    def _failures_of_hardware_named(self) -> Iterator[None]:
        """A device or another process that is gone is no error of the program: say so, and what is left."""
        try:
            yield
        except RuntimeError as error:
            # gloo has no error class of its own.
            known = isinstance(error, (torch.AcceleratorError, torch.distributed.DistError)) or "/gloo/" in str(error)
            if not known:
                raise
            reason = str(error).strip().splitlines()[0]
            raise TrainingError(
                f"process {self.workers.rank} on {self.workers.device}: {reason}; checkpoints so far are kept, and the "
                "same command goes on from the last one"
            ) from error

    @contextlib.contextmanager
    def _log(self) -> Iterator[Any]:
        if not self.workers.is_first:
            yield lambda row: None
            return
        self.checkpoints.path.mkdir(parents=True, exist_ok=True)
        path = self.checkpoints.log_path
        with errors_name(path):
            stream = open(path, "a", encoding="utf-8")  # noqa: SIM115

        def write(row: dict[str, Any]) -> None:
            with errors_name(path):
                stream.write(json.dumps(row) + "\n")
                stream.flush()

        try:
            yield write
        finally:
            # Every row was flushed: what is left to write now could not be written before, and that was said.
            with contextlib.suppress(OSError):
                stream.close()

    def _rows(self) -> list[dict[str, Any]]:
        with open(self.checkpoints.log_path, encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]


def _first_cause(error: BaseException) -> str:
    """What went wrong first: ending a capture after an error raises another one, which hides it."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}"


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
