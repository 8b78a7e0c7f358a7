"""What breaks under a training: checkpoints, devices, workers, clocks. Only the steps since the last save are lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from test_training_trainer import Interrupting, die, make_trainer, parameters

from hwh_core.files import OutputError
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.settings import TrainingError

FINGERPRINT = {"config": "c", "data": "d"}


def flip_the_last_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut_in_half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def assert_trained_as(trainer, whole) -> None:
    for name, parameter in parameters(whole).items():
        assert torch.equal(parameter, parameters(trainer)[name]), name


@pytest.fixture
def whole(settings, loader, tmp_path_factory):
    """A training of six steps that nothing disturbs."""
    trainer = make_trainer(settings(), loader, tmp_path_factory.mktemp("whole"))
    trainer.run()
    return trainer


DAMAGES = [
    ("model.safetensors", flip_the_last_bit, "the sha256 of model.safetensors is not the recorded one"),
    ("optimizer.pt", cut_in_half, "the sha256 of optimizer.pt is not the recorded one"),
    ("optimizer.pt", os.unlink, "optimizer.pt is missing"),
    ("state.json", cut_in_half, "state.json is missing or cannot be read"),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before_it(tmp_path, capsys, name, damage, said):
    checkpoints = CheckpointFolder(tmp_path, FINGERPRINT, 2)
    for step in (2, 4):
        checkpoints.save(step, 1.0, {"weight": torch.full((3,), float(step))}, {"step": step})
    damage(tmp_path / "step-00000004" / name)
    with pytest.raises(TrainingError, match=f"step-00000004 is damaged: {said}"):
        checkpoints.load_latest()
    loaded = checkpoints.load_latest(set_damaged_aside=True)
    assert (loaded.step, loaded.model["weight"][0], loaded.optimizer) == (2, 2, {"step": 2})
    assert f"step-00000004 is damaged: {said}; it is called damaged-step-00000004 now" in capsys.readouterr().err
    assert checkpoints.damaged() == ["damaged-step-00000004"]
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_training_goes_on_from_before_a_damaged_checkpoint(settings, loader, tmp_path, capsys, whole):
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 5, die), tmp_path).run()
    cut_in_half(tmp_path / "step-00000004" / "model.safetensors")
    capsys.readouterr()
    trainer = make_trainer(settings(), loader, tmp_path)
    rows = trainer.run().rows
    assert capsys.readouterr().err.splitlines()[1:] == ["going on after step 2 of 6"]
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert_trained_as(trainer, whole)


def test_a_training_of_which_every_checkpoint_is_damaged_starts_anew(settings, loader, tmp_path, whole):
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 5, die), tmp_path).run()
    for folder in tmp_path.glob("step-*"):
        cut_in_half(folder / "model.safetensors")
    trainer = make_trainer(settings(), loader, tmp_path)
    assert len(trainer.run().rows) == 6
    assert_trained_as(trainer, whole)


def test_a_damaged_checkpoint_of_another_run_is_refused_and_stays(settings, loader, tmp_path):
    make_trainer(settings(), loader, tmp_path).run()
    flip_the_last_bit(tmp_path / "step-00000006" / "optimizer.pt")
    with pytest.raises(TrainingError, match="made under another config"):
        make_trainer(settings(), loader, tmp_path, FINGERPRINT | {"config": "other"}).run()
    assert (tmp_path / "step-00000006").is_dir()


def test_what_a_killed_save_left_does_not_count_and_goes(settings, loader, tmp_path):
    (tmp_path / ".step-00000099.tmp").mkdir(parents=True)
    (tmp_path / ".step-00000099.lock").touch()
    assert len(make_trainer(settings(), loader, tmp_path).run().rows) == 6
    with CheckpointFolder(tmp_path, FINGERPRINT, 2).locked():
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".lock", "step-00000004", "step-00000006", "train_log.jsonl",
        ]  # fmt: skip


def test_checkpoints_are_ordered_by_step_whatever_the_clock_said(settings, loader, tmp_path, whole):
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 5, die), tmp_path).run()
    tomorrow = time.time() + 86400
    for path in [tmp_path / "step-00000002", *(tmp_path / "step-00000002").iterdir()]:
        os.utime(path, (tomorrow, tomorrow))
    trainer = make_trainer(settings(), loader, tmp_path)
    trainer.run()
    assert_trained_as(trainer, whole)
    # The older one is the one that goes when a newer one is saved.
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000004", "step-00000006"]


@pytest.fixture
def disk(tmp_path, mount_disk):
    """A file system of its own, and a function that mounts it with other options."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount_disk(folder, "size=100m"):
        pytest.skip("a disk that is full or read-only cannot be mounted here: that needs root")

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

    return folder, remount


def test_a_full_disk_stops_a_training_and_its_checkpoints_stay(settings, loader, disk, whole):
    folder, remount = disk
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 3, die), folder).run()
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    # The checkpoint after step 4 fits as well, that after step 6 does not: then there are three for a moment.
    remount(f"size={int(2.5 * used)}")
    with pytest.raises(OutputError, match=r"cannot write .*step-00000006: No space left on device; nothing was kept"):
        make_trainer(settings(), loader, folder).run()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000004", "train_log.jsonl"]
    remount("size=100m")
    trainer = make_trainer(settings(), loader, folder)
    assert [row["step"] for row in trainer.run().rows] == list(range(1, 7))
    assert_trained_as(trainer, whole)


def test_a_disk_that_is_full_for_a_line_of_the_log_is_named(settings, loader, tmp_path):
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("/dev/full is not there")
    tmp_path.joinpath("train_log.jsonl").symlink_to(full)
    trainer = make_trainer(settings(), loader, tmp_path)
    with trainer._log() as write, pytest.raises(OutputError, match=r"cannot write .*train_log\.jsonl: No space left"):
        write({"step": 1})


def test_a_read_only_disk_is_named_and_nothing_is_lost(settings, loader, disk, whole):
    folder, remount = disk
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 3, die), folder).run()
    remount("ro")
    with pytest.raises(OutputError, match=r"cannot write .*train_log\.jsonl: Read-only file system"):
        make_trainer(settings(), loader, folder).run()
    with pytest.raises(OSError, match="Read-only file system") as error, CheckpointFolder(folder, {}, 1).locked():
        pass
    assert error.value.filename == str(folder / ".lock"), "what the program says names this file"
    remount("rw")
    trainer = make_trainer(settings(), loader, folder)
    trainer.run()
    assert_trained_as(trainer, whole)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nmore"), "CUDA error: unspecified launch"),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), "NCCL error: remote process exited"),
        (RuntimeError("[x/gloo/pair.cc:5] Connection reset by peer"), ".*Connection reset by peer"),
    ],
)
def test_a_device_that_disappears_is_named_and_the_checkpoint_kept(
    settings, loader, tmp_path, monkeypatch, whole, error, named
):
    trainer = make_trainer(settings(), loader, tmp_path)
    run_step = trainer.run_step

    def lost_at_the_fourth(step):
        if step == 3:
            raise error
        return run_step(step)

    monkeypatch.setattr(trainer, "run_step", lost_at_the_fourth)
    with pytest.raises(TrainingError, match=f"process 0 on cpu: {named}.*; checkpoints so far are kept"):
        trainer.run()
    resumed = make_trainer(settings(), loader, tmp_path)
    resumed.run()
    assert_trained_as(resumed, whole)


def finished(process: subprocess.Popen, seconds: float) -> str:
    """What a process said on stderr, once it has ended."""
    _, errors = process.communicate(timeout=seconds)
    return errors


def wait_until(condition, process: subprocess.Popen, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_that_dies_ends_the_other_and_the_same_command_goes_on(settings, train_command, tmp_path):
    values = settings(steps=40, checkpoint_every_steps=4, micro_batch_tokens=64)
    command, environment = train_command(values, tmp_path / "out")
    launcher = [*command[:1], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command[1:]]
    checkpoints = tmp_path / "out" / "checkpoints"
    process = subprocess.Popen(launcher, env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (checkpoints / "step-00000008").is_dir(), process)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    errors = finished(process, 60)
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL) received by PID" in errors, errors
    # Said by the other process, unless the launcher was faster to end it.
    assert re.search(r"error: process 0 on cpu: .*gloo.*checkpoints so far are kept|\(SIGTERM\)", errors), errors
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    steps = sorted(path.name for path in checkpoints.glob("step-*"))
    assert steps

    again = subprocess.run(launcher, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"going on after step {int(steps[-1][5:])} of 40" in again.stderr
    assert (tmp_path / "out" / "metrics.json").is_file()
