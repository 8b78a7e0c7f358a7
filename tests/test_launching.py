"""How a training is started on the GPUs of its job, and that torchrun leaves SIGTERM to its processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from hwh_core.launching import launch, processes_per_node
from hwh_core.scripting import UserError

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ["train.py", "--settings", "{}"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_one_process_is_the_program_alone(gpus):
    start = launch(PROGRAM, gpus, 1, None, {"OMP_NUM_THREADS": "8"})
    assert start.command == [sys.executable, *PROGRAM]
    assert start.environment == {}
    assert not start.ignores_termination


def test_several_gpus_of_a_node_are_a_torchrun_that_shares_the_threads():
    start = launch(PROGRAM, 4, 1, None, {"OMP_NUM_THREADS": "10"})
    assert start.command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert {"--standalone", "--nproc-per-node=4"} <= set(start.command)
    assert start.command[-3:] == PROGRAM
    assert start.environment["OMP_NUM_THREADS"] == "2"


def test_several_nodes_are_an_srun_of_the_launcher_and_there_a_torchrun_each():
    job = {"SLURM_JOB_ID": "7"}
    outer = launch(PROGRAM, 16, 2, None, job).command
    assert outer[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(outer)
    assert outer[-3:] == PROGRAM
    rendezvous = outer[outer.index("--rendezvous") + 1]
    host, port = rendezvous.split(":")
    second = launch(PROGRAM, 16, 2, rendezvous, {**job, "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"})
    expected = {"--nnodes=2", "--node-rank=1", f"--master-addr={host}", f"--master-port={port}", "--nproc-per-node=8"}
    assert expected <= set(second.command)
    assert second.command[-3:] == PROGRAM
    assert second.environment["HWH_WORKFLOW_PID"] == str(os.getpid()), "Snakemake runs on the first node only"


@pytest.mark.parametrize(("gpus", "nodes"), [(3, 2), (0, 2), (1, 0), (-1, 1)])
def test_numbers_that_do_not_go_together_are_refused(gpus, nodes):
    with pytest.raises(UserError, match=f"nodes={nodes} and gpu={gpus} do not go together"):
        processes_per_node(gpus, nodes)


def test_several_nodes_need_a_job_that_starts_its_programs_itself():
    with pytest.raises(UserError, match="needs a SLURM job"):
        launch(PROGRAM, 2, 2, None, {})
    with pytest.raises(UserError, match="mpi=srun and tasks_per_node"):
        launch(PROGRAM, 2, 2, None, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})


@pytest.mark.parametrize("slurm", [True, False])
def test_every_process_gets_one_signal(tmp_path, slurm):
    """SLURM signals all processes, others torchrun alone: either way a second signal would end a training unsaved."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "here, got = Path(__file__).parent, []\n"
        "signal.signal(signal.SIGTERM, lambda number, _: got.append(number))\n"
        "(here / f'started-{os.environ[\"RANK\"]}').touch()\n"
        "while not got:\n"
        "    time.sleep(0.02)\n"
        "time.sleep(0.5)\n"
        "(here / f'signals-{os.environ[\"RANK\"]}').write_text(str(len(got)))\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    process = psutil.Popen(
        [sys.executable, str(ROOT / "scripts" / "launch.py"), "--gpus", "2", str(worker)],
        env=environment | ({"SLURM_JOB_ID": "7"} if slurm else {}),
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("started-*"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for one in [process, *(process.children(recursive=True) if slurm else [])]:
        one.send_signal(signal.SIGTERM)
    process.wait(120)
    assert [(tmp_path / f"signals-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
