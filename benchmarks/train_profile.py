"""Where the time of a training step goes: device time by kernel, of one case of benchmarks.train.

    python -m benchmarks.train_profile 380m_2048_hwh_std --output build/profile.json

Kernels inside CUDA graphs are counted too. On a CPU (``--quick``) operators are counted instead of kernels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.train_case import WARMUP_STEPS, make_trainer
from benchmarks.train_plan import plan

PROFILED_STEPS = 3


def kernel_times(step: Callable[[int], Any], first: int, steps: int) -> list[dict[str, Any]]:
    """Milliseconds and launches a step of every kernel, the longest first; ``step(number)`` runs one step."""
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for number in range(first, first + steps):
            step(number)
        if cuda:
            torch.cuda.synchronize()
    rows = []
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        if microseconds > 0:
            rows.append({"kernel": event.key, "ms": microseconds / 1000 / steps, "launches": event.count / steps})
    return sorted(rows, key=lambda row: -row["ms"])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a case of python -m benchmarks.train --list, one of our own models")
    parser.add_argument("--quick", action="store_true", help="cases of --quick")
    parser.add_argument("--rows", type=int, default=40, help="kernels to print (default 40); the file has all")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    cases = {case.name: case for case in plan(arguments.quick) if case.kind == "ours"}
    if arguments.name not in cases:
        parser.error(f"{arguments.name} is none of {', '.join(cases)}")
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(cases[arguments.name], Path(folder))
        for number in range(WARMUP_STEPS):
            trainer.run_step(number)
        rows = kernel_times(trainer.run_step, WARMUP_STEPS, PROFILED_STEPS)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"case": arguments.name, "kernels": rows}, indent=1), encoding="utf-8")
    print(f"{arguments.name}: {sum(row['ms'] for row in rows):.1f} ms a step in {len(rows)} kernels")
    for row in rows[: arguments.rows]:
        print(f"{row['ms']:9.3f} ms  x{row['launches']:<6.0f} {row['kernel'][:90]}")


if __name__ == "__main__":
    main()
