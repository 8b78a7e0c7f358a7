"""Snakemake on the small cluster: presets of the smoke size, the profile as a site adapts it, and what jobs did."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from small_cluster import Job, SmallCluster

ROOT = Path(__file__).resolve().parents[2]
LOCAL_RULES = {"all", "fetch", "fetch_source", "fetch_pretrained", "fetch_samples", "extract_rows"}
PROFILE = ROOT / "workflow" / "profiles" / "slurm" / "profile.yaml"


def write_preset(path: Path, steps: int, **changes: Any) -> Path:
    """The smoke preset with longer trainings of its hybrid family, so that they can be met before they end."""
    preset = yaml.safe_load((ROOT / "config" / "smoke.yaml").read_text())
    preset["hwh"]["scales"][0]["training"] |= {"steps": steps, "checkpoint_every_steps": 10}
    path.write_text(yaml.safe_dump(preset | changes, sort_keys=False))
    return path


def write_profile(folder: Path, training: dict[str, Any], **changes: Any) -> Path:
    """The project's SLURM profile, adapted as on a site without accounting; ``training``: resources of train_hwh."""
    profile = yaml.safe_load(PROFILE.read_text())
    profile["set-resources"]["train_hwh"] |= training
    # Made-up CPUs: more threads than the machine has would wait for each other.
    profile["set-threads"] = dict.fromkeys(profile["set-threads"], 1)
    site = {
        "slurm-status-command": "squeue",
        "slurm-init-seconds-before-status-checks": 2,
        "seconds-between-status-checks": 2,
        # What the Snakemake in a job printed would stand among what this one prints.
        "show-failed-logs": False,
    }
    folder.mkdir()
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile | site | changes))
    return folder


@dataclass
class Run:
    """One folder in which the workflow runs, locally or on the cluster."""

    cluster: SmallCluster
    folder: Path
    preset: Path

    def path(self, name: str) -> Path:
        """A file below the results."""
        return self.folder / "results" / "smoke" / name

    def _command(self, *arguments: str) -> list[str]:
        where = ["--snakefile", str(ROOT / "workflow" / "Snakefile"), "--directory", str(self.folder)]
        return [sys.executable, "-m", "snakemake", *arguments, *where, "--configfile", str(self.preset)]

    def locally(self, *targets: str) -> None:
        """Make ``targets`` on this machine."""
        command = self._command(*targets, "--cores", "2", "--workflow-profile", str(ROOT / "workflow/profiles/default"))
        done = subprocess.run(
            command, env=self.cluster.environment(), capture_output=True, text=True, timeout=600, check=False
        )
        require(done.returncode == 0, f"the local run failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")

    def submit(self, profile: Path, *arguments: str) -> Submission:
        """Start Snakemake, which submits jobs; returns at once."""
        return Submission(self, self._command(*arguments, "--workflow-profile", str(profile)))


class Submission:
    """A Snakemake that submits jobs to the cluster; ``number`` of jobs that were there before it."""

    def __init__(self, run: Run, command: list[str]) -> None:
        self.run = run
        self.cluster = run.cluster
        self.before = len(self.cluster.jobs())
        self.log = self.cluster.folder / f"snakemake-{self.before}.log"
        self.unwanted: str | None = None
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                command,
                env=self.cluster.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def jobs(self, comment: str = "") -> list[Job]:
        """Jobs of this call whose comment holds ``comment``, in the order of submission."""
        return [job for job in self.cluster.jobs()[self.before :] if comment in job.comment]

    @property
    def output(self) -> str:
        """What Snakemake printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, what: str, condition: Any, seconds: float = 600, pause: float = 0.5) -> Any:
        """The first true value of ``condition()``; fails when Snakemake ends before, or after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            self.require(self.process.poll() is None, f"waiting for {what}: Snakemake ended before")
            self.require(time.monotonic() < deadline, f"waiting for {what}: not after {seconds:.0f} s")
            self._pause(pause)
        return value

    def end(self, seconds: float = 1800) -> int:
        """Exit code of Snakemake, once it ended."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            self.require(time.monotonic() < deadline, f"Snakemake did not end within {seconds:.0f} s")
            self._pause(0.5)
        return self.process.returncode

    def _pause(self, seconds: float) -> None:
        """A moment between two looks, in which a person cancels each job that is ``unwanted``, once it runs."""
        time.sleep(seconds)
        for job in self.jobs(self.unwanted) if self.unwanted else ():
            if job.state == "RUNNING":
                self.cluster.command("scancel", str(job.number))

    def require(self, condition: object, sentence: str) -> None:
        """Fail with ``sentence``, the jobs and what Snakemake and its failed jobs said."""
        if condition:
            return
        table = "\n".join(f"{job.number} {job.state:10} {job.seconds:4} s  {job.comment}" for job in self.jobs())
        logs = (self.run.folder / ".snakemake" / "slurm_logs").rglob("*.log")
        newest = sorted(logs, key=lambda path: path.stat().st_mtime)[-3:]
        last = "".join(f"\n--- {path}\n{path.read_text(errors='replace')[-2500:]}" for path in newest)
        self.process.kill()
        raise CheckFailed(f"{sentence}\n--- jobs\n{table}\n--- Snakemake\n{self.output[-6000:]}{last}")

    def require_that_all_were_submitted(self) -> None:
        """No rule ran where Snakemake runs but those that fetch, and every job that SLURM had is one of Snakemake's."""
        local = set(re.findall(r"^localrule (\w+):", self.output, re.MULTILINE))
        self.require(local <= LOCAL_RULES, f"not through sbatch: {', '.join(sorted(local - LOCAL_RULES))}")
        numbers = re.findall(r"has been submitted with SLURM jobid (\d+)", self.output)
        self.require([str(job.number) for job in self.jobs()] == sorted(numbers, key=int), f"submitted: {numbers}")

    def trainings(self, model: str, number: int | None = None) -> list[psutil.Process]:
        """Processes that train ``model``: those with the token store open, neither launcher, shell nor torchrun."""
        found = []
        for process in self.cluster.processes("train.py", f"/{model}/checkpoints"):
            try:
                line, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            started = line[2 if line[1] == "-u" else 1]
            if started.endswith("train.py") and number in (None, int(variables.get("SLURM_JOB_ID", "0"))):
                found.append(process)
        return found


class CheckFailed(AssertionError):
    """A check on the small cluster failed; the message holds the logs."""


def require(condition: object, sentence: str) -> None:
    """Fail with ``sentence`` unless ``condition``."""
    if not condition:
        raise CheckFailed(sentence)
