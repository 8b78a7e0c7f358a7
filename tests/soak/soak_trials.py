"""SIGKILL at random points: rounds of kills of one command, which is then given again until it ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak_kinds import Kind
from soak_start import Forked, load_libraries, start

# Snakemake's own.
NOT_LEFT_BY_US = (".snakemake", ".snakemake_timestamp")
ENDS_WITHIN_SECONDS = 900
Process = Forked | subprocess.Popen[bytes]


@dataclass(frozen=True)
class Undisturbed:
    """A kind with the result and the seconds of a run that nobody killed."""

    kind: Kind
    result: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Trial:
    """One kill: when, of which process, and which unfinished files it left."""

    kind: str
    round: int
    seconds: float
    victim: str
    left: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """Kills of one command in one folder, and what was wrong after the command that followed them (None: nothing)."""

    trials: tuple[Trial, ...]
    failure: str | None


def unfinished(folder: Path) -> list[str]:
    """Temporary files, folders and locks below ``folder``, by name."""
    found = []
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_LEFT_BY_US]
        names = [name for name in (*folders, *files) if name.startswith(".") and name not in NOT_LEFT_BY_US]
        found += [os.path.relpath(os.path.join(at, name), folder) for name in names]
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def undisturbed(kind: Kind, folder: Path, environment: dict[str, str]) -> Undisturbed:
    """Run the command once without a kill."""
    if kind.forked:
        load_libraries()
    began = time.monotonic()
    process = start(kind, folder, environment)
    code = process.wait(ENDS_WITHIN_SECONDS)
    if code:
        raise RuntimeError(f"{kind.name} ended with {code}: {(folder / 'said.txt').read_text()[-2000:]}")
    return Undisturbed(kind, kind.result(folder), time.monotonic() - began)


def wait_for_the_moment(
    process: Process, folder: Path, seconds: float, writes: int | None, generator: random.Random
) -> None:
    """Return at a random time below ``seconds``, or within milliseconds after a file began to be written.

    ``writes`` is how many writes are let pass before; None: time alone decides. Returns early when the process ends.
    """
    deadline = time.monotonic() + (seconds * generator.random() if writes is None else 3 * seconds)
    before: list[str] = []
    while process.poll() is None and time.monotonic() < deadline:
        if writes is None:
            time.sleep(0.005)
            continue
        now = unfinished(folder)
        if set(now) - set(before):
            writes -= 1
        if writes < 0:
            time.sleep(0.01 * generator.random())
            return
        before = now
        time.sleep(0.002)


def victim_of(process: Process, kind: Kind, generator: random.Random) -> int:
    """The first process, or one of those that it started."""
    if not kind.with_children:
        return process.pid
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    except FileNotFoundError:
        children = []
    return generator.choice([process.pid, *map(int, children)])


def kill_round(
    reference: Undisturbed, number: int, kills: int, folder: Path, environment: dict[str, str], seed: str
) -> Round:
    """Kill the command ``kills`` times, then let it end and compare with the run that nobody killed."""
    kind, generator, trials = reference.kind, random.Random(seed), []
    for _ in range(kills):
        process = start(kind, folder, environment)
        began = time.monotonic()
        writes = generator.randrange(6) if generator.random() < 0.5 else None
        wait_for_the_moment(process, folder, reference.seconds, writes, generator)
        if process.poll() is not None:
            continue
        victim = victim_of(process, kind, generator)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        seconds = time.monotonic() - began
        process.wait(ENDS_WITHIN_SECONDS)
        who = "first process" if victim == process.pid else "process that it started"
        trials.append(Trial(kind.name, number, seconds, who, tuple(unfinished(folder))))
    process = start(kind, folder, environment)
    try:
        code = process.wait(ENDS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return Round(tuple(trials), f"did not end within {ENDS_WITHIN_SECONDS} s")
    return Round(tuple(trials), fault(reference, code, folder))


def fault(reference: Undisturbed, code: int, folder: Path) -> str | None:
    """What is wrong with what a command left after kills, or None."""
    if code:
        return f"ended with {code}"
    result = reference.kind.result(folder)
    differing = [name for name, value in reference.result.items() if result.get(name) != value]
    if differing:
        return f"differs in {', '.join(differing)}"
    left = unfinished(folder)
    return f"left {', '.join(left)}" if left else None
