"""What a preset costs before anything runs: tokens, FLOPs, hours, memory and disk, job by job and in sum.

Speeds are those of the committed benchmarks on the card that they name, or a stated assumption. Exits with 1 when a
training that is not done does not fit on the card of --card, without it on no GPU of this machine, or where there is
none on no card that is known.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import PresetConfig, validate_preset
from ..devices import visible_devices
from ..estimate import Job, estimate, waiting
from ..memory_plan import largest_known_card, named_card, planned_cards, refused
from ..provenance import ROOT
from ..scripting import load_settings
from ..throughput import ASSUMED_SHARE, measurements
from .doctor import find_presets

GIB, GB = 2**30, 1e9
COLUMNS = ("job", "state", "parameters", "tokens", "FLOP", "tokens/s", "hours", "peak GiB", "disk GB", "speed")
NOTES = (
    "GPU-hours are those of one card a job at the measured tokens a second, without start-up, checkpoints and repeats; "
    "several cards a job need the same or more. Answers to needles are taken to be generated as fast as at 380M. "
    "Memory is the peak of one process. FLOP are model FLOPs: products with parameters and mixing of tokens, forward "
    "and backward. Not counted: downloads, probes, perplexity of articles, rows of lm-eval tasks."
)


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh estimate`."""
    parser = subparsers.add_parser("estimate", help="what a preset costs before anything runs")
    parser.add_argument("preset", nargs="?", default="laptop", help="name or file of a preset (default: laptop)")
    parser.add_argument("--settings", help="the preset itself, as JSON text or file, in place of a name")
    parser.add_argument(
        "--root", type=Path, default=Path("."), help="folder of the workflow (default: the current one)"
    )
    parser.add_argument(
        "--target", nargs="+", default=[], help="only trainings and needles for these: table1, fig4, claims ..."
    )
    parser.add_argument(
        "--card", help="count for the speed and memory of this card, by nvidia-smi's name or words of it, such as "
        "'NVIDIA H100' (default: speed of the measured one, memory of those here)",
    )  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="print trainings and needles as a table in Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON")


def quantity(value: float | None) -> str:
    """A number with three digits and its thousands as letters: 380M, 1.39B; ``-`` for none or zero."""
    if not value:
        return "-"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _hours(value: float) -> str:
    return "-" if not value else "<0.01" if value < 0.01 else f"{value:,.{2 if value < 10 else 1}f}"


def cells(job: Job) -> tuple[str, ...]:
    """One row of the table."""
    return (
        job.name,
        job.state,
        quantity(job.parameters),
        quantity(job.tokens),
        f"{job.flops:.2e}" if job.flops else "-",
        quantity(job.tokens_per_second),
        _hours(job.hours) + (" core" if job.hours and not job.gpu else ""),
        f"{job.memory / GIB:.1f}" if job.memory and job.gpu else "-",
        f"{job.disk / GB:,.1f}" if job.disk else "-",
        job.basis,
    )


def totals(jobs: Sequence[Job]) -> dict[str, float]:
    """Sums over jobs: FLOPs, hours of GPUs and cores, all and left, disk and the largest memory."""
    return {
        "flops": sum(job.flops for job in jobs),
        "gpu_hours": sum(job.hours for job in jobs if job.gpu),
        "gpu_hours_left": sum(job.hours_left for job in jobs if job.gpu),
        "core_hours": sum(job.hours for job in jobs if not job.gpu),
        "core_hours_left": sum(job.hours_left for job in jobs if not job.gpu),
        "disk_bytes": sum(job.disk for job in jobs),
        "memory_bytes": max((job.memory or 0 for job in jobs if job.gpu), default=0),
    }


def total_line(jobs: Sequence[Job]) -> str:
    """The sums in one sentence."""
    total = totals(jobs)
    done = sum(job.state == "done" for job in jobs)
    parts = [f"{done} of {len(jobs)} jobs done", f"{total['flops']:.2e} FLOP"]
    for kind, unit in (("gpu", "GPU-hours"), ("core", "core-hours")):
        if total[f"{kind}_hours"]:
            left = _hours(total[f"{kind}_hours_left"]) if total[f"{kind}_hours_left"] else "none"
            parts.append(f"{_hours(total[f'{kind}_hours'])} {unit} ({left} left)")
    if total["memory_bytes"]:
        parts.append(f"at most {total['memory_bytes'] / GIB:.1f} GiB of GPU memory")
    return ", ".join([*parts, f"{total['disk_bytes'] / GB:,.1f} GB of disk"])


def markdown(jobs: Iterable[Job], card: str) -> str:
    """Trainings and needles among ``jobs`` as a table with their sum and what it rests on."""
    counted = [job for job in jobs if job.flops]
    lines = [
        "| job | parameters | tokens | FLOP | tokens/s | GPU-hours | speed |",
        "|---|---|---|---|---|---|---|",
    ]
    for job in counted:
        name, _, parameters, tokens, flops, speed, hours, *_ = cells(job)
        lines.append(f"| {name} | {parameters} | {tokens} | {flops} | {speed} | {hours} | {job.basis} |")
    total = totals(counted)
    lines.append(f"| sum | | | {total['flops']:.2e} | | {_hours(total['gpu_hours'])} | |")
    return "\n".join(lines) + f"\n\nCounted for one {card} a training. {NOTES}"


def _print(preset: PresetConfig, jobs: Sequence[Job], card: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=f"Preset {preset.preset}, counted for {card}", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("job", "state", "speed") else "right")
    for job in jobs:
        table.add_row(*map(escape, cells(job)), style="dim" if job.state == "done" else None)
    console.print(table)
    console.print(total_line(jobs), soft_wrap=True, highlight=False)
    console.print(f"{NOTES} Where nothing of a size was measured: {ASSUMED_SHARE:.0%} of the peak.", soft_wrap=True)


def _too_large(preset: PresetConfig, jobs: Sequence[Job], name: str | None) -> list[str]:
    """A sentence for each training that is left and does not fit: on card ``name``, or on any here or known."""
    left = set(waiting(preset, jobs))
    devices = visible_devices()
    if name is None and devices:
        return refused(preset, left, planned_cards(devices))
    # Trainings in float32 are counted for a CPU.
    left &= {job.name for job in jobs if job.gpu}
    card = largest_known_card() if name is None else named_card(name)
    if card is None:
        print(f"--card: the memory of {name!r} is not known; whether trainings fit on it is not said", file=sys.stderr)
        return []
    return refused(preset, left, [card])


def run(args: argparse.Namespace) -> int:
    """Print the estimate; the exit code tells whether every training fits."""
    if args.settings:
        preset = validate_preset(load_settings(args.settings), "--settings")
    else:
        (preset,) = find_presets(args.root, [args.preset])
    benchmarks = ROOT / "benchmarks" / "results"
    measured = measurements(benchmarks)
    jobs = estimate(
        preset,
        results=args.root / "results" / preset.preset,
        benchmarks=benchmarks,
        measured=measured,
        card=args.card,
        targets=args.target,
    )
    card = args.card or next((one.card for one in measured), "an assumed card")
    if args.json:
        print(json.dumps({"jobs": [asdict(job) for job in jobs], "total": totals(jobs)}, indent=2))
    elif args.markdown:
        print(markdown(jobs, card))
    else:
        _print(preset, jobs, card)
    problems = _too_large(preset, jobs, args.card)
    # A line each: a preset has dozens of trainings, whose sentences nobody finds in one line.
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0
