"""The workflow on a real SLURM, alone on this machine: all checks, or those that are named.

limits: trainings of two families, of which SLURM ends one by its time limit and a person cancels one.
signal, nodes: a training saves at SLURM's signal before the time limit, on one node and on two.
chain: a chain is one submission. whole: the smoke preset, every job through sbatch.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from small_cluster import PROGRAMS, Job, SmallCluster, program
from workflow_run import CheckFailed, Run, Submission, write_preset, write_profile

HYBRID, CANCELLED, OTHER = "transformer_s0", "theta1e4_L64_noqknorm_s0", "theta1e4_L64_s0"
STEPS = 60
STORES = [f"results/smoke/data/bpe512/{split}/index.json" for split in ("train", "held_out")]
# Made once for all chains, and so by jobs of their own.
PROMPTS = "results/smoke/data/bpe512/niah_prompts/niah.parquet"
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")


def states(jobs: list[Job]) -> list[str]:
    return [job.state for job in jobs]


def stop_after_a_checkpoint(submission: Submission, model: str, job: Job, processes: int) -> int:
    """Hold the training of ``job`` once it has saved a checkpoint; returns the step. So it cannot end by itself."""

    def started() -> list[psutil.Process] | None:
        found = submission.trainings(model, job.number)
        return found if len(found) == processes else None

    def saved() -> list[int]:
        folder = submission.run.path(f"hwh/tiny/{model}/checkpoints")
        return [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]

    trainings = submission.wait_for(f"{processes} processes that train {model}", started)
    offline = {training.environ().get("HF_HUB_OFFLINE") for training in trainings}
    submission.require(offline == {"1"}, "a job may use the hub, which nodes of a cluster cannot reach")
    # A step takes some hundredths of a second.
    submission.wait_for(f"a checkpoint of {model}", saved, pause=0.01)
    for training in trainings:
        training.suspend()
    return max(saved())


def next_job(submission: Submission, comment: str, number: int) -> Job:
    """Submission ``number`` of the job with ``comment``, once it runs."""

    def running() -> Job | None:
        jobs = submission.jobs(comment)
        return jobs[number] if len(jobs) > number and jobs[number].state != "PENDING" else None

    return submission.wait_for(f"submission {number + 1} of {comment}", running)


def check_time_limit_and_cancelling(cluster: SmallCluster, run: Run) -> None:
    """A job that SLURM ends by its time limit, one that a person cancels, and others beside them."""
    training = {"gpu": 2, "cpus_per_gpu": 1}
    profile = write_profile(cluster.folder / "profile-limits", training, jobs=3, retries=1)
    run.locally(*STORES)
    targets = [f"results/smoke/hwh/tiny/{HYBRID}/metrics.json", f"results/smoke/controlled/{CANCELLED}/metrics.json"]
    first = run.submit(profile, *targets, f"results/smoke/controlled/{OTHER}/probe_x1.json")
    cancelled, limited = f"train_controlled_wildcards_{CANCELLED}", f"train_hwh_wildcards_tiny_{HYBRID}"
    first.unwanted = cancelled

    job = next_job(first, limited, 0)
    step = stop_after_a_checkpoint(first, HYBRID, job, processes=2)
    # Before that SLURM would send the signal of the profile first, at which a training ends by itself.
    first.wait_for("the shortest time limit", lambda: first.jobs(limited)[0].seconds > 60)
    cluster.command("scontrol", "update", f"JobId={job.number}", "TimeLimit=1")
    code = first.end()

    first.require(code != 0, "Snakemake says nothing of a cancelled job in its exit code")
    first.require(states(first.jobs(cancelled)) == ["CANCELLED"] * 2, "the cancelled job was not submitted twice")
    first.require(states(first.jobs(limited)) == ["TIMEOUT", "COMPLETED"], "the limited job did not go on")
    others = [job for job in first.jobs() if job.comment.endswith(f"_{OTHER}")]
    first.require(states(others) == ["COMPLETED"] * 2, "jobs beside the cancelled one did not finish")
    job = first.jobs(cancelled)[-1]
    for line in ("Error in rule train_controlled:", f"external_jobid: {job.number}", "'CANCELLED'"):
        first.require(line in first.output, f"the cancelled job is not reported by name: {line!r} is missing")
    error = first.output.partition(f"SLURM-job '{job.number}' failed")[2].partition("external_jobid")[0]
    first.require(f"{CANCELLED}/metrics.json" in error, "the report of the cancelled job does not name its files")
    first.require_that_all_were_submitted()

    # It may still have saved between SLURM's SIGTERM and SIGKILL.
    after = went_on_after(first, HYBRID)
    first.require(after >= step, f"a checkpoint of step {step} was there, the repeat went on after step {after}")
    check_training(first, HYBRID, processes=2)

    again = run.submit(profile, *targets)
    again.require(again.end() == 0, "the same command did not complete what was cancelled")
    again.require(states(again.jobs()) == ["COMPLETED"], "more than the cancelled job was made anew")
    again.require(again.jobs(cancelled), "another job than the cancelled one was made anew")


def check_training(submission: Submission, model: str, processes: int) -> None:
    """The record of a training that was interrupted: every step once, and as many processes as GPUs."""
    path = submission.run.path(f"hwh/tiny/{model}")
    steps = [json.loads(line)["step"] for line in (path / "train_log.jsonl").read_text().splitlines()]
    submission.require(steps == sorted(set(steps)) and steps[-1] == STEPS, f"steps of the log: {steps}")
    devices = json.loads((path / "metrics.json").read_text())["devices"]
    submission.require(devices == processes, f"{devices} processes trained, expected {processes}")


def check_whole_preset(cluster: SmallCluster, run: Run) -> None:
    """The rest of the smoke preset, each job through sbatch; then nothing is left to do."""
    profile = write_profile(cluster.folder / "profile-whole", {"gpu": 1}, jobs=4)
    whole = run.submit(profile)
    whole.require(whole.end(3600) == 0, "the smoke preset failed")
    whole.require(set(states(whole.jobs())) == {"COMPLETED"}, "a job failed")
    whole.require_that_all_were_submitted()
    whole.require(run.path("claims.json").is_file(), "no ledger was written")
    print(f"  {len(whole.jobs())} jobs")
    again = run.submit(profile)
    again.require(again.end() == 0 and "Nothing to be done" in again.output, "a second run has something to do")


def check_chain(cluster: SmallCluster, run: Run) -> None:
    """A chain is one submission on one node."""
    profile = write_profile(cluster.folder / "profile-chain", {})
    run.locally(*STORES, PROMPTS)
    options = ["--resources", "gpu=1", "--set-resource-scopes", "gpu=local"]
    chain = run.submit(profile, "results/smoke/chains/hwh/tiny/hwh_std_s0.json", *options)
    chain.require(chain.end() == 0, "the chain failed")
    jobs = chain.jobs("chain_evaluate_evaluate_niah_record_chain_train_hwh")
    chain.require(states(chain.jobs()) == states(jobs) == ["COMPLETED"], "the chain is not one submission")
    chain.require(jobs[0].nodes == 1, f"the chain asked for {jobs[0].nodes} nodes")
    chain.require(not list((run.folder / "results").rglob("model.safetensors")), "the chain left weights")


def check_two_nodes(cluster: SmallCluster, run: Run) -> None:
    """Two processes on each of two nodes; SLURM's early signal, a save at that step, and the rest after a repeat."""
    training = {"gpu": 4, "nodes": 2, "mpi": "'srun'", "tasks_per_node": 2, "cpus_per_gpu": 1}
    profile = write_profile(cluster.folder / "profile-nodes", training, retries=1)
    run.locally(*STORES)
    model = "hwh_std_s0"
    nodes = run.submit(profile, f"results/smoke/hwh/tiny/{model}/metrics.json")
    step, job = early_signal(cluster, nodes, model, processes=4)
    nodes.require(nodes.end() == 0, "the training on two nodes failed")
    nodes.require(states(nodes.jobs()) == ["FAILED", "COMPLETED"], "the training was not repeated once")
    nodes.require(job.nodes == 2, f"the training asked for {job.nodes} nodes")
    went_on_from_the_signal(nodes, model, step)
    check_training(nodes, model, processes=4)


def check_early_signal(cluster: SmallCluster, run: Run) -> None:
    """One process: SLURM's early signal, a save at that step, and the rest after a repeat."""
    profile = write_profile(cluster.folder / "profile-signal", {"gpu": 2, "cpus_per_gpu": 1}, retries=1)
    run.locally(*STORES)
    model = "gdn_s0"
    one = run.submit(profile, f"results/smoke/hwh/tiny/{model}/metrics.json")
    step, _ = early_signal(cluster, one, model, processes=2)
    one.require(one.end() == 0, "the training failed")
    one.require(states(one.jobs()) == ["FAILED", "COMPLETED"], "the training was not repeated once")
    went_on_from_the_signal(one, model, step)
    check_training(one, model, processes=2)


def early_signal(cluster: SmallCluster, submission: Submission, model: str, processes: int) -> tuple[int, Job]:
    """Lower the time limit of a training that is held, so that SLURM sends its signal before it, and SIGCONT."""
    job = next_job(submission, f"train_hwh_wildcards_tiny_{model}", 0)
    step = stop_after_a_checkpoint(submission, model, job, processes)
    minutes = submission.jobs()[0].seconds // 60 + 5
    cluster.command("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")
    submission.wait_for("the end of the job", lambda: submission.jobs()[0].state in ENDED)
    return step, job


def went_on_after(submission: Submission, model: str) -> int:
    """The step after which the last submission of a training went on."""
    log = submission.run.path(f"logs/train_hwh/tiny_{model}.log").read_text()
    found = re.search(rf"^going on after step (\d+) of {STEPS}$", log, re.MULTILINE)
    submission.require(found, f"the repeat began anew:\n{log}")
    return int(found[1]) if found else 0


def went_on_from_the_signal(submission: Submission, model: str, step: int) -> None:
    """The repeat started from a checkpoint of the step at which the signal came, not from one of every tenth step."""
    after = went_on_after(submission, model)
    submission.require(after > step and after % 10, f"held after step {step}, went on after step {after}")


def require_programs() -> None:
    """End with what to install where SLURM is missing."""
    missing = [name for name in PROGRAMS if program(name) is None]
    if missing:
        sys.exit(f"error: no {', '.join(missing)} here; `make slurm-wlm` installs them on Debian, or says what to do")


CHECKS: dict[str, tuple[Callable[[SmallCluster, Run], None], dict[str, object]]] = {
    "limits": (check_time_limit_and_cancelling, {}),
    "signal": (check_early_signal, {}),
    "nodes": (check_two_nodes, {}),
    "chain": (check_chain, {"keep_weights": False}),
    "whole": (check_whole_preset, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", default=list(CHECKS), help=f"some of {', '.join(CHECKS)}; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.checks) - set(CHECKS)
    if unknown:
        parser.error(f"no check is named {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    require_programs()
    # As an exception, so that the cluster ends and its folder goes whatever ends this program.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Below /tmp: the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="hwh-slurm-", dir="/tmp"))
    try:
        with SmallCluster(folder) as cluster:
            for name in arguments.checks:
                check, changes = CHECKS[name]
                started = time.monotonic()
                print(f"{name}: {(check.__doc__ or '').splitlines()[0]}", flush=True)
                (folder / name).mkdir()
                preset = write_preset(folder / f"{name}.yaml", STEPS, **changes)
                try:
                    check(cluster, Run(cluster, folder / name, preset))
                except CheckFailed:
                    print(cluster.logs(), file=sys.stderr)
                    raise
                print(f"  passed in {time.monotonic() - started:.0f} s", flush=True)
    except CheckFailed as failure:
        sys.exit(f"FAILED: {failure}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
