"""Finished parts of a run that was interrupted: kept one by one, and refused under other settings."""

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


class FinishedParts:
    """Parts of a run below ``folder``, each written as a whole by a subclass.

    ``settings`` are all that decides the results. Raises :class:`ProbeError` where the folder was begun with others.
    """

    held = "a probe"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        record = folder / SETTINGS
        if not record.is_file():
            # Hidden: what a process left that was killed while it wrote the settings.
            if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise ProbeError(f"{folder}: holds other files; give finished parts a folder of their own")
            write_json(record, settings)
            return
        raise_if_changed(str(folder), read_json(record), settings, self.held)

    def path(self, index: int) -> Path:
        """Where one part is kept."""
        return self.folder / f"{index:05d}"

    def count(self, total: int) -> int:
        """How many of ``total`` parts are finished."""
        return sum(self.path(index).exists() for index in range(total))


class FinishedSamples(FinishedParts):
    """Maps, scores and norms of single samples, each in a folder of its own."""

    def load(self, index: int) -> Sample | None:
        """A finished sample, or None."""
        path = self.path(index)
        return tuple(kind.load(path / name) for name, kind in PARTS.items()) if path.is_dir() else None

    def save(self, index: int, sample: Sample) -> None:
        """Keep one finished sample."""
        with atomic_directory(self.path(index)) as folder:
            for name, part in zip(PARTS, sample, strict=True):
                part.save(folder / name)


class FinishedValues(FinishedParts):
    """Lists of numbers by name, each part in a JSON file of its own, which gives back every bit of a float."""

    held = "causal checks"

    def path(self, index: int) -> Path:
        """File of one part."""
        return self.folder / f"{index:05d}.json"

    def load(self, index: int) -> dict[str, list[float]] | None:
        """Finished values, or None."""
        path = self.path(index)
        return read_json(path) if path.is_file() else None

    def save(self, index: int, values: dict[str, list[float]]) -> None:
        """Keep finished values."""
        write_json(self.path(index), values)


def raise_if_changed(where: str, old: dict[str, Any], new: dict[str, Any], held: str) -> None:
    """Raise :class:`ProbeError` naming the settings in which a run differs from the one that ``where`` holds.

    ``held`` says what that run is, with its article.
    """
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        told = "; ".join(f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed)
        raise ProbeError(
            f"{where}: holds {held} with other settings or another model ({told}); give another place, or begin anew "
            "(--restart)"
        )


def remove(folder: Path) -> None:
    """Remove the finished parts of a run, if there are any."""
    if (folder / SETTINGS).is_file():
        remove_at_once(folder)
