"""One case of benchmarks.train in a process of its own: ``python -m benchmarks.train_case NAME RESULT.json``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recording import interquartile_range
from benchmarks.train_plan import ROPE_THETA, Case, case_on, paper_plan, plan
from hwh_core.data.loader import BatchLoader
from hwh_core.data.store import TokenStore
from hwh_core.modeling import build_model
from hwh_core.modeling.delta_net import GatedDeltaNetGroup
from hwh_core.training.batches import Loader
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.distributed import start_workers
from hwh_core.training.flops import model_flops_per_token, model_flops_utilization
from hwh_core.training.trainer import Trainer

WARMUP_STEPS = 3
DISTINCT_BATCHES = 8
# Timed steps of a case take about this long together, within the case's own limits on their number.
TIMED_SECONDS = 5.0


class RandomLoader:
    """Skewed random tokens, so that a loss can fall; drawn beforehand, so that drawing them is in no measurement."""

    def __init__(self, rows: int, length: int, vocab_size: int) -> None:
        drawn = np.random.default_rng(11).random((DISTINCT_BATCHES, rows, length + 1))
        self.batches = (drawn**3 * vocab_size).astype(np.int64)

    def batch(self, step: int) -> np.ndarray:
        """int64 [rows, length + 1]; repeats after :data:`DISTINCT_BATCHES` steps."""
        return self.batches[step % DISTINCT_BATCHES]


def make_trainer(
    case: Case, folder: Path, backend: str = "auto", store: TokenStore | None = None, **changes: Any
) -> Trainer:
    """The project's own Trainer on the text of ``store``, or on random tokens.

    ``changes`` replace entries of the training recipe; ``backend`` is that of Gated DeltaNet groups.
    """
    workers = start_workers()
    # Drawn where they are used: on the host, initial weights of the large sizes take longer than all timed steps.
    with workers.device:
        model = build_model(case.shape, case.architecture, ROPE_THETA, True, case.length, case.vocab_size, 0)
    for module in model.modules():
        if isinstance(module, GatedDeltaNetGroup):
            module.backend = backend
    training = case.training.model_copy(update=changes)
    if store is None:
        loader: Loader = RandomLoader(case.rows, case.length, case.vocab_size)
    else:
        loader = BatchLoader(store, case.length, case.rows, seed=0)
    return Trainer(model, loader, training, case.length, CheckpointFolder(folder, {}, 1), workers)


def time_steps(case: Case, step: Callable[[int], float]) -> dict[str, Any]:
    """Time ``step(number)``, which returns its loss and leaves the device idle."""
    seconds, losses = [], []
    wanted = WARMUP_STEPS + case.steps[1]
    number = 0
    while number < wanted:
        started = time.perf_counter()
        losses.append(step(number))
        seconds.append(time.perf_counter() - started)
        number += 1
        if number == WARMUP_STEPS:
            affordable = int(TIMED_SECONDS / seconds[-1])
            wanted = WARMUP_STEPS + min(max(affordable, case.steps[0]), case.steps[1])
    if not np.isfinite(losses).all():
        raise RuntimeError(f"{case.name}: a loss is not finite: {losses}")
    timed = seconds[WARMUP_STEPS:]
    tokens = case.rows * case.length
    return {
        "first_step_seconds": seconds[0],
        "step_seconds": statistics.median(timed),
        "spread_seconds": interquartile_range(timed),
        "timed_steps": len(timed),
        "tokens_per_second": tokens / statistics.median(timed),
        "losses": [losses[0], losses[-1]],
        "loss_curve": losses,
        "rows": case.rows,
        "vocab_size": case.vocab_size,
    }


def peak_memory() -> int | None:
    """Bytes of device memory at the highest, None on a CPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def measure_ours(case: Case, store: TokenStore | None = None) -> dict[str, Any]:
    """Steps of the project's Trainer, exactly as in a training."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(case, Path(folder), store=store)
        result = time_steps(case, lambda number: trainer.run_step(number)["loss"])
    config = trainer.model.config
    flops = model_flops_per_token(
        config.layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        length=case.length,
    )
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return result | {
        "mfu": model_flops_utilization(flops, result["tokens_per_second"], name, 1),
        "parameters": trainer.model.num_parameters(),
        "compiled": trainer.compiled,
        "graph_breaks": _graph_breaks() if trainer.compiled else 0,
        "cuda_graph": trainer.cuda_graph,
        "delta_net_check": trainer.delta_net_check,
    }


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def measure(case: Case, variant: str | None = None, store: TokenStore | None = None) -> dict[str, Any]:
    """Result of a case as plain values for JSON; a peer's is that of one ``variant``, the paper's on ``store``."""
    if case.kind == "agreement":
        from benchmarks.train_agreement import measure_agreement

        return measure_agreement(case)
    if case.kind in ("ours", "paper"):
        result = measure_ours(case, store)
    else:
        from benchmarks.train_peers import measure_peer

        result = measure_peer(case, str(variant))
    return result | {"peak_memory_bytes": peak_memory()}


def main() -> None:
    """Entry point; the result holds ``error`` and ``out_of_memory`` where the case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("result", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, help="sequences of a step, where those of the case do not fit into memory")
    parser.add_argument("--variant", help="way to run a peer")
    parser.add_argument("--store", type=Path, help="token store: the case is one of benchmarks.paper")
    arguments = parser.parse_args()
    store = None if arguments.store is None else TokenStore.open(arguments.store)
    cases = plan(arguments.quick) if store is None else paper_plan(arguments.quick)
    case = next(case for case in cases if case.name == arguments.name)
    if store is not None:
        case = case_on(case, store.vocab_size)
    if arguments.rows is not None:
        training = case.training.model_copy(update={"tokens_per_step": arguments.rows * case.length})
        case = dataclasses.replace(case, rows=arguments.rows, training=training)
    try:
        result = measure(case, arguments.variant, store)
    except torch.OutOfMemoryError as error:
        result = {"error": str(error).splitlines()[0], "out_of_memory": True}
    arguments.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
