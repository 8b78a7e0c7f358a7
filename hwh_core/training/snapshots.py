"""Weights of a model after some of its steps, for what is measured along a training.

While the training runs they lie beside its checkpoints, since a workflow deletes the outputs of a job that failed and
a training that goes on does not pass an earlier step again. Once it is finished they are copied to its outputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from transformers import PreTrainedModel

from ..files import atomic_directory, read_json, remove, remove_at_once, write_json
from .settings import TrainingError

_STATE = "snapshot.json"


def snapshot_folder(folder: Path, step: int) -> Path:
    """Where the snapshot after ``step`` steps lies below a folder of snapshots."""
    return folder / f"step-{step:08d}"


class Snapshots:
    """The snapshots of one run; ``fingerprint`` maps a name (config, data) to a hash, as of its checkpoints.

    Each is a Hugging Face folder without tokenizer, in the float32 of the master weights: rounded to bfloat16 it would
    be another model than the one that is trained, and the last would differ from what a finished training writes.
    """

    def __init__(self, path: str | Path, steps: Iterable[int], fingerprint: Mapping[str, str]) -> None:
        self.path = Path(path)
        self.steps = sorted(steps)
        self.fingerprint = dict(fingerprint)

    def missing(self, folder: Path, done: int | None = None) -> list[int]:
        """Steps (up to ``done``) of which ``folder`` holds no snapshot of this run."""
        return [step for step in self.steps if (done is None or step <= done) and not self._holds(folder, step)]

    def _holds(self, folder: Path, step: int) -> bool:
        state = snapshot_folder(folder, step) / _STATE
        return state.is_file() and read_json(state) == {"step": step, "fingerprint": self.fingerprint}

    def resume(self, done: int) -> None:
        """Drop the snapshots of steps that the run, going on after ``done`` steps, will pass again.

        Raises :class:`TrainingError` when one that it will not pass is not there.
        """
        missing = self.missing(self.path, done)
        if missing:
            raise TrainingError(
                f"the training goes on after step {done}, but the snapshot after step {missing[0]} is not in "
                f"{self.path}; delete {self.path.parent} to train anew, or leave the step out of snapshot_steps"
            )
        kept = {snapshot_folder(self.path, step).name for step in self.steps if step <= done}
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if entry.name not in kept:
                remove(entry)

    def take(self, step: int, model: PreTrainedModel) -> None:
        """Keep the weights after ``step`` steps, if it is one of the steps to be kept."""
        if step not in self.steps:
            return
        with atomic_directory(snapshot_folder(self.path, step)) as folder:
            model.save_pretrained(folder)
            write_json(folder / _STATE, {"step": step, "fingerprint": self.fingerprint})

    def copy_to(self, output: Path) -> None:
        """Copy all snapshots to ``output``, which appears only when it is complete.

        Copied and not moved: a kill right after it must leave what the rerun looks for.
        """
        with atomic_directory(output) as temporary:
            shutil.copytree(self.path, temporary, dirs_exist_ok=True)

    def remove(self) -> None:
        """Delete them: the run is finished and its outputs are written."""
        remove_at_once(self.path)
