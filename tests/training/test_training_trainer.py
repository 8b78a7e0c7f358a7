"""The training loop: resuming bit for bit, micro-batches, stopping, failures, checkpoints."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from tiny_training import make_settings

from hwh_core.modeling import build_model
from hwh_core.training.checkpoint import CheckpointFolder, truncate_log
from hwh_core.training.distributed import Workers
from hwh_core.training.settings import TrainingError, parse_settings
from hwh_core.training.trainer import Trainer, held_out_loss

ALONE = Workers(0, 1, torch.device("cpu"))
LENGTH = 32


def make_trainer(values, loader, folder, fingerprint=None, qk_norm=True):
    settings = parse_settings(values)
    model = build_model(settings.model.shape.model_dump(), "hwh_std", 1e4, qk_norm, LENGTH, 64, 0)
    training = settings.training
    checkpoints = CheckpointFolder(folder, fingerprint or {"config": "c", "data": "d"}, training.keep_checkpoints)
    return Trainer(model, loader, training, LENGTH, checkpoints, ALONE)


def parameters(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


class Interrupting:
    """A loader that behaves as another until ``step``, where it does ``action``."""

    def __init__(self, loader, step, action):
        self.loader, self.step, self.action = loader, step, action

    def batch(self, step):
        if step == self.step:
            self.action()
        return self.loader.batch(step)


def die():
    raise MemoryError("killed")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens_per_step": LENGTH + 1}, "tokens_per_step = .* is no multiple of the length"),
        ({"micro_batch_tokens": LENGTH - 1}, "micro_batch_tokens = .* is no multiple of the length"),
        ({"tokens_per_step": 4 * LENGTH, "micro_batch_tokens": 3 * LENGTH}, "does not divide tokens_per_step"),
        ({"steps": 3, "warmup_steps": 3}, "warmup_steps = 3 must be smaller than training.steps = 3"),
    ],
)
def test_steps_that_cannot_be_are_refused_and_others_stay_as_they_are(changes, told):
    with pytest.raises(TrainingError, match=told):
        parse_settings(make_settings(**changes))
    values = make_settings(tokens_per_step=4 * LENGTH, micro_batch_tokens=2 * LENGTH, steps=3, warmup_steps=2)
    parsed = parse_settings(values).model_dump(mode="json")
    values["training"].pop("optimizer")
    assert {key: parsed["training"][key] for key in values["training"]} == values["training"]


def test_two_halves_with_a_kill_between_equal_one_run_bit_for_bit(settings, loader, tmp_path):
    values = settings(steps=100, checkpoint_every_steps=50)
    whole = make_trainer(values, loader, tmp_path / "whole")
    whole_rows = whole.run().rows

    folder = tmp_path / "broken"
    with pytest.raises(MemoryError):
        make_trainer(values, Interrupting(loader, 53, die), folder).run()
    resumed = make_trainer(values, loader, folder)
    rows = resumed.run().rows

    for name, parameter in parameters(whole).items():
        assert torch.equal(parameter, parameters(resumed)[name]), name
    assert [row["step"] for row in rows] == list(range(1, 101))
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole_rows]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_micro_batches_give_the_gradients_of_the_whole_step(settings, loader, tmp_path):
    outcomes = [
        make_trainer(settings(steps=3, micro_batch_tokens=micro), loader, tmp_path / str(micro)).run()
        for micro in (None, 64, 32)
    ]
    losses = [[row["loss"] for row in outcome.rows] for outcome in outcomes]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_the_learning_rate_follows_the_schedule(settings, loader, tmp_path):
    rows = make_trainer(settings(), loader, tmp_path).run().rows
    rates = [row["learning_rate"] / 0.004 for row in rows]
    assert rates[:2] == pytest.approx([0.5, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert [row["tokens"] for row in rows] == [128 * step for step in range(1, 7)]


def test_a_loss_that_is_not_finite_stops_with_its_step(settings, loader, tmp_path):
    trainer = make_trainer(settings(), loader, tmp_path)

    def poison():
        with torch.no_grad():
            trainer.model.lm_head.weight[0, 0] = float("nan")

    trainer.batches.loader = Interrupting(loader, 3, poison)
    with pytest.raises(TrainingError, match="step 4: loss is nan"):
        trainer.run()
    kept = CheckpointFolder(tmp_path, {"config": "c", "data": "d"}, 2).load_latest()
    assert kept.step == 2
    assert all(tensor.isfinite().all() for tensor in kept.model.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_saves(settings, loader, tmp_path, number):
    values = settings(steps=10, checkpoint_every_steps=100)
    before = signal.getsignal(number)
    outcome = make_trainer(
        values, Interrupting(loader, 4, lambda: os.kill(os.getpid(), number)), tmp_path / "stopped"
    ).run()
    assert outcome.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert [folder.name for folder in (tmp_path / "stopped").glob("step-*")] == ["step-00000005"]
    resumed = make_trainer(values, loader, tmp_path / "stopped")
    assert resumed.run().exit_code is None
    whole = make_trainer(values, loader, tmp_path / "whole")
    whole.run()
    for name, parameter in parameters(whole).items():
        assert torch.equal(parameter, parameters(resumed)[name]), name


def test_checkpoints_are_thinned_out(settings, loader, tmp_path):
    make_trainer(settings(steps=7, keep_checkpoints=2), loader, tmp_path).run()
    assert sorted(folder.name for folder in tmp_path.glob("step-*")) == ["step-00000006", "step-00000007"]


@pytest.mark.parametrize("changed", ["config", "data"])
def test_a_checkpoint_of_another_run_is_refused(settings, loader, tmp_path, changed):
    make_trainer(settings(), loader, tmp_path).run()
    trainer = make_trainer(settings(), loader, tmp_path, {"config": "c", "data": "d"} | {changed: "other"})
    with pytest.raises(TrainingError, match=f"made under another {changed}") as error:
        trainer.run()
    assert str(tmp_path) in str(error.value)


def test_the_log_is_cut_to_the_resumed_step(tmp_path):
    log = tmp_path / "train_log.jsonl"
    log.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 6)) + '{"step": 6, "lo')
    truncate_log(log, 3)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]
    truncate_log(log, 9)
    assert len(log.read_text().splitlines()) == 3
    with open(log, "ab") as stream:
        stream.write(bytes(40) + b"\xff\n")  # what a crash of the machine may leave
    truncate_log(log, 9)
    assert len(log.read_text().splitlines()) == 3
    truncate_log(tmp_path / "absent.jsonl", 3)
    assert not (tmp_path / "absent.jsonl").exists()


def test_micro_batches_of_a_process(settings, loader, tmp_path):
    """At most what the process takes of a step, which they must divide."""

    def rows_of(workers, **recipe):
        training = parse_settings(settings(**recipe)).training
        model = build_model(settings()["model"]["shape"], "hwh_std", 1e4, True, LENGTH, 64, 0)
        return Trainer(model, loader, training, LENGTH, CheckpointFolder(tmp_path, {}, 1), workers).micro_rows

    assert rows_of(ALONE, micro_batch_tokens=64) == 2
    assert rows_of(ALONE) == 4
    assert rows_of(Workers(0, 4, ALONE.device), micro_batch_tokens=64) == 1
    with pytest.raises(TrainingError, match="micro_batch_tokens = 64 does not divide the 96 tokens"):
        rows_of(Workers(0, 2, ALONE.device), tokens_per_step=192, micro_batch_tokens=64)


def test_a_step_must_split_evenly_among_processes():
    assert Workers(1, 2, torch.device("cpu")).share(8) == slice(4, 8)
    with pytest.raises(TrainingError, match="8 sequences cannot be split evenly among 3"):
        Workers(0, 3, torch.device("cpu")).share(8)


def test_held_out_loss_does_not_depend_on_how_windows_are_grouped(settings, loader, tmp_path):
    trainer = make_trainer(settings(), loader, tmp_path)
    windows = np.concatenate([loader.batch(0), loader.batch(1)])[:7]
    losses = [held_out_loss(trainer.model, windows, rows, trainer.autocast) for rows in (1, 3, 7)]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)
    assert trainer.model.training
