"""Locks between real processes: one writer at a time, and a dead one is in nobody's way."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from hwh_core import locks
from hwh_core.locks import lock, only_writer

HOLDER = """
import sys
from pathlib import Path
from hwh_core.locks import only_writer
with only_writer(Path(sys.argv[1]), Path("model")):
    print("holding", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / ".lock"


@pytest.fixture
def holder(path):
    """A process that holds the lock until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "holding\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_writer_waits_with_a_word_that_names_the_first(path, holder):
    second = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = second.stderr.readline()
    assert said.startswith(f"process {holder.pid} on ")
    assert said.endswith("writes to model; waiting for it to end\n")
    holder.communicate("\n")
    assert second.communicate("\n")[0] == "holding\n"
    assert second.returncode == 0
    assert list(path.parent.iterdir()) == []


def test_a_killed_owner_holds_nothing(path, holder, capfd):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert path.exists()
    with only_writer(path, path.parent) as alone:
        assert alone
    assert list(path.parent.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_without_locks_of_the_file_system_the_work_goes_on_with_a_warning(path, monkeypatch, capfd):
    def refused(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    with only_writer(path, path.parent) as alone:
        assert not alone
    assert capfd.readouterr().err.startswith(f"warning: {path.parent}: this file system has no locks")


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    path = tmp_path / "a.lock"
    flock, calls = locks.fcntl.flock, []

    def removed_before_the_first(descriptor, operation):
        calls.append(descriptor)
        if len(calls) == 1:
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", removed_before_the_first)
    descriptor = lock(path)
    assert len(calls) == 2
    assert os.fstat(descriptor).st_ino == path.stat().st_ino
    os.close(descriptor)
