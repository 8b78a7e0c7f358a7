"""A SLURM of its own on this machine: munged, slurmctld and two slurmd in a temporary folder, without systemd.

Two nodes of 16 CPUs, 500 GB and 4 GPUs each are made up, so that jobs ask for what they ask for on a cluster; nothing
is limited. Needs Debian's slurm-wlm, no configuration under /etc, and no rights but those of the user.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
NODES = ("node0", "node1")
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin")

CONFIGURATION = """\
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
GresTypes=gpu
# The nodes are as large as they say, whatever this machine has.
SlurmdParameters=config_overrides
ReturnToService=2
# The executor asks squeue for jobs that ended.
MinJobAge=86400
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class ClusterError(RuntimeError):
    """The small cluster did not do what it must."""


@dataclass(frozen=True)
class Job:
    """A job as SLURM lists it; ``comment`` is what the executor says of it: rule_NAME_wildcards_VALUES or a group."""

    number: int
    state: str
    comment: str
    nodes: int
    seconds: int


def program(name: str) -> str | None:
    """Path of a program of SLURM; daemons lie where the PATH of a user may not look."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_FOLDERS]))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class SmallCluster:
    """Context manager: the cluster runs inside, and nothing of it is left afterwards. ``folder`` has a short path."""

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Environment of a user of this cluster."""
        others = ("SLURM_", "SBATCH_", "SRUN_", "HF_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        path = os.pathsep.join([str(self.folder / "bin"), kept.get("PATH", ""), *SYSTEM_FOLDERS])
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self) -> SmallCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def command(self, *command: str) -> str:
        """Output of a client program. Raises :class:`ClusterError`."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def jobs(self) -> list[Job]:
        """All jobs since the start, in the order of submission; fields that SLURM has not set yet count as none."""
        found = []
        for line in self.command("scontrol", "show", "jobs", "-o").splitlines():
            values = dict(part.partition("=")[::2] for part in line.split() if "=" in part)
            if "JobId" in values:
                hours, minutes, seconds = values["RunTime"].rpartition("-")[2].split(":")
                found.append(
                    Job(
                        number=int(values["JobId"]),
                        state=values["JobState"],
                        comment=values.get("Comment", ""),
                        nodes=int(values["NumNodes"].partition("-")[0]),
                        seconds=int(hours) * 3600 + int(minutes) * 60 + int(seconds),
                    )
                )
        return sorted(found, key=lambda job: job.number)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Processes of jobs (and other users) of this cluster whose command line holds all ``words``."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                ours = process.environ().get("SLURM_CONF") == str(self.folder / "slurm.conf")
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            if ours and all(word in line for word in words):
                found.append(process)
        return found

    def logs(self, lines: int = 40) -> str:
        """The last lines of every daemon's log."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(parts)

    def stop(self) -> None:
        """End jobs, daemons and whatever processes jobs left."""
        if len(self.daemons) > 1:
            self._end_jobs()
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons.clear()
        # A step that was just starting may start its programs now.
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                process.kill()
            psutil.wait_procs(left, timeout=1)

    def _end_jobs(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        try:
            while self.command("squeue", "--noheader") and time.monotonic() < deadline:
                self.command("scancel", "--full", "--user", str(os.getuid()))
                time.sleep(0.5)
        except (ClusterError, subprocess.TimeoutExpired):
            return

    def _start(self) -> None:
        for name in ("state", "bin"):
            (self.folder / name).mkdir()
        for number in range(4):
            (self.folder / f"gpu{number}").symlink_to("/dev/null")
        # slurmd would else look which cgroups there are, and not start where it may not use them.
        plugin = "disabled" if self._version() >= (23, 11) else "cgroup/v1"
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\nCgroupMountpoint={self.folder}/cgroup\n")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        host, ports = socket.gethostname(), free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=500000 Gres=gpu:4"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        user = psutil.Process().username()
        text = CONFIGURATION.format(host=host, ports=ports, folder=self.folder, user=user, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        # The executor removes SLURM_CONF from the environment of the srun that it starts in a job.
        wrapper = self.folder / "bin" / "srun"
        wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {program("srun")} "$@"\n')
        wrapper.chmod(0o755)
        self._start_munge()
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name)
        self._wait("nodes that are idle", lambda: self._states() == ["idle"] * len(NODES))

    def _version(self) -> tuple[int, int]:
        found = re.search(r"(\d+)\.(\d+)", self.command(program("slurmd") or "slurmd", "-V"))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in places.items()]
        # --force: a temporary folder of other users' parent folder is no reason to refuse.
        self._daemon("munged", "--foreground", "--force", *options)
        self._wait("the socket of munged", (self.folder / "munge.socket").exists)

    def _daemon(self, name: str, *options: str) -> None:
        path = program(name)
        if path is None:
            raise ClusterError(f"{name} is not installed")
        with open(self.folder / f"{name}-{len(self.daemons)}.output.log", "wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    [path, *options],
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _states(self) -> list[str]:
        try:
            return self.command("sinfo", "--noheader", "--Node", "--format=%t").split()
        except ClusterError:
            return []

    def _wait(self, what: str, condition: object, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [daemon for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended[0].args} ended" if ended else f"none after {seconds:.0f} s"
                raise ClusterError(f"waiting for {what}: {why}\n{self.logs()}")
            time.sleep(0.2)
