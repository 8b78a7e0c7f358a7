"""Several processes train as one does, with weights whole (DDP) or spread (FSDP2), also in turns.

All runs of several processes are made by one start of parallel_run.py, in float32 or bfloat16 on a CPU. Two processes
compute the same products on the same numbers as one; only the order in which gradients are added differs, so that they
differ by rounding of float32 (6e-8). Losses keep to some ten times that. Weights are held by their mean, since AdamW's
first steps are as long for a gradient that is nearly zero, and is rounding, as for any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import parallel_run
import pytest
from parallel_run import CASES, CHAIN, DAMAGES, SNAPSHOTS, train_case, train_part, train_to
from safetensors.torch import load_file
from test_training_faults import cut_in_half
from test_training_trainer import ALONE

from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.snapshots import snapshot_folder

LOSS, WEIGHT = 1e-6, 1e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What two processes left: of every case, and of runs of which one process has made the first part before."""
    folder = tmp_path_factory.mktemp("parallel")
    assert train_part(0, folder / "chain", ALONE).exit_code == 143
    for parallel, name in DAMAGES.items():
        assert train_to(4, parallel, folder / parallel, ALONE).exit_code == 143
        cut_in_half(folder / parallel / "step-00000004" / name)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, parallel_run.__file__, str(folder)],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "errors.txt").write_text(done.stderr)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


def assert_close(tensors, others):
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.shape == others[name].shape
        assert (tensor - others[name]).abs().mean() < WEIGHT, name


def weights(trainer):
    return {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(folder, results, name, tmp_path):
    trainer, outcome = train_case(name, tmp_path, ALONE)
    assert results[name] == pytest.approx([row["loss"] for row in outcome.rows], rel=LOSS)
    assert_close(weights(trainer), load_file(folder / f"{name}.safetensors"))


def test_a_run_goes_on_at_any_number_of_processes(folder, results, tmp_path):
    """1 -> 2 with DDP -> 2 with FSDP2 -> 1, from the same checkpoints, against one process all the way."""
    assert results["exits"] == [143, 143]
    last = train_part(3, folder / "chain", ALONE)
    assert last.exit_code is None
    whole = {"chain": tmp_path / "whole"}
    for number in (0, 3):
        outcome = train_part(number, whole["chain"], ALONE)
    assert [row["loss"] for row in last.rows] == pytest.approx([row["loss"] for row in outcome.rows], rel=LOSS)
    assert last.parts() == [
        {"first_step": 1, "last_step": 2, "processes": 1, "parallel": None},
        {"first_step": 3, "last_step": 4, "processes": 2, "parallel": "ddp"},
        {"first_step": 5, "last_step": 6, "processes": 2, "parallel": "fsdp"},
        {"first_step": 7, "last_step": 8, "processes": 1, "parallel": None},
    ]
    ends = [CheckpointFolder(path, {}, 9).load_latest() for path in (folder / "chain", whole["chain"])]
    assert [end.step for end in ends] == [CHAIN[-1][2]] * 2
    assert_close(ends[0].model, ends[1].model)
    states = [end.optimizer for end in ends]
    assert {part: state["param_groups"] for part, state in states[0].items()} == {
        part: state["param_groups"] for part, state in states[1].items()
    }
    for part in states[0]:
        for index, values in states[0][part]["state"].items():
            assert_close(values, states[1][part]["state"][index])
    for step in SNAPSHOTS:
        own, other = (
            load_file(snapshot_folder(path / "snapshots", step) / "model.safetensors")
            for path in (folder / "chain", whole["chain"])
        )
        assert_close(own, other)


@pytest.mark.parametrize("parallel", DAMAGES)
def test_both_processes_go_on_from_before_a_damaged_checkpoint(folder, results, parallel, tmp_path):
    """The first sets it aside and says so, once; the weights become those of a run that nothing disturbed."""
    errors = (folder / "errors.txt").read_text()
    assert errors.count(f"{parallel}/step-00000004 is damaged: the sha256 of {DAMAGES[parallel]} is not the") == 1
    damaged = CheckpointFolder(folder / parallel, {}, 9)
    assert damaged.damaged() == ["damaged-step-00000004"]
    whole = train_to(9, parallel, tmp_path, ALONE)
    assert results[f"damaged_{parallel}"] == pytest.approx([row["loss"] for row in whole.rows], rel=LOSS)
    assert [path.name for path in damaged.folders()] == [f"step-0000000{step}" for step in (2, 4, 6, 8)]
    assert_close(damaged.load_latest().model, CheckpointFolder(tmp_path, {}, 9).load_latest().model)
    parts = [(row["step"], row["processes"]) for row in map(json.loads, damaged.log_path.read_text().splitlines())]
    assert parts == [(step, 1 if step <= 2 else 2) for step in range(1, 9)]


def test_blocks_of_a_spread_model_are_compiled_once_a_kind(results):
    """Kinds that differ in their numbers of heads alone; the gathering of weights around a block stays outside."""
    assert results["compiled"]["compiled"] == results["compiled"]["kinds"] == 2
    assert results["compiled"]["losses"] == pytest.approx(results["muon_fsdp"], rel=LOSS)
