"""Checkpoints: written to a temporary folder and renamed, checked by sha256, refused under other settings or data."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..files import atomic_directory, atomic_write, read_json, remove, remove_at_once, sha256_of, sync, write_json
from ..locks import only_writer
from .settings import TrainingError

_FOLDER = re.compile(r"^step-(\d{8})$")
_DAMAGED = "damaged-"
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.pt", "state.json"


class _DamageError(Exception):
    """A checkpoint cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back: how many steps are done, in how many seconds, and the state after them."""

    step: int
    seconds: float
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run; ``fingerprint`` maps a name (config, data) to a hash."""

    def __init__(self, path: str | Path, fingerprint: Mapping[str, str], keep: int) -> None:
        self.path = Path(path)
        self.fingerprint = dict(fingerprint)
        self.keep = keep

    @property
    def log_path(self) -> Path:
        """The running log; it lies here because a workflow deletes the outputs of a job that failed."""
        return self.path / "train_log.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone, once no other run does.

        A training that outlived the workflow that started it may still be writing here. The lock ends with its
        process, however that dies.
        """
        with only_writer(self.path / ".lock", self.path):
            # Of a process that was killed while it wrote or deleted what this one may never write again.
            for left in self.path.glob(".*"):
                if left.name != ".lock":
                    remove(left)
            yield

    def folders(self) -> list[Path]:
        """Complete checkpoints, the oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(entry for entry in self.path.iterdir() if _FOLDER.match(entry.name))

    def save(self, step: int, seconds: float, model: Mapping[str, torch.Tensor], optimizer: Mapping[str, Any]) -> Path:
        """Save the state after ``step`` steps and drop all but the newest ``keep`` checkpoints.

        ``model`` holds named parameters: tied weights once, since the format refuses tensors that share memory.
        """
        # On the disk before the checkpoint is: these steps are not run again, so their rows are not written again.
        if self.log_path.exists():
            sync(self.log_path)
        target = self.path / f"step-{step:08d}"
        with atomic_directory(target) as folder:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.items()}
            save_file(tensors, folder / _MODEL)
            torch.save(dict(optimizer), folder / _OPTIMIZER)
            write_json(
                folder / _STATE,
                {
                    "step": step,
                    "seconds": seconds,
                    "fingerprint": self.fingerprint,
                    "sha256": {name: sha256_of(folder / name) for name in (_MODEL, _OPTIMIZER)},
                },
            )
        for old in self.folders()[: -self.keep]:
            remove_at_once(old)
        return target

    def load_latest(self, *, set_damaged_aside: bool = False) -> Checkpoint | None:
        """The newest checkpoint, or None where there is none; newest by its step, whatever clocks said.

        Raises :class:`TrainingError` if it was made under other settings or other data, or if it is damaged. With
        ``set_damaged_aside``, which is for the only writer, a damaged one is renamed with a warning instead and the one
        before it is taken: going on from there gives the same weights.
        """
        for folder in reversed(self.folders()):
            try:
                state = self._checked_state(folder)
            except _DamageError as damage:
                if not set_damaged_aside:
                    raise TrainingError(
                        f"checkpoint {folder} is damaged: {damage}; delete it to go on from the one before it"
                    ) from None
                self._set_aside(folder, damage)
                continue
            return Checkpoint(
                step=state["step"],
                seconds=state["seconds"],
                model=load_file(folder / _MODEL),
                optimizer=torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True),
            )
        return None

    def _checked_state(self, folder: Path) -> dict[str, Any]:
        try:
            state = read_json(folder / _STATE)
            fingerprint, recorded = state["fingerprint"], state["sha256"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            raise _DamageError(f"{_STATE} is missing or cannot be read") from None
        for name, value in self.fingerprint.items():
            if fingerprint.get(name) != value:
                raise TrainingError(
                    f"checkpoint {folder} was made under another {name} than this run's; restore that {name}, or "
                    f"delete {self.path} to train anew"
                )
        for name, expected in recorded.items():
            if not (folder / name).is_file():
                raise _DamageError(f"{name} is missing")
            if sha256_of(folder / name) != expected:
                raise _DamageError(f"the sha256 of {name} is not the recorded one")
        return state

    def _set_aside(self, folder: Path, damage: _DamageError) -> None:
        aside = folder.with_name(f"{_DAMAGED}{folder.name}")
        remove(aside)
        folder.rename(aside)
        print(
            f"warning: checkpoint {folder} is damaged: {damage}; it is called {aside.name} now, and the training goes "
            "on from the checkpoint before it, or from its start where there is none",
            file=sys.stderr,
            flush=True,
        )

    def damaged(self) -> list[str]:
        """Names of the checkpoints that were found damaged since the run began."""
        return sorted(path.name for path in self.path.glob(f"{_DAMAGED}*"))

    def remove(self) -> None:
        """Delete all checkpoints and the running log: the run is finished and its outputs are written."""
        for folder in [*self.path.glob(f"{_DAMAGED}*"), *self.folders()]:
            remove_at_once(folder)
        self.log_path.unlink(missing_ok=True)


def truncate_log(path: Path, step: int) -> None:
    """Keep the rows up to ``step`` (rows count from 1) of a training log; what a kill left half is dropped."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or row["step"] > step:
            break
        kept.append(line)
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"".join(kept))
