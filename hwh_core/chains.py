"""Chains: one trained model with all that is measured of it, as records that outlive its weights.

A preset with ``keep_weights: false`` hands on no weights. What figures, tables and the ledger read of a model is then
measured in one go after its training, and later runs, here or on another machine, work from these records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import PresetConfig
from .files import sha256_of
from .reporting import requirements
from .scripting import UserError
from .verification import SUFFIX, is_weights, read_manifests


@dataclass(frozen=True)
class Chain:
    """One trained model: its folder below ``results/<preset>``, its seed, and the records in it that targets read."""

    name: str
    seed: int
    records: tuple[str, ...]


def target_inputs(preset: PresetConfig) -> list[str]:
    """What the figures and tables under ``targets`` and the ledger read, relative to ``results/<preset>``; sorted."""
    paths = set(requirements.claims_inputs(preset))
    for number in preset.targets.figures:
        paths.update(requirements.figure_inputs(preset, number))
    for number in preset.targets.tables:
        paths.update(requirements.table_inputs(preset, number))
    return sorted(paths)


def find_chains(preset: PresetConfig) -> dict[str, Chain]:
    """The chains of a preset by name: ``controlled/<model>`` and ``hwh/<scale>/<model>``."""
    seeds = {f"controlled/{model.name}": model.seed for model in preset.controlled.models}
    seeds |= {f"hwh/{scale.name}/{model.name}": model.seed for scale in preset.hwh.scales for model in scale.models}
    read = target_inputs(preset)
    return {
        name: Chain(name, seed, tuple(path for path in read if path.startswith(f"{name}/")))
        for name, seed in seeds.items()
    }


def chains_of(chains: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Names of the chains that ``paths`` (relative to ``results/<preset>``) belong to, sorted."""
    paths = list(paths)
    return sorted(name for name in chains if any(path.startswith(f"{name}/") for path in paths))


def record_files(folder: Path) -> list[Path]:
    """All files of a model's folder but its weights and checkpoints, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_weights(path.relative_to(folder)))


def check_inputs(manifests: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise :class:`UserError` where a record was made from another file than the one that lies here, or lay.

    ``manifests`` are those of one chain, by artifact, with paths of inputs relative to the working folder. Files that
    are not here cannot be compared; a folder of weights is held against the manifest of its training.
    """
    for artifact, manifest in manifests.items():
        for name, expected in manifest["inputs"].items():
            path = Path(name)
            if path in manifests and not path.is_file():
                found = manifests[path]["sha256"]
            elif path.exists() and not (path.is_dir() and is_weights(path / "model.safetensors")):
                found = sha256_of(path)
            else:
                continue
            if found != expected:
                raise UserError(
                    f"{artifact} was made from another {name} than the one of this run (sha256 {expected[:12]}, here "
                    f"{found[:12]}); bring the file that it was made from, or delete "
                    f"{artifact.parent / 'metrics.json'} to run the chain anew"
                )


def steps_of(manifests: Mapping[Path, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Programs of a chain in the order in which they ended, with seconds and machine, from its manifests.

    Seconds are those between start and last file of a program without its imports; of a training that was stopped,
    those of its last run. Manifests with one program and the same settings come from one run of it.
    """
    runs: dict[tuple[str, str], list[tuple[Path, Mapping[str, Any]]]] = {}
    for artifact, manifest in manifests.items():
        key = (manifest["script"], json.dumps(manifest["settings"], sort_keys=True))
        runs.setdefault(key, []).append((artifact, manifest))
    steps = []
    for (script, _), made in runs.items():
        last = max((manifest for _, manifest in made), key=lambda manifest: manifest["wall_seconds"])
        steps.append(
            {
                "step": Path(script).stem,
                "artifacts": sorted(artifact.name for artifact, _ in made),
                "seconds": last["wall_seconds"],
                "finished": last["finished"],
                "card": last["machine"].get("accelerator"),
                "machine": last["machine"],
            }
        )
    return sorted(steps, key=lambda step: (step["finished"], step["step"], step["artifacts"]))


def chain_record(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """The record of a finished chain: its steps, and its files with sha256. Raises :class:`UserError`.

    ``folder`` is the folder of the model, relative to the working folder as in the manifests.
    """
    manifests = read_manifests(folder)
    if not manifests:
        raise UserError(f"no manifest (*{SUFFIX}) lies below {folder}; run its chain first")
    check_inputs(manifests)
    steps = steps_of(manifests)
    machines: list[dict[str, Any]] = []
    for machine in sorted((step["machine"] for step in steps), key=len, reverse=True):
        # A program without torch does not see the card of the machine that it shares with the others.
        if not any(machine.items() <= known.items() for known in machines):
            machines.append(machine)
    return {
        "chain": name,
        "seed": seed,
        "seconds": round(sum(step["seconds"] for step in steps), 3),
        "cards": sorted({step["card"] for step in steps if step["card"]}),
        "machines": machines,
        "steps": [{key: value for key, value in step.items() if key != "machine"} for step in steps],
        "records": {path.as_posix(): sha256_of(path) for path in record_files(folder)},
    }
