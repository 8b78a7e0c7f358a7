"""A workflow killed with SIGKILL goes on when the same command is given again, and its jobs die with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.workflow

TARGET = "results/smoke/controlled/{model}/metrics.json"


def processes_of(folder) -> list[int]:
    """Processes whose command line names `folder`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    if str(folder).encode() in stream.read():
                        found.append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_killed_workflow_resumes_with_the_same_result(checkout, smoke):
    model = next(path.name for path in sorted((smoke.folder / "results/smoke/controlled").iterdir()))
    target = TARGET.format(model=model)
    log = checkout.folder / "results" / "smoke" / "controlled" / model / "train_log.jsonl"
    checkpoints = checkout.folder / "results" / "smoke" / "controlled" / model / "checkpoints"
    process = subprocess.Popen(
        checkout.command(target),
        env=checkout.environment(),
        cwd=checkout.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        assert process.poll() is None, "the workflow ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint was written in time"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    deadline = time.monotonic() + 20
    while processes_of(checkout.folder):
        assert time.monotonic() < deadline, f"jobs outlive their workflow: {processes_of(checkout.folder)}"
        time.sleep(0.2)

    result = checkout.run(target)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    resumed = load_file(checkout.folder / "results/smoke/controlled" / model / "model/model.safetensors")
    whole = load_file(smoke.folder / "results/smoke/controlled" / model / "model/model.safetensors")
    assert resumed.keys() == whole.keys()
    for name in whole:
        assert (resumed[name] == whole[name]).all(), name
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step stands twice in the training log"
