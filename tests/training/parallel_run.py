"""What test_training_parallel.py has several processes do: ``torchrun parallel_run.py FOLDER`` trains all its cases."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_training import LENGTH, RandomLoader, make_settings

from hwh_core.modeling import build_model
from hwh_core.training import compilation
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.distributed import Workers, start_workers, stop_workers
from hwh_core.training.settings import parse_settings
from hwh_core.training.snapshots import Snapshots
from hwh_core.training.trainer import Outcome, Trainer

ADAMW = {"kind": "adamw", "learning_rate": 0.004}
# name: (architecture, entries of the recipe). Two processes take two sequences each, one after the other.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "muon_ddp": ("hwh_std", {"parallel": "ddp"}),
    "muon_fsdp": ("hwh_std", {"parallel": "fsdp"}),
    "bfloat16_ddp": ("hwh_std", {"parallel": "ddp", "precision": "bfloat16", "optimizer": ADAMW}),
    "bfloat16_fsdp": ("hwh_std", {"parallel": "fsdp", "precision": "bfloat16", "optimizer": ADAMW}),
    # Clipped at every step, and embeddings that are one matrix in two places.
    "tied_fsdp": ("transformer", {"parallel": "fsdp", "gradient_clip": 0.01, "optimizer": ADAMW}),
}
# One run in four parts: (processes, how they share the work, its last step).
CHAIN = ((1, "ddp", 2), (2, "ddp", 4), (2, "fsdp", 6), (1, "fsdp", 8))
SNAPSHOTS = [1, 3, 5, 8]
# How two processes share the work: the file of the newest checkpoint, after step 4, that was cut in half before.
DAMAGES = {"ddp": "model.safetensors", "fsdp": "optimizer.pt"}


class Stopping(RandomLoader):
    """Asks the process that reads the batch after ``step`` steps, the last one that it may train on, to stop."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def batch(self, step: int) -> np.ndarray:
        if step + 1 == self.step and int(os.environ.get("RANK", "0")) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(step)


def train_case(name: str, folder: Path, workers: Workers) -> tuple[Trainer, Outcome]:
    """Train one of :data:`CASES`."""
    architecture, recipe = CASES[name]
    settings = parse_settings(make_settings(steps=3, micro_batch_tokens=LENGTH, **recipe))
    shape = settings.model.shape.model_dump() | {"tie_embeddings": name.startswith("tied")}
    model = build_model(shape, architecture, 1e4, True, LENGTH, 64, 0)
    trainer = Trainer(model, RandomLoader(), settings.training, LENGTH, CheckpointFolder(folder / name, {}, 1), workers)
    return trainer, trainer.run()


def train_to(
    last: int, parallel: str, folder: Path, workers: Workers, every: int = 2, snapshots: Snapshots | None = None
) -> Outcome:
    """A run of eight steps with a checkpoint after ``every`` so many, to its end or stopped after step ``last``."""
    settings = parse_settings(make_settings(steps=8, checkpoint_every_steps=every, parallel=parallel))
    model = build_model(settings.model.shape.model_dump(), "hwh_std", 1e4, True, LENGTH, 64, 0)
    checkpoints = CheckpointFolder(folder, {}, 9)
    return Trainer(model, Stopping(last), settings.training, LENGTH, checkpoints, workers, snapshots).run()


def train_part(number: int, folder: Path, workers: Workers) -> Outcome:
    """Go on with the run of :data:`CHAIN`; all but its last part stop before the end."""
    processes, parallel, last = CHAIN[number]
    assert processes == workers.world_size
    return train_to(last, parallel, folder, workers, 100, Snapshots(folder / "snapshots", SNAPSHOTS, {}))


def count_compiled_blocks(folder: Path, workers: Workers) -> dict[str, Any]:
    """Losses of a spread model of two kinds of layers, with blocks compiled, and how many graphs were."""
    compiled: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    own = compilation.compiled_blocks
    compilation.compiled_blocks = lambda layers, _, function: own(layers, backend, function)
    compilation.cpp_compiler_is_usable = lambda: True
    compilation.CPU_MINIMUM_TOKENS = dict.fromkeys(compilation.CPU_MINIMUM_TOKENS, 0)
    settings = parse_settings(make_settings(steps=3, micro_batch_tokens=LENGTH, parallel="fsdp", compile="auto"))
    model = build_model(settings.model.shape.model_dump(), "hwh_std", 1e4, True, LENGTH, 64, 0)
    kinds = len(set(model.config.layers))
    trainer = Trainer(model, RandomLoader(), settings.training, LENGTH, CheckpointFolder(folder, {}, 1), workers)
    outcome = trainer.run()
    assert outcome.compiled
    return {"losses": [row["loss"] for row in outcome.rows], "compiled": len(compiled), "kinds": kinds}


def main(folder: Path) -> None:
    """Losses and weights of all cases, losses of the damaged runs and what was compiled, into ``folder``.

    Also the middle parts of the chain.
    """
    workers = start_workers()
    results = {}
    for name in CASES:
        trainer, outcome = train_case(name, folder, workers)
        if workers.is_first:
            results[name] = [row["loss"] for row in outcome.rows]
            save_file(dict(trainer.model.named_parameters()), folder / f"{name}.safetensors")
    exits = [train_part(number, folder / "chain", workers).exit_code for number in (1, 2)]
    for parallel in DAMAGES:
        results[f"damaged_{parallel}"] = [row["loss"] for row in train_to(9, parallel, folder / parallel, workers).rows]
    results |= {"exits": exits, "compiled": count_compiled_blocks(folder / "compiled", workers)}
    if workers.is_first:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    stop_workers(workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
