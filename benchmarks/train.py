"""Training speed of all architectures at several sizes, beside peers; and that faster ways give the same loss curve.

Each case runs in a process of its own (:mod:`benchmarks.train_case`), on one device or spread over several; one that
fails is reported and costs no other. Writes benchmarks/results/train.json. After each case all so far stands in
train_part.json; a run with ``--only`` or ``--agreement`` goes on with that file, which becomes train.json when all are
there, and ``--join A.json B.json`` makes one of parts from several machines. Exits with 1 if a case failed or a loss
curve left its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.recording import OUTPUT_HELP, Figure, Kept, Kind, command_again, join, output_of
from benchmarks.train_agreement import BOUNDS
from benchmarks.train_plan import PEER_VARIANTS, Case, plan
from hwh_core.files import write_json
from hwh_core.progress import progress
from hwh_core.scripting import UserError

ROOT = Path(__file__).parents[1]
CASE_SECONDS = 500
# Ends the ids of the figures that comparisons are made of.
SPEED = "_tokens_per_second"
Result = dict[str, Any]
# id after "train.": (case, figure of its result, case to divide by, bound). Ratios are of tokens a second.
COMPARISONS: dict[str, tuple[str, str, str | None, float]] = {
    "8x512_b8_hwh_std_step_ms": ("8x512_b8_2048_hwh_std", "step_ms", None, 20.0),
    "380m_2048_transformer_mfu": ("380m_2048_transformer", "mfu", None, 0.45),
    "380m_2048_hwh_std_over_transformer": ("380m_2048_hwh_std", "ratio", "380m_2048_transformer", 0.95),
    "380m_8192_hwh_std_over_transformer": ("380m_8192_hwh_std", "ratio", "380m_8192_transformer", 1.0),
    "380m_32768_hwh_std_over_transformer": ("380m_32768_hwh_std", "ratio", "380m_32768_transformer", 2.0),
    "1400m_2048_hwh_std_over_transformer": ("1400m_2048_hwh_std", "ratio", "1400m_2048_transformer", 1.0),
    "380m_2048_gdn_over_fla": ("380m_2048_gdn", "ratio", "380m_2048_fla_gdn", 1.0),
    "380m_2048_transformer_over_hf": ("380m_2048_transformer", "ratio", "380m_2048_hf_llama", 1.0),
}


def run_process(
    case: Case,
    rows: int,
    variant: str | None,
    environment: Mapping[str, str],
    quick: bool,
    seconds: int,
    store: Path | None = None,
) -> Result:
    """Run a case once in a fresh process, of :mod:`benchmarks.paper` on a ``store``; ``error`` where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.train_case", case.name, str(path), *["--quick"] * quick]
        command += [] if rows == case.rows else ["--rows", str(rows)]
        command += [] if variant is None else ["--variant", variant]
        command += [] if store is None else ["--store", str(store)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {seconds} s"}
        if not path.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return {"error": f"ended with code {done.returncode}: {last}", "stderr": done.stderr[-4000:]}
        result = json.loads(path.read_text(encoding="utf-8"))
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    if warnings:
        result["warnings"] = warnings
    return result


def fastest(results: Mapping[str, Result]) -> Result:
    """The fastest of a peer's variants with the step times of all; the errors of all where none worked."""
    variants = {name: result.get("error", result.get("step_seconds")) for name, result in results.items()}
    worked = [result for result in results.values() if "error" not in result]
    if worked:
        return min(worked, key=lambda result: result["step_seconds"]) | {"variants": variants}
    out_of_memory = any(result.get("out_of_memory") for result in results.values())
    return {"error": f"no way to run it worked: {variants}", "out_of_memory": out_of_memory}


def run_case(case: Case, device: str | None, quick: bool, seconds: int) -> Result:
    """Run a case in fresh processes that see ``device`` alone, one for each way to run a peer.

    ``error`` in the result where it failed. Where memory does not suffice, half the sequences are taken until it does.
    """
    environment = dict(os.environ) if device is None else os.environ | {"CUDA_VISIBLE_DEVICES": device}
    variants = PEER_VARIANTS.get(case.kind, ())
    rows = case.rows
    while True:
        if variants:
            result = fastest({name: run_process(case, rows, name, environment, quick, seconds) for name in variants})
        else:
            result = run_process(case, rows, None, environment, quick, seconds)
        if not result.get("out_of_memory") or rows == 1:
            return result
        rows //= 2


def run_cases(
    cases: Sequence[Case],
    devices: Sequence[str | None],
    quick: bool,
    keep: Path | None,
    seconds: int,
    done: Callable[[Case, Result], None],
) -> dict[str, Result]:
    """Results by case name, the cases shared out among ``devices``; those found in folder ``keep`` are not rerun.

    ``done`` is called with each that did not fail.
    """
    results: dict[str, Result] = {}
    waiting = []
    for case in cases:
        kept = None if keep is None else keep / f"{case.name}.json"
        if kept is not None and kept.is_file():
            results[case.name] = json.loads(kept.read_text(encoding="utf-8"))
            done(case, results[case.name])
        else:
            waiting.append(case)
    free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for device in devices:
        free.put(device)

    def work(case: Case) -> tuple[Case, Result]:
        device = free.get()
        try:
            return case, run_case(case, device, quick, seconds)
        finally:
            free.put(device)

    with ThreadPoolExecutor(len(devices)) as pool:
        futures = [pool.submit(work, case) for case in waiting]
        for future in progress(as_completed(futures), "cases", total=len(futures), unit="case"):
            case, result = future.result()
            results[case.name] = result
            if "error" not in result:
                if keep is not None:
                    write_json(keep / f"{case.name}.json", result)
                done(case, result)
            print(f"{case.name}: {summary(result)}", file=sys.stderr, flush=True)
    return results


def summary(result: Result) -> str:
    """One line about a result."""
    if "error" in result:
        return f"failed: {result['error']}\n{result.get('stderr', '')}".rstrip()
    if "differences" in result:
        return ", ".join(f"{name} {value:.1e}" for name, value in result["differences"].items())
    share = "" if result["mfu"] is None else f", MFU {result['mfu']:.1%}"
    line = f"{result['step_seconds'] * 1000:.1f} ms a step, {result['tokens_per_second']:,.0f} tokens/s{share}"
    return "\n".join([line, *result.get("warnings", [])])


def speed_figure(case: Case, result: Result) -> Figure:
    """Tokens a second of a case, with how it ran."""
    tokens, seconds = result["rows"] * case.length, result["step_seconds"]
    left_out = ("tokens_per_second", "rows", "vocab_size", "curves", "loss_curve")
    return {
        "id": f"train.{case.name}_tokens_per_second",
        "value": result["tokens_per_second"],
        "unit": "tokens/s",
        "against": None,
        "spread": tokens / seconds**2 * result["spread_seconds"],
        "sizes": {"rows": result["rows"], "length": case.length, "vocab_size": case.vocab_size, "shape": case.shape},
        "detail": {key: value for key, value in result.items() if key not in left_out},
    }


def comparison_figure(name: str, results: Mapping[str, Result]) -> Figure | None:
    """A figure of :data:`COMPARISONS`, or None where a case that it needs was not measured."""
    own, kind, peer, bound = COMPARISONS[name]
    needed = [results.get(case) for case in (own, peer) if case is not None]
    if any(result is None or "error" in result for result in needed):
        return None
    result = results[own]
    if peer is not None:
        value: float | None = result["tokens_per_second"] / results[peer]["tokens_per_second"]
        unit, against = "ratio of tokens/s", f"at least {bound}"
    elif kind == "step_ms":
        value, unit, against = 1000 * result["step_seconds"], "ms", f"at most {bound}"
    else:
        value, unit, against = result["mfu"], "share of the card's peak", f"at least {bound}"
    figure: Figure = {"id": f"train.{name}", "value": value, "unit": unit, "against": against}
    if kind == "step_ms":
        figure["spread"] = 1000 * result["spread_seconds"]
    return figure


def agreement_figures(case: Case, result: Result) -> list[Figure]:
    """Largest differences of the loss curves, each against its bound; the control has none."""
    return [
        {
            "id": f"train.agreement_{case.architecture}_{name}",
            "value": value,
            "unit": "nats",
            "against": f"at most {BOUNDS[name]}" if name in BOUNDS else None,
            "sizes": {"shape": case.shape, "length": case.length, "rows": case.rows, "steps": case.steps[1]},
        }
        for name, value in result["differences"].items()
    ]


def with_comparisons(figures: Sequence[Figure]) -> list[Figure]:
    """The figures of cases, and first the comparisons that they allow."""
    compared = {f"train.{name}" for name in COMPARISONS}
    measured = [figure for figure in figures if figure["id"] not in compared]
    results = {
        figure["id"].removeprefix("train.").removesuffix(SPEED): figure["detail"] | {SPEED[1:]: figure["value"]}
        for figure in measured
        if figure["id"].endswith(SPEED)
    }
    return [*filter(None, (comparison_figure(name, results) for name in COMPARISONS)), *measured]


def kind_of(cases: Sequence[Case]) -> Kind:
    """What is joined to one result, until each of ``cases`` is there."""

    def complete(figures: Sequence[Figure]) -> bool:
        ids = [figure["id"] for figure in figures]
        return all(any(one.startswith(f"train.{case.name}_") for one in ids) for case in cases)

    return Kind("train", derive=with_comparisons, complete=complete)


def figures_of(case: Case, result: Result) -> list[Figure]:
    """Figures of one case."""
    return agreement_figures(case, result) if case.kind == "agreement" else [speed_figure(case, result)]


def complaints(cases: Sequence[Case], results: Mapping[str, Result]) -> list[str]:
    """What makes the program fail: cases without a result, loss curves beyond their bounds."""
    found = [f"{case.name}: {results[case.name]['error']}" for case in cases if "error" in results[case.name]]
    for case in cases:
        for name, value in results[case.name].get("differences", {}).items():
            if name in BOUNDS and not value <= BOUNDS[name]:
                found.append(f"{case.name}: {name} = {value:.3g} nats, expected at most {BOUNDS[name]}")
    return found


def visible_devices(index: int, count: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each worker: ``count`` devices from ``index`` on, among those visible here.

    None leaves the variable as it is, where it hides all devices. Raises ValueError if there are too few.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return [None] * count
    names = visible.split(",") if visible is not None else [str(number) for number in range(index + count)]
    if index + count > len(names):
        raise ValueError(f"--device-index {index} --devices {count}: CUDA_VISIBLE_DEVICES = {visible} has too few")
    return list(names[index : index + count])


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, seconds, also without a GPU")
    parser.add_argument("--only", default="", help="regular expression: cases whose name it occurs in")
    parser.add_argument("--agreement", action="store_true", help="only the loss curves")
    parser.add_argument("--device-index", type=int, default=0, help="first device")
    parser.add_argument("--devices", type=int, default=1, help="number of devices that share the cases")
    parser.add_argument(
        "--case-seconds", type=int, default=CASE_SECONDS, help="a process that takes longer is given up"
    )
    parser.add_argument("--keep", type=Path, help="folder of results by case: kept there, and not measured again")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--join", nargs="+", type=Path, metavar="PART.json", help="only make one result of these parts")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    arguments = parser.parse_args()
    arguments.output = output_of(arguments.output, arguments.quick)
    everything = plan(arguments.quick)
    cases = [
        case
        for case in everything
        if re.search(arguments.only, case.name) and (case.kind == "agreement" or not arguments.agreement)
    ]
    if not cases:
        parser.error(f"--only {arguments.only!r} fits none of: {', '.join(case.name for case in everything)}")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    kind, command = kind_of(everything), command_again("train", sys.argv[1:], {})
    whole = len(cases) == len(everything)
    try:
        if arguments.join:
            join(kind, "train", arguments.join, arguments.output)
            return 0
        kept = Kept(kind, command, arguments.output, fresh=whole)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    devices = visible_devices(arguments.device_index, arguments.devices)
    results = run_cases(
        cases, devices, arguments.quick, arguments.keep, arguments.case_seconds,
        lambda case, result: kept.add(figures_of(case, result)),
    )  # fmt: skip
    kept.end(whole)
    failures = complaints(cases, results)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
