"""Command of a training on the GPUs that its job was given: one process, or torchrun on one or more nodes of SLURM."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .scripting import UserError


@dataclass(frozen=True)
class Launch:
    """A command, what it finds changed in its environment, and whether it leaves SIGTERM to its children."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    ignores_termination: bool = False


def processes_per_node(gpus: int, nodes: int) -> int:
    """Processes of a training on each node: one a GPU, one without GPUs. Raises :class:`UserError`."""
    if nodes < 1 or gpus < 0 or gpus % nodes or (nodes > 1 and gpus == 0):
        raise UserError(
            f"resources: nodes={nodes} and gpu={gpus} do not go together; gpu counts the GPUs of all nodes of the job "
            "and is a multiple of nodes (set-resources of the profile)"
        )
    return max(1, gpus // nodes)


def launch(
    program: Sequence[str], gpus: int, nodes: int, rendezvous: str | None, environment: Mapping[str, str]
) -> Launch:
    """How ``program`` (a Python file and its arguments) is started by the process with this ``environment``.

    On several nodes this is srun, which starts the launcher once a node, with ``rendezvous`` (host:port of the first
    node) given. Raises :class:`UserError` for numbers that do not go together, and outside of a SLURM job of its own.
    """
    processes = processes_per_node(gpus, nodes)
    if nodes == 1:
        if processes == 1:
            return Launch([sys.executable, *program])
        # Snakemake sets it to the threads of the job, which all processes share.
        threads = int(environment.get("OMP_NUM_THREADS", "1"))
        changes = {"OMP_NUM_THREADS": str(max(1, threads // processes))}
        return _torchrun(["--standalone"], processes, program, changes, "SLURM_JOB_ID" in environment)
    if rendezvous is None:
        return Launch(_once_a_node(program, gpus, nodes, environment))
    host, _, port = rendezvous.rpartition(":")
    place = [f"--nnodes={nodes}", f"--node-rank={environment['SLURM_NODEID']}"]
    place += [f"--master-addr={host}", f"--master-port={port}"]
    # Snakemake runs on the first node only: elsewhere the number of its process means another one, or none.
    changes = {"HWH_WORKFLOW_PID": str(os.getpid())}
    return _torchrun(place, processes, program, changes, True)


def _torchrun(
    place: Sequence[str], processes: int, program: Sequence[str], changes: dict[str, str], in_slurm: bool
) -> Launch:
    """torchrun sends a SIGTERM on to its processes, but SLURM sends it to all: a second one ends a training unsaved."""
    options = [*place, f"--nproc-per-node={processes}"]
    if in_slurm:
        options.append("--signals-to-handle=SIGINT,SIGHUP,SIGQUIT")
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    # Seconds that a training has to save a checkpoint before torchrun kills it.
    return Launch(command, {**changes, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}, ignores_termination=in_slurm)


def _once_a_node(program: Sequence[str], gpus: int, nodes: int, environment: Mapping[str, str]) -> list[str]:
    if "SLURM_JOB_ID" not in environment:
        raise UserError(f"resources: nodes={nodes} needs a SLURM job; without SLURM a training runs on one node")
    if "SLURM_STEP_ID" in environment:
        raise UserError(
            f"resources: nodes={nodes} also needs mpi=srun and tasks_per_node=<GPUs a node> under set-resources of the "
            "profile, so that the job starts its programs on the nodes itself"
        )
    step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # All CPUs of the job on each node, for all processes there; the training ends everywhere when it ends somewhere.
    step += ["--cpu-bind=none", "--kill-on-bad-exit=1"]
    again = [sys.executable, sys.argv[0], "--gpus", str(gpus), "--nodes", str(nodes)]
    return [*step, *again, "--rendezvous", f"{socket.gethostname()}:{_free_port()}", *program]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def replace_process(start: Launch) -> None:
    """Become the command of ``start``; children of a process that ignores SIGTERM ignore it until they handle it."""
    if start.ignores_termination:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execvpe(start.command[0], start.command, {**os.environ, **start.environment})
