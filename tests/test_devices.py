"""GPU slots, with real processes on devices that a made-up nvidia-smi lists."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from hwh_core import devices
from hwh_core.devices import Device, parse_listing, select
from hwh_core.scripting import UserError

ROOT = Path(__file__).resolve().parents[1]
TWO = "GPU 0: NVIDIA H200 (UUID: GPU-aa11)\nGPU 1: NVIDIA H200 (UUID: GPU-bb22)\n"
SPLIT = (
    "GPU 0: NVIDIA H200 (UUID: GPU-aa11)\n"
    "  MIG 3g.71gb     Device  0: (UUID: MIG-0001)\n"
    "  MIG 1g.18gb     Device  1: (UUID: MIG-0002)\n"
    "GPU 1: NVIDIA H200 (UUID: GPU-bb22)\n"
)
ORDERS = (None, "0,1", "1,0", "GPU-bb22,GPU-aa11", "GPU-aa,GPU-bb")

TAKE = "import sys; from pathlib import Path; from hwh_core.devices import take_devices; "
# Takes a slot, says which on stdout, and keeps it until its stdin is closed.
HOLD = TAKE + "print(*(d.uuid for d in take_devices(Path(sys.argv[1]))), flush=True); sys.stdin.read()"
# Fails if anybody else is on one of its devices meanwhile.
USE = TAKE + textwrap.dedent("""
    import os, time
    taken = take_devices(Path(sys.argv[1]))
    marks = [Path(sys.argv[2]) / device.uuid for device in taken]
    for mark in marks:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    time.sleep(0.1)
    for mark in marks:
        mark.unlink()
    print(*(device.uuid for device in taken))
""")
# Goes on once both processes of a launcher are here.
MEET = textwrap.dedent("""
    here = [Path(sys.argv[1]) / f"{os.getppid()}-{rank}.here" for rank in range(2)]
    here[int(os.environ["LOCAL_RANK"])].touch()
    while not all(file.exists() for file in here):
        time.sleep(0.01)
""")
# Stands for torchrun: two processes of one parent.
LAUNCH = textwrap.dedent("""
    import os, subprocess, sys
    ranks = [
        subprocess.Popen([sys.executable, "-c", *sys.argv[1:]],
                         env=os.environ | {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
        for rank in (1, 0)
    ]
    sys.exit(max(rank.wait() for rank in ranks))
""")
SHOW = TAKE + textwrap.dedent("""
    import os, time
    taken = take_devices(Path(sys.argv[1]))
    print(os.environ["LOCAL_RANK"], *(device.uuid for device in taken), flush=True)
    time.sleep(0.5)
""")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Set what nvidia-smi lists here, for a torch that was built for CUDA; returns the function that does."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "site" / "torch").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    (tmp_path / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "torch_is_for_cuda", lambda: True)

    def lists(text: str) -> None:
        (tmp_path / "listing").write_text(text)
        program = tmp_path / "bin" / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && cat '{tmp_path / 'listing'}'\n")
        program.chmod(0o755)

    lists(TWO)
    return lists


def start(program: str, *arguments: object, visible: str | None = None, **more: str) -> subprocess.Popen:
    environment = os.environ | more | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def end(process: subprocess.Popen) -> str:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


# --------------------------------------------------------------------------- slots


def test_no_two_processes_share_a_device(machine, tmp_path):
    (tmp_path / "marks").mkdir()
    jobs = [start(USE, tmp_path / "locks", tmp_path / "marks", visible=order) for order in ORDERS * 2]
    taken = [end(job).split() for job in jobs]
    assert all(len(one) == 1 for one in taken)
    assert {one[0] for one in taken} == {"GPU-aa11", "GPU-bb22"}


def test_jobs_share_a_device_where_it_has_several_slots(machine, tmp_path):
    """They spread over the devices first, and no more than so many hold one."""
    jobs = [start(HOLD, tmp_path, HWH_JOBS_PER_GPU="2") for _ in range(4)]
    assert sorted(job.stdout.readline() for job in jobs) == ["GPU-aa11\n"] * 2 + ["GPU-bb22\n"] * 2
    fifth = start(HOLD, tmp_path, HWH_JOBS_PER_GPU="2")
    large = start(HOLD, tmp_path, HWH_JOBS_PER_GPU="2", LOCAL_WORLD_SIZE="2")
    time.sleep(1.5)
    assert (fifth.poll(), large.poll()) == (None, None)
    for job in jobs:
        end(job)
    fifth.stdout.readline()
    end(fifth)
    assert sorted(large.stdout.readline().split()) == ["GPU-aa11", "GPU-bb22"]
    end(large)


@pytest.mark.parametrize("text", ["0", "two", "-1", ""])
def test_a_wrong_number_of_jobs_is_told(machine, monkeypatch, tmp_path, text):
    monkeypatch.setenv("HWH_JOBS_PER_GPU", text)
    with pytest.raises(UserError, match=r"HWH_JOBS_PER_GPU is .* expected a number from 1"):
        devices.take_devices(tmp_path)


def test_jobs_of_two_devices_take_both_or_none(machine, tmp_path):
    """Also in opposite orders, and between jobs of one device, nobody waits for ever."""
    (tmp_path / "marks").mkdir()
    orders = ("0,1", "1,0") * 2
    large = [start(USE, tmp_path / "locks", tmp_path / "marks", visible=o, LOCAL_WORLD_SIZE="2") for o in orders]
    small = [start(USE, tmp_path / "locks", tmp_path / "marks") for _ in range(2)]
    for job, order in zip(large, orders, strict=True):
        named = ["GPU-aa11", "GPU-bb22"]
        assert end(job).split() == (named if order == "0,1" else named[::-1])
    assert all(len(end(job).split()) == 1 for job in small)


def test_a_job_of_two_devices_leaves_a_single_free_one_to_others(machine, tmp_path):
    holder = start(HOLD, tmp_path)
    assert holder.stdout.readline() == "GPU-aa11\n"
    large = start(HOLD, tmp_path, LOCAL_WORLD_SIZE="2")
    time.sleep(1.5)
    assert large.poll() is None
    other = start(HOLD, tmp_path)
    assert other.stdout.readline() == "GPU-bb22\n"
    end(holder)
    end(other)
    assert large.stdout.readline() == "GPU-aa11 GPU-bb22\n"
    end(large)


def test_processes_of_one_launcher_see_the_same_devices(machine, tmp_path):
    launchers = [start(LAUNCH, SHOW, tmp_path) for _ in range(2)]
    for launcher in launchers:
        assert sorted(end(launcher).splitlines()) == ["0 GPU-aa11 GPU-bb22", "1 GPU-aa11 GPU-bb22"]


def test_processes_of_torchrun_get_devices_that_no_other_job_has(machine, tmp_path, monkeypatch):
    """Two trainings of two devices and jobs of one beside them, on three, with the launcher that the workflow uses."""
    machine(TWO + "GPU 2: NVIDIA H200 (UUID: GPU-cc33)\n")
    # torchrun needs the real torch; its processes are told what the made-up one tells others.
    monkeypatch.delenv("PYTHONPATH")
    (tmp_path / "marks").mkdir()
    told = "from hwh_core import devices; devices.torch_is_for_cuda = lambda: True; "
    # Of a launcher's processes, which have the same devices, the first one marks them and, as in a training, does not
    # end before the other one has joined it.
    program = told + USE.replace("marks = [", "marks = [] if os.environ.get('LOCAL_RANK', '0') != '0' else [")
    (tmp_path / "job.py").write_text(program.replace("for mark in marks:", MEET + "for mark in marks:", 1))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    pipe = subprocess.PIPE
    large = [
        subprocess.Popen(
            [*launcher, str(tmp_path / "job.py"), str(tmp_path / "locks"), str(tmp_path / "marks")],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]  # fmt: skip
    small = [start(program, tmp_path / "locks", tmp_path / "marks") for _ in range(2)]
    for job in large:
        first, second = end(job).splitlines()
        assert first == second
        assert len(set(first.split())) == 2
    assert all(len(end(job).split()) == 1 for job in small)


def test_a_process_that_outlives_the_first_of_its_launcher_keeps_their_devices(machine, tmp_path):
    environment = {"LOCAL_WORLD_SIZE": "2"}
    first, second = (start(HOLD, tmp_path, LOCAL_RANK=rank, **environment) for rank in "01")
    for process in (first, second):
        assert process.stdout.readline() == "GPU-aa11 GPU-bb22\n"
    first.kill()
    first.communicate()
    waiting = start(HOLD, tmp_path)
    time.sleep(1.5)
    assert waiting.poll() is None
    second.kill()
    second.communicate()
    assert waiting.stdout.readline() == "GPU-aa11\n"
    end(waiting)


def test_a_killed_owner_frees_its_device(machine, tmp_path):
    machine("GPU 0: NVIDIA H200 (UUID: GPU-aa11)\n")
    owner = start(HOLD, tmp_path)
    assert owner.stdout.readline() == "GPU-aa11\n"
    waiting = start(HOLD, tmp_path)
    time.sleep(1)
    assert waiting.poll() is None
    owner.kill()
    owner.communicate()
    assert waiting.stdout.readline() == "GPU-aa11\n"
    end(waiting)


def test_the_first_free_device_in_the_order_of_the_process_is_taken(machine, tmp_path, monkeypatch):
    holder = start(HOLD, tmp_path, visible="1,0")
    assert holder.stdout.readline() == "GPU-bb22\n"
    show = "import os; take_devices(Path(sys.argv[1])); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert end(start(TAKE + show, tmp_path)) == "GPU-aa11\n"
    assert end(start(TAKE + show, tmp_path, visible="0")) == "GPU-aa11\n"
    end(holder)


def test_a_long_wait_names_device_and_process(machine, tmp_path, monkeypatch, capsys):
    machine("GPU 3: NVIDIA H200 (UUID: GPU-aa11)\n")
    holder = start(HOLD, tmp_path)
    assert holder.stdout.readline() == "GPU-aa11\n"
    monkeypatch.setattr(devices, "FIRST_NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(devices, "POLL_SECONDS", 0.05)
    threading.Timer(1, holder.kill).start()
    assert [device.uuid for device in devices.take_devices(tmp_path)] == ["GPU-aa11"]
    holder.communicate()
    message = capsys.readouterr().err
    assert message == f"waiting until 1 of these are free: GPU 3 (GPU-aa11) is held by process {holder.pid}\n"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "the only device needs no naming"


@pytest.mark.parametrize("visible", ["", "-1", "7", "0,0", "GPU-cc"])
def test_without_a_visible_device_nothing_happens(machine, tmp_path, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.take_devices(tmp_path / "locks") == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
    assert not (tmp_path / "locks").exists()


def test_without_a_driver_or_with_a_torch_for_cpus_nothing_happens(machine, tmp_path, monkeypatch):
    assert len(devices.visible_devices()) == 2
    monkeypatch.setattr(devices, "torch_is_for_cuda", lambda: False)
    assert devices.take_devices(tmp_path / "locks") == ()
    monkeypatch.setattr(devices, "torch_is_for_cuda", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.take_devices(tmp_path / "locks") == ()
    assert not (tmp_path / "locks").exists()


def test_too_few_devices_are_left_to_the_training_to_complain_about(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert devices.take_devices(tmp_path / "locks") == ()


def test_a_foreign_lock_folder_is_refused(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="locks is not a folder of this user; remove it"):
        devices.take_devices(tmp_path / "locks")


def test_the_build_of_torch_is_told_without_importing_it():
    import torch

    assert devices.torch_is_for_cuda() is (torch.version.cuda is not None)
    program = "import sys; from hwh_core import devices; devices.torch_is_for_cuda(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --------------------------------------------------------------------------- names


def test_a_split_gpu_is_listed_by_its_instances():
    whole, split = Device("GPU-bb22", "GPU-bb22", 1), [Device(f"MIG-000{n}", "GPU-aa11", 0) for n in (1, 2)]
    assert parse_listing(SPLIT) == (*split, whole)
    assert parse_listing("No devices were found\n") == ()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["MIG-0001", "MIG-0002", "GPU-bb22"]),
        ("1,0", ["GPU-bb22", "MIG-0001", "MIG-0002"]),
        ("MIG-0002", ["MIG-0002"]),
        ("MIG-0002, GPU-bb", ["MIG-0002", "GPU-bb22"]),
        ("GPU-aa11", ["MIG-0001", "MIG-0002"]),
        ("1,5,0", ["GPU-bb22"]),
        ("GPU-", []),
        ("MIG-0001,GPU-aa11", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_does(visible, expected):
    assert [device.uuid for device in select(parse_listing(SPLIT), visible)] == expected


# --------------------------------------------------------------------------- who takes them


def test_every_program_of_a_rule_with_a_gpu_takes_devices():
    rules = "".join(path.read_text() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")))
    programs = {
        re.search(r'program=program\("(\w+)"\)', rule)[1]
        for rule in re.split(r"^rule ", rules, flags=re.MULTILINE)
        if "gpu=GPU" in rule
    }
    assert {"train", "evaluate", "probe_pretrained"} <= programs
    for program in programs:
        tree = ast.parse((ROOT / "scripts" / f"{program}.py").read_text())
        main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        calls = [ast.unparse(node.value) for node in main.body if isinstance(node, ast.Expr | ast.Assign)]
        assert calls.count("take_devices()") == 1, program


def test_what_owners_write_is_complete_or_nothing(tmp_path):
    device = Device("GPU-aa11", "GPU-aa11", 0)
    assert devices._describe(devices._owner(tmp_path, device)) == "is free"
    (tmp_path / "GPU-aa11.lock").write_text('{"pid": "1')
    assert devices._owner(tmp_path, device) == {}
    (tmp_path / "GPU-aa11.lock").write_text(json.dumps({"pid": "12"}))
    assert devices._describe(devices._owner(tmp_path, device)) == "is held by process 12"
