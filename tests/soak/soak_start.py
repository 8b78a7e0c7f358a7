"""Starting what is killed: a process of its own, or a fork of one that has loaded the libraries."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

from soak_kinds import ROOT, Kind

LIBRARIES = [
    "hwh_core.training.run",
    "hwh_core.evaluation.lm",
    "hwh_core.evaluation.scores",
    "hwh_core.evaluation.inference",
    "hwh_core.probes.analysis",
]


def _run(arguments: list[str], environment: dict[str, str], said: Path) -> None:
    """Run ``python arguments`` in this process."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.environ.update(environment)
    os.chdir(ROOT)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def load_libraries() -> None:
    """Have the libraries loaded that forked programs use, so that the first of them does not wait for it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    process = context.Process(target=os.getpid)
    process.start()
    process.join()


class Forked:
    """A program that runs in a fork, with the part of :class:`subprocess.Popen` that is used here."""

    def __init__(self, arguments: list[str], environment: dict[str, str], said: Path) -> None:
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(arguments, environment, said)
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Exit code once it has ended. Raises ``subprocess.TimeoutExpired``."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("program", timeout)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


def start(kind: Kind, folder: Path, environment: dict[str, str]) -> Forked | subprocess.Popen[bytes]:
    """Give the command of ``kind``; what it says is appended to ``said.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    command, environment, said = kind.command(folder), environment | kind.environment, folder / "said.txt"
    if kind.forked:
        return Forked(command[1:], environment, said)
    with open(said, "ab") as stream:
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=stream, stderr=stream)
