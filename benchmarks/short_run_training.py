"""What benchmarks.short_run trains, and how: scripts/train.py started, stopped by SIGTERM once, and started again.

All that is said about the stop is read from what the training wrote: its log, its checkpoint, its words.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.train import ROOT
from benchmarks.train_plan import CONFIG, QUICK_SHAPE
from hwh_core.config import load_preset
from hwh_core.files import read_json
from hwh_core.scripting import UserError, die_with_the_parent
from hwh_core.training.settings import parse_settings

# A quarter of the preset's batch: with few tokens, more steps teach a model more than larger ones do.
TOKENS_PER_STEP = 131_072
# With the above 58M tokens: at the 176,000 tokens a second of an H200 five and a half minutes, six with its starts.
STEPS = 440
# Steps of a few milliseconds each: enough that the stop falls well before the last one on a busy machine too.
QUICK_STEPS = 200
LEAST_STEPS = 20
# Of the steps.
STOP_AFTER = 0.55
POLL_SECONDS = 0.05
# For a training that is asked to end early: the end of its step and a checkpoint.
GRACE_SECONDS = 20.0
Result = dict[str, Any]


class RunError(UserError):
    """A part of a short run failed or did something else than it should; the message says what."""


class Stores(NamedTuple):
    """Folders of the training store, the held-out store and the tokenizer of both."""

    train: Path
    held_out: Path
    tokenizer: Path

    @classmethod
    def of(cls, folder: Path) -> Stores:
        """The stores below ``folder``, as the workflow lays them out. Raises :class:`RunError` if one is missing."""
        stores = cls(*(folder.resolve() / name for name in cls._fields))
        missing = [path.name for path in stores if not path.is_dir()]
        if missing:
            raise RunError(
                f"--store {folder}: expected a folder with train, held_out and tokenizer, and it has no "
                f"{' and no '.join(missing)}; give results/PRESET/data/TOKENIZER of a run whose data are made"
            )
        return stores


def settings_of(architecture: str, quick: bool, steps: int | None, learning_rate: float | None) -> dict[str, Any]:
    """Settings for scripts/train.py: the 380M scale of config/paper.yaml with fewer and smaller steps.

    None: the number of steps of this module, the preset's peak learning rate. Raises :class:`RunError` for too few
    steps and ``TrainingError`` for a rate that is none.
    """
    steps = steps or (QUICK_STEPS if quick else STEPS)
    if steps < LEAST_STEPS:
        raise RunError(f"--steps {steps}: expected at least {LEAST_STEPS}, for a warm-up, a stop and a rest to train")
    scale = next(scale for scale in load_preset(CONFIG / "paper.yaml").hwh.scales if scale.name == "380M")
    member = next(model for model in scale.models if model.architecture == architecture)
    model = {
        "architecture": architecture,
        "shape": scale.shape.model_dump(exclude_none=True),
        "rope_theta": member.rope_theta,
        "qk_norm": scale.qk_norm,
        "length": scale.length,
        "seed": member.seed,
    }
    training = scale.training.model_dump(mode="json") | {
        "steps": steps,
        "tokens_per_step": TOKENS_PER_STEP,
        "warmup_steps": steps // 10,
        # None but those of the stop and of the end: each is 4.6 GB, to be written and read again for its sha256.
        "checkpoint_every_steps": steps,
    }
    if quick:
        model |= {"shape": QUICK_SHAPE, "length": 64}
        training |= {"tokens_per_step": 256, "micro_batch_tokens": 128, "precision": "float32", "compile": "never"}
    if learning_rate is not None:
        training["optimizer"]["learning_rate"] = learning_rate
    return parse_settings({"model": model, "training": training}).written()


@contextmanager
def process(command: Sequence[str], log: Path, output: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, however that is left, and all that it started with it.

    What it says goes to ``log``, its standard output to ``output`` where that is given. It runs the code of this
    checkout: a program started by its path looks for packages beside itself, and would find those that are installed.

    Its session is its own, so that Ctrl-C reaches this process alone, which then ends the other.
    """
    places = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(log, "wb") as words, open(output or os.devnull, "wb") as stream:
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": places},
            stdin=subprocess.DEVNULL,
            stdout=words if output is None else stream,
            stderr=words,
            start_new_session=True,
            preexec_fn=die_with_the_parent(),
        )
    try:
        yield started
    finally:
        try:
            if started.poll() is None:
                started.terminate()
                with suppress(subprocess.TimeoutExpired):
                    started.wait(GRACE_SECONDS)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def wait(started: subprocess.Popen[bytes], seconds: float, log: Path, until: Callable[[], bool]) -> None:
    """Return when ``until`` says so or the process has ended; raises :class:`RunError` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while started.poll() is None and not until():
        if time.monotonic() > deadline:
            raise RunError(f"took longer than {seconds:g} s; {last_words(log)}")
        time.sleep(POLL_SECONDS)


def last_words(log: Path) -> str:
    """What a process said at its end: its line that begins with ``error:``, or the last one."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
    return "it said: " + next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])


def log_rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows of a training log; none where there is no log yet."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


class Reporter:
    """Prints the last row of a log whenever another tenth of the steps is done."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.told = name, steps, 0

    def __call__(self, rows: Sequence[dict[str, Any]]) -> int:
        """Number of steps done."""
        if rows and rows[-1]["step"] * 10 // self.steps > self.told:
            row = rows[-1]
            self.told = row["step"] * 10 // self.steps
            self.say(
                f"step {row['step']} of {self.steps}, loss {row['loss']:.3f}, {row['tokens_per_second']:,.0f} tok/s"
            )
        return len(rows)

    def say(self, text: str) -> None:
        """One line on stderr."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def require(condition: bool, message: str) -> None:
    """Raise :class:`RunError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise RunError(message)


def bytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_resumed(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]], steps: int) -> None:
    """Raise :class:`RunError` unless ``rows`` has every step once and begins with the rows from ``before`` the stop."""
    found = [row["step"] for row in rows]
    require(found == list(range(1, steps + 1)), f"the log has not each of {steps} steps once, but {found}")
    require(
        list(rows[: len(before)]) == list(before),
        f"the log's first {len(before)} rows are not those that stood there at the stop: it did not go on, but anew",
    )


def train_with_a_stop(settings: dict[str, Any], stores: Stores, folder: Path, seconds: float) -> Result:
    """Train in ``folder``, stopped once by SIGTERM and started again; log rows, metrics and sizes.

    ``seconds``: for each of the two parts. Raises :class:`RunError` where a process fails or leaves
    something else than it should.
    """
    name, steps = settings["model"]["architecture"], settings["training"]["steps"]
    output, checkpoints = folder / "output", folder / "checkpoints"
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--settings", json.dumps(settings)]
    command += ["--store", str(stores.train), "--held-out", str(stores.held_out), "--tokenizer", str(stores.tokenizer)]
    command += ["--output", str(output), "--checkpoints", str(checkpoints)]
    report, running = Reporter(name, steps), checkpoints / "train_log.jsonl"
    began = time.monotonic()

    log, stop_after = folder / "until_stop.log", int(STOP_AFTER * steps)
    with process(command, log) as training:
        wait(training, seconds, log, until=lambda: report(log_rows(running)) >= stop_after)
        training.send_signal(signal.SIGTERM)
        wait(training, seconds, log, until=lambda: False)
    code = training.returncode
    require(code == 128 + signal.SIGTERM, f"ended with code {code}, expected 143 after SIGTERM; {last_words(log)}")
    found = sorted(checkpoints.glob("step-*"))
    require(bool(found), f"no checkpoint after SIGTERM; {last_words(log)}")
    before, stopped_at = log_rows(running), read_json(found[-1] / "state.json")["step"]
    require(
        len(before) == stopped_at < steps, f"its checkpoint is of step {stopped_at}, its log has {len(before)} steps"
    )
    checkpoint_bytes = bytes_of(found[-1])
    report.say(
        f"stopped by SIGTERM after step {stopped_at}, checkpoint of {checkpoint_bytes:,} bytes; starting it again"
    )

    log = folder / "after_stop.log"
    with process(command, log) as training:
        wait(training, seconds, log, until=lambda: report(log_rows(running)) < 0)
    require(training.returncode == 0, f"started again it ended with code {training.returncode}; {last_words(log)}")
    told = re.search(r"going on after step (\d+) of", log.read_text(encoding="utf-8", errors="replace"))
    require(
        told is not None and int(told[1]) == stopped_at,
        f"started again it did not say that it goes on after step {stopped_at}; {last_words(log)}",
    )
    rows = log_rows(output / "train_log.jsonl")
    check_resumed(rows, before, steps)
    return {
        "rows": rows,
        "metrics": read_json(output / "metrics.json"),
        "resumed_at_step": stopped_at,
        "checkpoint_bytes": checkpoint_bytes,
        "export_bytes": bytes_of(output / "model"),
        "wall_seconds": time.monotonic() - began,
    }
