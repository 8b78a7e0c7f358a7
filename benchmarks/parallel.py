"""Training at the paper's 380M recipe on several devices against one: tokens a second, and the share of N times one.

One step is the same in all measurements, 524,288 tokens in micro-batches of 65,536, shared out among the devices, so
that the time for averaging gradients is set against what the paper's training has of it. Alone, the step is recorded
as CUDA graphs, as a training of one process does. Each measurement is started anew, by torchrun where it has several
processes. Writes benchmarks/results/parallel.json; until its end what is measured stands in parallel_part.json. Exits
with 1 if a measurement failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording import OUTPUT_HELP, Figure, Kept, Kind, command_again, output_of
from benchmarks.train import ROOT, summary, visible_devices
from benchmarks.train_plan import Case, parallel_case

WAYS = ("ddp", "fsdp")
ALONE = "alone"
SECONDS = 500
Result = dict[str, Any]


def measure(case: Case, way: str) -> tuple[bool, Result]:
    """Steps of ``case`` in this process and those beside it; whether this one has the result, and the result."""
    from benchmarks.train_case import make_trainer, peak_memory, time_steps
    from hwh_core.training.distributed import stop_workers

    changes = {} if way == ALONE else {"parallel": way}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(case, Path(folder), **changes)
        workers = trainer.workers
        result = time_steps(case, lambda number: trainer.run_step(number)["loss"])
    result |= {
        "processes": workers.world_size,
        "compiled": trainer.compiled,
        "cuda_graph": trainer.cuda_graph,
        "micro_rows": trainer.micro_rows,
        "peak_memory_bytes": peak_memory(),
        "mfu": None,
    }
    # With spread weights the first process also holds a whole model, which no training has on its device.
    last = workers.rank == workers.world_size - 1
    stop_workers(workers)
    return last, result


def start(way: str, devices: Sequence[str | None], quick: bool, architecture: str, seconds: int) -> Result:
    """Run one measurement in fresh processes, one a device; ``error`` in the result where it failed."""
    devices = devices[:1] if way == ALONE else devices
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(devices)}"]
    shown = {} if None in devices else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, *(launcher if len(devices) > 1 else []), "-m", "benchmarks.parallel"]
        command += ["--architecture", architecture, "--worker", way, str(path), *["--quick"] * quick]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | shown, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {seconds} s"}
        if done.returncode or not path.is_file():
            return {"error": f"ended with code {done.returncode}", "stderr": done.stderr[-4000:]}
        return json.loads(path.read_text(encoding="utf-8"))


def figures_of(case: Case, results: Mapping[str, Result]) -> list[Figure]:
    """Efficiencies first, then tokens a second, of what was measured."""
    measured = {way: result for way, result in results.items() if "error" not in result}
    sizes = {"rows": case.rows, "length": case.length, "architecture": case.architecture, "shape": case.shape}
    figures: list[Figure] = []
    alone = measured.get(ALONE)
    for way, result in measured.items():
        if way != ALONE and alone is not None:
            count, one = result["processes"], alone["tokens_per_second"]
            value = result["tokens_per_second"] / (count * one)
            unit = f"share of {count} times one device"
            figures.append(
                {"id": f"paper.{way}{count}_efficiency", "value": value, "unit": unit, "against": None, "sizes": sizes}
            )
    for way, result in measured.items():
        name = ALONE if way == ALONE else f"{way}{result['processes']}"
        spread = result["rows"] * case.length / result["step_seconds"] ** 2 * result["spread_seconds"]
        figures.append(
            {
                "id": f"paper.{name}_tokens_per_second",
                "value": result["tokens_per_second"],
                "unit": "tokens/s",
                "against": None,
                "spread": spread,
                "sizes": sizes,
                "detail": {key: value for key, value in result.items() if key not in ("tokens_per_second", "mfu")},
            }
        )
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="number of devices that share a step")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="how they share it")
    parser.add_argument("--architecture", default="hwh_std")
    parser.add_argument("--quick", action="store_true", help="a tiny model, also on a CPU")
    parser.add_argument("--case-seconds", type=int, default=SECONDS, help="what takes longer is given up")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.output = output_of(options.output, options.quick)
    case = parallel_case(options.quick, options.architecture)
    if options.worker is not None:
        way, path = options.worker
        last, result = measure(case, way)
        if last:
            Path(path).write_text(json.dumps(result), encoding="utf-8")
        return 0
    if case.rows % options.devices:
        parser.error(f"--devices {options.devices}: a step of {case.rows} sequences cannot be split evenly")
    devices = visible_devices(0, options.devices)
    line = command_again("parallel", sys.argv[1:] if arguments is None else arguments, {})
    kept = Kept(Kind("parallel"), line, options.output, fresh=True)
    results = {}
    for way in (ALONE, *options.ways):
        results[way] = start(way, devices, options.quick, options.architecture, options.case_seconds)
        print(f"{way}: {summary(results[way])}", file=sys.stderr, flush=True)
        kept.add(figures_of(case, results))
    kept.end()
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
