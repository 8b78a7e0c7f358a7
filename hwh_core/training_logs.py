"""Training logs of the models of a scale, finished or in progress, and what batches they say they were trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .files import read_json
from .scripting import UserError

LOG = "train_log.jsonl"


@dataclass(frozen=True)
class TrainingLog:
    """Losses of steps 1, 2, ... in nats a token.

    ``batches``: the recorded fingerprint of the loader, None where there is no record.
    """

    path: Path
    losses: np.ndarray
    tokens_per_step: int
    batches: str | None
    finished: bool


def log_path(folder: Path) -> Path | None:
    """Log of the model in ``folder``: of the finished training, else of the one in progress, else None."""
    return next((path for path in (folder / LOG, folder / "checkpoints" / LOG) if path.is_file()), None)


def _records(folder: Path) -> Iterator[Path]:
    """Where a training records what its batches are, the surest first."""
    yield folder / "model.manifest.json"
    yield folder / "metrics.json"
    yield from sorted((folder / "checkpoints").glob("step-*/state.json"), reverse=True)


def recorded_batches(folder: Path) -> str | None:
    """Fingerprint of the batches of the model in ``folder``, or None where nothing tells it."""
    for path in _records(folder):
        try:
            return str(read_json(path)["fingerprint"]["data"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def read_log(folder: Path) -> TrainingLog | None:
    """The log of the model in ``folder``, or None where there is none.

    A last line that a training in progress has begun to write is left out. Raises :class:`UserError` for a log that is
    damaged, empty, lacks steps or changes its tokens a step.
    """
    path = log_path(folder)
    if path is None:
        return None
    finished = path.parent == folder
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    last = lines.pop()
    if last and finished:
        lines.append(last)
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1)]
    if not rows:
        raise UserError(f"{path} holds no step; wait for the training, or leave the model out")
    for expected, (step, _, _) in enumerate(rows, start=1):
        if step != expected:
            raise UserError(
                f"{path}: line {expected} is of step {step}, expected {expected}; steps are missing or written twice, "
                "so losses cannot be told by their batch: restore the log or train the model anew"
            )
    tokens = rows[0][2]
    changed = next((step for step, _, total in rows if total != step * tokens), None)
    if changed is not None:
        raise UserError(
            f"{path}: tokens of step {changed} are not {changed} times the {tokens} of step 1; the number of tokens a "
            "step changed on the way: train the model anew"
        )
    return TrainingLog(path, np.asarray([loss for _, loss, _ in rows]), tokens, recorded_batches(folder), finished)


def _row(path: Path, number: int, line: str) -> tuple[int, float, int]:
    """Step, loss and tokens so far of one line."""
    try:
        row: dict[str, Any] = json.loads(line)
        step, loss, tokens = int(row["step"]), float(row["loss"]), int(row["tokens"])
        if not np.isfinite(loss):
            raise ValueError(f"loss {loss}")
        return step, loss, tokens
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: line {number} is no row with step, loss and tokens ({error}); restore the log or train the "
            "model anew"
        ) from None
