"""Snapshots of a training: the same after a kill, untouched by pruning, and no change to the training itself."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from test_training_trainer import ALONE, LENGTH, Interrupting, die, parameters
from transformers import AutoModelForCausalLM

from hwh_core.modeling import build_model
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.distributed import Workers
from hwh_core.training.settings import TrainingError, parse_settings
from hwh_core.training.snapshots import Snapshots, snapshot_folder
from hwh_core.training.trainer import Trainer

FINGERPRINT = {"config": "c", "data": "d"}


def make_trainer(values, loader, folder, steps=None, fingerprint=FINGERPRINT, workers=ALONE):
    settings = parse_settings(values)
    model = build_model(settings.model.shape.model_dump(), "hwh_std", 1e4, True, LENGTH, 64, 0)
    checkpoints = CheckpointFolder(folder, fingerprint, settings.training.keep_checkpoints)
    snapshots = None if steps is None else Snapshots(folder / "snapshots", steps, fingerprint)
    return Trainer(model, loader, settings.training, LENGTH, checkpoints, workers, snapshots)


def kept(folder):
    """Weights of all snapshots by folder name."""
    return {path.name: load_file(path / "model.safetensors") for path in sorted((folder / "snapshots").iterdir())}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, tensors in first.items():
        assert tensors.keys() == second[name].keys()
        for key, tensor in tensors.items():
            assert torch.equal(tensor, second[name][key]), (name, key)


def test_a_training_with_snapshots_is_the_one_without_them_bit_for_bit(settings, loader, tmp_path):
    plain = make_trainer(settings(steps=8), loader, tmp_path / "plain")
    rows = plain.run().rows
    observed = make_trainer(settings(steps=8), loader, tmp_path / "observed", [1, 3, 8])
    assert [row["loss"] for row in observed.run().rows] == [row["loss"] for row in rows]
    for name, parameter in parameters(plain).items():
        assert torch.equal(parameter, parameters(observed)[name]), name
    assert not (tmp_path / "plain" / "snapshots").exists()


def test_a_snapshot_holds_the_weights_after_its_step_in_float32(settings, loader, tmp_path):
    trainer = make_trainer(settings(steps=8), loader, tmp_path, [3, 8])
    trainer.run()
    assert list(kept(tmp_path)) == ["step-00000003", "step-00000008"]
    last = AutoModelForCausalLM.from_pretrained(snapshot_folder(tmp_path / "snapshots", 8))
    for name, parameter in parameters(trainer).items():
        assert torch.equal(parameter, dict(last.named_parameters())[name]), name
    by_hand = make_trainer(settings(steps=8), loader, tmp_path / "by_hand")
    for step in range(3):
        by_hand.run_step(step)
    third = AutoModelForCausalLM.from_pretrained(snapshot_folder(tmp_path / "snapshots", 3))
    assert {parameter.dtype for parameter in third.parameters()} == {torch.float32}
    for name, parameter in parameters(by_hand).items():
        assert torch.equal(parameter, dict(third.named_parameters())[name]), name


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@gpu
def test_a_snapshot_of_recorded_steps_holds_their_weights(settings, loader, tmp_path):
    values = settings(steps=8, compile="auto", optimizer={"kind": "adamw", "learning_rate": 0.004})
    workers = Workers(0, 1, torch.device("cuda"))
    trainer = make_trainer(values, loader, tmp_path, [3, 8], workers=workers)
    assert trainer.run().cuda_graph
    found, trained = kept(tmp_path), parameters(trainer)
    for name, tensor in found["step-00000008"].items():
        assert torch.equal(tensor, trained[name].cpu()), name
    assert not torch.equal(found["step-00000003"]["lm_head.weight"], found["step-00000008"]["lm_head.weight"])
    by_hand = make_trainer(values, loader, tmp_path / "by_hand", workers=workers)
    for step in range(3):
        by_hand.run_step(step)
    for name, tensor in found["step-00000003"].items():
        assert (tensor - parameters(by_hand)[name].cpu()).abs().mean() < 1e-4, name


# After 4 steps a checkpoint is saved: killed before it, right after it, and with snapshots newer than it.
@pytest.mark.parametrize("killed_at", [2, 4, 7])
def test_a_killed_and_resumed_training_has_the_same_snapshots(settings, loader, tmp_path, killed_at):
    values, steps = settings(steps=10, checkpoint_every_steps=4, keep_checkpoints=1), [1, 3, 4, 6, 10]
    make_trainer(values, loader, tmp_path / "whole", steps).run()
    folder = tmp_path / "broken"
    with pytest.raises(MemoryError):
        make_trainer(values, Interrupting(loader, killed_at, die), folder, steps).run()
    make_trainer(values, loader, folder, steps).run()
    assert len(kept(folder)) == 5
    assert_same(kept(folder), kept(tmp_path / "whole"))


def test_pruning_of_checkpoints_leaves_snapshots(settings, loader, tmp_path):
    make_trainer(settings(steps=8, checkpoint_every_steps=1, keep_checkpoints=1), loader, tmp_path, [1, 2, 5]).run()
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-00000008"]
    assert list(kept(tmp_path)) == ["step-00000001", "step-00000002", "step-00000005"]


def test_snapshots_asked_for_too_late_are_refused_with_the_mend(settings, loader, tmp_path):
    values = settings(steps=8, checkpoint_every_steps=4)
    with pytest.raises(MemoryError):
        make_trainer(values, Interrupting(loader, 5, die), tmp_path).run()
    with pytest.raises(TrainingError, match="goes on after step 4, but the snapshot after step 2 is not") as error:
        make_trainer(values, loader, tmp_path, [2, 6]).run()
    assert str(tmp_path) in str(error.value)
    make_trainer(values, loader, tmp_path, [6]).run()
    assert list(kept(tmp_path)) == ["step-00000006"]


def test_snapshots_of_another_run_in_the_same_folder_do_not_count(settings, loader, tmp_path):
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 1, die), tmp_path, [1, 3], {"config": "x", "data": "d"}).run()
    assert (tmp_path / "snapshots" / "step-00000001").is_dir()
    with pytest.raises(MemoryError):
        make_trainer(settings(), Interrupting(loader, 3, die), tmp_path).run()
    with pytest.raises(TrainingError, match="the snapshot after step 1 is not"):
        make_trainer(settings(), loader, tmp_path, [1, 3]).run()


def test_a_snapshot_that_was_being_written_is_cleared_away(settings, loader, tmp_path):
    (tmp_path / "snapshots" / ".step-00000003.abc.tmp").mkdir(parents=True)
    make_trainer(settings(), loader, tmp_path, [3]).run()
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["step-00000003"]


@pytest.mark.parametrize("steps", [[3, 2], [2, 2], [7]])
def test_steps_that_are_no_steps_of_the_training_are_refused(settings, steps):
    with pytest.raises(TrainingError, match="snapshot_steps"):
        parse_settings(settings() | {"snapshot_steps": steps})


def test_the_program_leaves_snapshots_beside_the_model_and_makes_them_anew_when_asked(
    settings, train_command, tmp_path
):
    output = tmp_path / "out"
    command, environment = train_command(settings() | {"snapshot_steps": [2, 6]}, output)

    def run():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    run()
    snapshots = output / "snapshots"
    assert sorted(path.name for path in snapshots.iterdir()) == ["step-00000002", "step-00000006"]
    model = load_file(output / "model" / "model.safetensors")
    last = load_file(snapshots / "step-00000006" / "model.safetensors")
    assert model.keys() == last.keys()
    assert all(torch.equal(model[name], last[name]) for name in model)
    assert not (output / "checkpoints" / "snapshots").exists()
    assert json.loads((output / "model.manifest.json").read_text())["settings"]["snapshot_steps"] == [2, 6]
    assert "is finished" in run()

    early = (snapshots / "step-00000002" / "model.safetensors").read_bytes()
    for file in (snapshots / "step-00000002").iterdir():
        file.unlink()
    assert "is finished" not in run()
    assert (snapshots / "step-00000002" / "model.safetensors").read_bytes() == early
