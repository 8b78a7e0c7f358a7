"""Checkpoints: written to a temporary folder and renamed, checked by sha256, refused under other settings or data."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..files import atomic_directory, read_json, sha256_of, write_json
from .settings import TrainingError

_FOLDER = re.compile(r"^step-(\d{8})$")
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.pt", "state.json"


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
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"another training writes to {self.path}; waiting for it to end", file=sys.stderr, flush=True)
                fcntl.flock(stream, fcntl.LOCK_EX)
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
            shutil.rmtree(old)
        return target

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None where there is none.

        Raises :class:`TrainingError` if it was made under other settings or other data, or if a file is damaged.
        """
        folders = self.folders()
        if not folders:
            return None
        folder = folders[-1]
        state = read_json(folder / _STATE)
        for name, value in self.fingerprint.items():
            if state["fingerprint"].get(name) != value:
                raise TrainingError(
                    f"checkpoint {folder} was made under another {name} than this run's; restore that {name}, or "
                    f"delete {self.path} to train anew"
                )
        for name, expected in state["sha256"].items():
            if not (folder / name).is_file() or sha256_of(folder / name) != expected:
                raise TrainingError(
                    f"checkpoint file {folder / name} is damaged (its sha256 is not the recorded one); delete {folder} "
                    "to go on from the checkpoint before it"
                )
        return Checkpoint(
            step=state["step"],
            seconds=state["seconds"],
            model=load_file(folder / _MODEL),
            optimizer=torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True),
        )

    def remove(self) -> None:
        """Delete all checkpoints and the running log: the run is finished and its outputs are written."""
        for folder in self.folders():
            shutil.rmtree(folder)
        self.log_path.unlink(missing_ok=True)


def truncate_log(path: Path, step: int) -> None:
    """Keep the rows up to ``step`` (rows count from 1) of a training log; a last row cut short by a kill is dropped."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n") or json.loads(line)["step"] > step:
            break
        kept.append(line)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)
