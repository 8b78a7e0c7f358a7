"""What this machine offers, which optional parts are usable, and what each preset would miss.

Exits with 0 when the asked presets are ready (or would be after downloads), otherwise with 1; without PRESET it always
exits with 0, since nobody needs all of them on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import PresetConfig, load_preset
from ..machine import GIB, NEEDED, OPTIONAL, Machine, inspect_machine
from ..readiness import Need, preset_needs, verdict
from ..scripting import UserError

STYLES = {"ok": "green", "fetch": "cyan", "slower": "yellow", "missing": "red"}


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh doctor`."""
    parser = subparsers.add_parser("doctor", help="what this machine offers and what each preset would miss")
    parser.add_argument(
        "preset", nargs="*", metavar="PRESET", help="name or file of a preset (default: all in config/)"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("."), help="folder of the workflow (default: the current one)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def find_presets(root: Path, wanted: list[str]) -> list[PresetConfig]:
    """Presets by name or file; all of config/ without names. Raises :class:`UserError` for an unknown name."""
    if not root.is_dir():
        raise UserError(f"--root: {root} is no folder; give the folder of the workflow")
    files = sorted((root / "config").glob("*.yaml"))
    if not files and not wanted:
        raise UserError(f"no preset lies in {root / 'config'}; run this in the folder of the workflow or give --root")
    by_name = {preset.preset: preset for preset in map(load_preset, files)}
    if not wanted:
        return list(by_name.values())
    chosen = []
    for name in wanted:
        if name.endswith((".yaml", ".yml")):
            chosen.append(load_preset(name))
        elif name in by_name:
            chosen.append(by_name[name])
        else:
            raise UserError(f"preset {name!r} is unknown; expected a file or one of {', '.join(sorted(by_name))}")
    return chosen


def optional_parts(machine: Machine) -> dict[str, tuple[bool, str]]:
    """Parts that not every preset needs: whether usable here, and why or why not."""
    header = "Python.h found" if machine.python_header else "Python.h missing (Debian and Ubuntu: python3-dev)"
    compiler = machine.compiler or "no C++ compiler (Debian and Ubuntu: g++)"
    card = machine.accelerators[0].name if machine.accelerators else "no GPU visible to torch"
    fla = machine.versions.get("flash-linear-attention")
    plugin = machine.versions.get("snakemake-executor-plugin-slurm")
    sbatch = machine.programs["sbatch"]
    triton = machine.versions.get("triton")
    return {
        "torch.compile on the CPU": (machine.compile_usable, f"{compiler}; {header}"),
        "GPU": (bool(machine.accelerators), card),
        "Triton kernels": (bool(triton and machine.accelerators), f"triton {triton or 'not installed'}; {card}"),
        "fla kernels": (bool(fla and machine.accelerators), f"fla {fla or 'not installed (EXTRAS=gpu)'}; {card}"),
        "SLURM": (
            bool(plugin and sbatch),
            f"sbatch {sbatch or 'not found'}; plugin {plugin or 'not installed (EXTRAS=slurm)'}",
        ),
        "Snakemake": ("snakemake" in machine.versions, machine.versions.get("snakemake", "not installed")),
        "lm-eval": ("lm-eval" in machine.versions, machine.versions.get("lm-eval", "not installed")),
    }


def _print(machine: Machine, parts: dict[str, tuple[bool, str]], needs: list[tuple[PresetConfig, list[Need]]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    facts = Table(title="This machine", show_header=False, title_justify="left")
    memory = "unknown" if machine.memory is None else f"{machine.memory / GIB:.1f} GiB"
    if machine.memory_available is not None:
        memory += f", {machine.memory_available / GIB:.1f} GiB available"
    facts.add_row("System", machine.system)
    facts.add_row("Processor", f"{machine.processor}, {machine.cores} usable cores")
    facts.add_row("Memory", memory)
    facts.add_row("Disk", f"{machine.disk_free / GIB:.1f} GiB free")
    for number, card in enumerate(machine.accelerators):
        facts.add_row(f"GPU {number}", f"{card.name}, {card.memory / GIB:.0f} GiB, capability {card.capability}")
    facts.add_row("Python", machine.python)
    for name in (*NEEDED, *OPTIONAL):
        facts.add_row(name, machine.versions.get(name, "not installed"))
    console.print(facts)
    optional = Table("Part", "Usable", "Why", title="Optional parts", title_justify="left")
    for name, (usable, why) in parts.items():
        optional.add_row(name, "[green]yes[/]" if usable else "[yellow]no[/]", escape(why))
    console.print(optional)
    for preset, found in needs:
        table = Table("Needs", "State", "Detail", title_justify="left")
        table.title = escape(f"Preset {preset.preset}: {verdict(found)}")
        for need in found:
            table.add_row(need.what, f"[{STYLES[need.state]}]{need.state}[/]", escape(need.detail))
        console.print(table)


def run(args: argparse.Namespace) -> int:
    """Inspect, print, and return the exit code."""
    presets = find_presets(args.root, args.preset)
    machine = inspect_machine(args.root)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    needs = [(preset, preset_needs(preset, machine, args.root, offline=offline)) for preset in presets]
    parts = optional_parts(machine)
    if args.json:
        report = {
            "machine": machine.as_dict(),
            "optional": {name: {"usable": usable, "why": why} for name, (usable, why) in parts.items()},
            "presets": {
                preset.preset: {"verdict": verdict(found), "needs": [asdict(need) for need in found]}
                for preset, found in needs
            },
        }
        print(json.dumps(report, indent=2))
    else:
        _print(machine, parts, needs)
    ready = all(need.state != "missing" for _, found in needs for need in found)
    return 0 if ready or not args.preset else 1
