"""Finished samples of a probe that was interrupted: kept one by one, and refused under other settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..files import atomic_directory, read_json, remove_at_once, write_json
from .behavior import BehaviorScores
from .errors import ProbeError
from .maps import ProbeMaps

SETTINGS, MAPS, SCORES = "settings.json", "probe.npz", "behavior.npz"
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_fingerprint(model: torch.nn.Module) -> str:
    """What tells one model from another, wherever it was loaded from: its config, and a checksum of every tensor.

    Sums of raw bits are exact and the same on every device, and take no second copy of the weights.
    """
    lines = [json.dumps(model.config.to_diff_dict(), sort_keys=True, default=str)]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        total = tensor.detach().contiguous().view(BITS[tensor.element_size()]).sum(dtype=torch.int64).item()
        lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {total}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def prompts_fingerprint(prompts: Iterable[Any]) -> str:
    """Hash of lists of numbers."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:16]


class FinishedSamples:
    """Maps and scores of single samples below ``folder``, each written as a whole.

    ``settings`` are all that decides the results. Raises :class:`ProbeError` where the folder was begun with others.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        record = folder / SETTINGS
        if not record.is_file():
            # Hidden: what a process left that was killed while it wrote the settings.
            if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise ProbeError(f"{folder}: holds other files; give a folder of its own to finished samples")
            write_json(record, settings)
            return
        raise_if_changed(str(folder), read_json(record), settings)

    def path(self, index: int) -> Path:
        """Folder of one sample."""
        return self.folder / f"{index:05d}"

    def load(self, index: int) -> tuple[ProbeMaps, BehaviorScores] | None:
        """A finished sample, or None."""
        path = self.path(index)
        return (ProbeMaps.load(path / MAPS), BehaviorScores.load(path / SCORES)) if path.is_dir() else None

    def save(self, index: int, maps: ProbeMaps, scores: BehaviorScores) -> None:
        """Keep one finished sample."""
        with atomic_directory(self.path(index)) as folder:
            maps.save(folder / MAPS)
            scores.save(folder / SCORES)

    def count(self, total: int) -> int:
        """How many of ``total`` samples are finished."""
        return sum(self.path(index).is_dir() for index in range(total))


def raise_if_changed(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise :class:`ProbeError` naming the settings in which a run differs from the one that ``where`` holds."""
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        told = "; ".join(f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed)
        raise ProbeError(
            f"{where}: holds a probe with other settings or another model ({told}); give another place, or begin anew "
            "(--restart)"
        )


def remove(folder: Path) -> None:
    """Remove finished samples, if there are any."""
    if (folder / SETTINGS).is_file():
        remove_at_once(folder)
