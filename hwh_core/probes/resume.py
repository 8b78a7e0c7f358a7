"""Finished samples of a probe that was interrupted: kept one by one, and refused under other settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import atomic_directory, read_json, remove_at_once, write_json
from .behavior import BehaviorScores
from .errors import ProbeError
from .maps import ProbeMaps
from .norms import Norms

SETTINGS = "settings.json"
PARTS = {"probe.npz": ProbeMaps, "behavior.npz": BehaviorScores, "norms.npz": Norms}
Sample = tuple[ProbeMaps, BehaviorScores, Norms]


def prompts_fingerprint(prompts: Iterable[Any]) -> str:
    """Hash of lists of numbers."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:16]


class FinishedSamples:
    """Maps, scores and norms of single samples below ``folder``, each written as a whole.

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

    def load(self, index: int) -> Sample | None:
        """A finished sample, or None."""
        path = self.path(index)
        return tuple(kind.load(path / name) for name, kind in PARTS.items()) if path.is_dir() else None

    def save(self, index: int, sample: Sample) -> None:
        """Keep one finished sample."""
        with atomic_directory(self.path(index)) as folder:
            for name, part in zip(PARTS, sample, strict=True):
                part.save(folder / name)

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
