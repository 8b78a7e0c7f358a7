"""Running Snakemake under a time limit, and stopping it so that trainings save a checkpoint; standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.2


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A process may end while it is looked at.
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    """Processes below ``pid``; empty where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return set()
    parents = _parents()
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def is_program(pid: int) -> bool:
    """Whether ``pid`` is a Python that runs a file of a folder ``scripts``: a job's own process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return "python" in os.path.basename(words[0]) and any("/scripts/" in f"/{word}" for word in words[1:3])


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def stop(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End Snakemake and its jobs; after ``grace_seconds`` by force.

    Snakemake is told first, so that it starts nothing more. Then the programs of the jobs are, and only they: a signal
    to the whole group would end the `tee` that they write to, and a training could not save its checkpoint.
    """
    told: set[int] = set()
    seen = descendants(process.pid)
    _signal(process.pid, signal.SIGTERM)
    end = time.monotonic() + grace_seconds
    while process.poll() is None and time.monotonic() < end:
        seen |= descendants(process.pid)
        # Once each: a second signal would interrupt the saving of a checkpoint.
        for pid in seen - told:
            if is_program(pid):
                told.add(pid)
                _signal(pid, signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_until(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    seconds: float | None,
    stopped: Callable[[], bool],
    grace_seconds: float,
) -> tuple[int, bool]:
    """Run ``command`` in ``folder``; returns its exit code and whether it was stopped.

    It is stopped after ``seconds`` (None: no limit) and as soon as ``stopped()`` is true.
    """
    end = None if seconds is None else time.monotonic() + seconds
    process = subprocess.Popen(list(command), cwd=folder, env=dict(environment), start_new_session=True)
    while process.poll() is None:
        if stopped() or (end is not None and time.monotonic() >= end):
            stop(process, grace_seconds)
            return process.returncode, True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return process.returncode, False
