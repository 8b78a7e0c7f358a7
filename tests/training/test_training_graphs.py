"""The recorded step, with a recorder that replays by calling: same training, no trace of recording, guarded update."""

import copy
import json

import pytest
import torch

from hwh_core.config import OptimizerConfig
from hwh_core.modeling import build_model
from hwh_core.training.batches import Batches
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.compilation import NextTokenLoss, compiled_blocks
from hwh_core.training.distributed import Workers
from hwh_core.training.graphs import WARMUP_PASSES, CudaGraphRecorder, GraphedStep
from hwh_core.training.optimizer import Optimizer
from hwh_core.training.settings import TrainingError, parse_settings
from hwh_core.training.step import EagerStep
from hwh_core.training.trainer import Trainer

ALONE = Workers(0, 1, torch.device("cpu"))
LENGTH = 32


class CallingRecorder:
    """As CUDA graphs behave: gradients that did not exist when a function was recorded are written anew each time."""

    def __init__(self, model):
        self.parameters = list(model.parameters())

    def __call__(self, function, prepare):
        for _ in range(WARMUP_PASSES):
            prepare()
            function()
        prepare()
        fresh = [parameter for parameter in self.parameters if parameter.grad is None]

        def replay():
            for parameter in fresh:
                parameter.grad = None
            function()

        # Recording itself executes nothing, but leaves gradients in place, with whatever the memory held.
        for parameter in fresh:
            parameter.grad = torch.full_like(parameter, 7.0)
        return replay


class FailingRecorder:
    def __call__(self, function, prepare):
        prepare()
        function()
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


def make_model(settings, architecture="hwh_std"):
    values = settings()["model"]
    return build_model(values["shape"], architecture, 1e4, True, LENGTH, 64, 0).train()


def make_eager(model, micro_rows=4, **optimizer):
    config = OptimizerConfig(**({"kind": "adamw", "learning_rate": 0.01} | optimizer))
    return EagerStep(
        NextTokenLoss(model),
        Optimizer(model, config),
        list(model.parameters()),
        micro_rows=micro_rows,
        gradient_clip=1.0,
        autocast=lambda: torch.autocast("cpu", enabled=False),
        workers=ALONE,
    )


def batch_of(loader, step=0):
    return torch.from_numpy(loader.batch(step))


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


MUON = {"kind": "muon_adamw", "learning_rate": 0.01, "matrix_learning_rate": 0.02}


@pytest.mark.parametrize("micro_rows", [4, 2, 1])
@pytest.mark.parametrize("optimizer", [{}, MUON], ids=["adamw", "muon"])
def test_recorded_steps_train_as_eager_ones(settings, loader, micro_rows, optimizer):
    eager_model, graphed_model = make_model(settings), make_model(settings)
    eager = make_eager(eager_model, micro_rows, **optimizer)
    graphed = GraphedStep(
        make_eager(graphed_model, micro_rows, **optimizer), batch_of(loader, 9), CallingRecorder(graphed_model)
    )
    for name, parameter in weights(graphed_model).items():
        assert torch.equal(parameter, eager_model.get_parameter(name)), name
    for number, factor in enumerate((0.25, 1.0, 0.5, 0.1)):
        results = []
        for step in (eager, graphed):
            results.append(step.start(batch_of(loader, number), factor).tolist())
            step.finish()
        assert results[1] == pytest.approx(results[0], rel=1e-5)
    for name, parameter in weights(graphed_model).items():
        # Learning rates are float32 in a graph; Adam amplifies rounding where gradients vanish.
        assert (parameter - eager_model.get_parameter(name)).abs().mean() < 1e-5, name
    moved = (graphed_model.lm_head.weight - make_model(settings).lm_head.weight).abs().mean()
    assert moved > 1e-3


def test_recording_leaves_no_trace_in_the_optimizer(settings, loader):
    model = make_model(settings)
    step = make_eager(model)
    for number in range(2):
        step.start(batch_of(loader, number), 1.0)
        step.finish()
    before = copy.deepcopy(step.optimizer.state_dict())
    weights_before = weights(model)
    GraphedStep(step, batch_of(loader), CallingRecorder(model))
    after = step.optimizer.state_dict()
    for group, kept in zip(after["adamw"]["param_groups"], before["adamw"]["param_groups"], strict=True):
        assert group == kept | {"lr": pytest.approx(kept["lr"])}
    for number, state in before["adamw"]["state"].items():
        assert state["step"] == 2
        for key, value in state.items():
            assert torch.equal(value, after["adamw"]["state"][number][key]), (number, key)
    for name, value in weights_before.items():
        assert torch.equal(value, model.get_parameter(name)), name


@pytest.mark.parametrize("micro_rows", [4, 2])
def test_a_step_that_is_not_finite_changes_nothing(settings, loader, micro_rows):
    model = make_model(settings)
    step = GraphedStep(make_eager(model, micro_rows), batch_of(loader), CallingRecorder(model))
    step.start(batch_of(loader, 0), 1.0)
    with torch.no_grad():
        kept = model.lm_head.weight[0, 0].clone()
        model.lm_head.weight[0, 0] = float("inf")
    before, state = weights(model), copy.deepcopy(step.eager.optimizer.state_dict()["adamw"]["state"])
    assert not step.start(batch_of(loader, 1), 1.0).isfinite().all()
    for name, value in before.items():
        assert torch.equal(value, model.get_parameter(name)), name
    for number, entries in step.eager.optimizer.state_dict()["adamw"]["state"].items():
        for key, value in entries.items():
            assert torch.equal(value, state[number][key]), (number, key)
    # Nothing of it is left: the next step is as if it had not been.
    with torch.no_grad():
        model.lm_head.weight[0, 0] = kept
    result = step.start(batch_of(loader, 1), 1.0)
    assert result.isfinite().all()
    assert not torch.equal(before["lm_head.weight"], model.lm_head.weight)


def make_trainer(values, loader, folder, recorder):
    settings = parse_settings(values)
    model = build_model(settings.model.shape.model_dump(), "hwh_std", 1e4, True, LENGTH, 64, 0)
    checkpoints = CheckpointFolder(folder, {"config": "c"}, 2)
    trainer = Trainer(model, loader, settings.training, LENGTH, checkpoints, ALONE)
    trainer.make_recorder = None if recorder is None else lambda: recorder(model)
    return trainer


ADAMW = {"kind": "adamw", "learning_rate": 0.004}


def test_a_recorded_training_resumes_as_if_unbroken_and_from_a_plain_one(settings, loader, tmp_path):
    values = settings(steps=8, checkpoint_every_steps=4, optimizer=ADAMW)
    whole = make_trainer(values, loader, tmp_path / "whole", CallingRecorder)
    outcome = whole.run()
    assert outcome.cuda_graph
    assert not whole.cuda_graph

    for first in (CallingRecorder, None):
        folder = tmp_path / f"broken{first}"
        half = make_trainer(values, loader, folder, first)
        for step in range(4):
            half.run_step(step)
        half._save(4, 1.0)
        (folder / "train_log.jsonl").write_text(json.dumps({"step": 4, "tokens_per_second": 1.0, "loss": 1.0}) + "\n")
        resumed = make_trainer(values, loader, folder, CallingRecorder)
        rows = resumed.run().rows
        bound = 0 if first else 1e-6
        losses = [row["loss"] for row in outcome.rows[4:]]
        assert [row["loss"] for row in rows[1:]] == (losses if first else pytest.approx(losses, rel=1e-5))
        for name, value in weights(whole.model).items():
            assert (value - resumed.model.get_parameter(name)).abs().mean() <= bound, name


def test_a_loss_that_is_not_finite_is_reported_with_its_step(settings, loader, tmp_path):
    trainer = make_trainer(settings(optimizer=ADAMW), loader, tmp_path, CallingRecorder)
    trainer.run_step(0)
    with torch.no_grad():
        trainer.model.lm_head.weight[0, 0] = float("nan")
    before = weights(trainer.model)
    with pytest.raises(TrainingError, match="step 2: loss is nan"):
        trainer.run_step(1)
    for name, value in before.items():
        assert torch.equal(value.nan_to_num(), trainer.model.get_parameter(name).nan_to_num()), name


def test_what_cannot_be_recorded_trains_all_the_same_and_says_why(settings, loader, tmp_path, capsys):
    values = settings(steps=4, optimizer=ADAMW)
    outcome = make_trainer(values, loader, tmp_path / "failing", lambda model: FailingRecorder()).run()
    plain = make_trainer(values, loader, tmp_path / "plain", None).run()
    assert not outcome.cuda_graph
    assert [row["loss"] for row in outcome.rows] == [row["loss"] for row in plain.rows]
    said = capsys.readouterr().err
    assert "without a CUDA graph" in said
    assert "not permitted when stream is capturing" in said


def test_optimizer_states_are_alike_with_and_without_graphs(settings, loader):
    plain, capturable = (make_eager(make_model(settings)).optimizer for _ in range(2))
    flag = capturable.make_capturable(torch.device("cpu"))
    assert flag.item() == 0
    capturable.set_factor(0.5)
    assert [group["lr"].item() for group in capturable.adamw.param_groups] == pytest.approx([0.005] * 2)
    states = [optimizer.state_dict()["adamw"]["param_groups"] for optimizer in (plain, capturable)]
    assert [{**group, "lr": 0} for group in states[0]] == [{**group, "lr": 0} for group in states[1]]
    assert all(isinstance(group["lr"], float) for group in states[1])
    capturable.make_plain()
    assert [group["lr"] for group in capturable.adamw.param_groups] == pytest.approx([0.005] * 2)


def test_blocks_are_compiled_once_a_structure(settings, loader):
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    values = settings()["model"]
    shape = values["shape"] | {"num_layers": 8}
    model = build_model(shape, "hwh_std", 1e4, True, LENGTH, 64, 0).train()
    structures = set(model.config.layers)
    assert len(structures) == 3
    batch = batch_of(loader)
    expected = NextTokenLoss(model)(batch[:, :-1], batch[:, 1:])
    loss = NextTokenLoss(model, compiled_blocks(model.config.layers, backend="eager"))
    for _ in range(2):
        found = loss(batch[:, :-1], batch[:, 1:])
        found.backward()
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(structures)
    assert not torch._dynamo.utils.counters["graph_break"]
    torch._dynamo.reset()


def test_a_batch_is_the_same_read_ahead_or_not(loader):
    batches = Batches(loader, slice(1, 3), torch.device("cpu"))
    batches.read_ahead(5)
    assert batches.take(5).tolist() == loader.batch(5)[1:3].tolist()
    assert batches.take(2).tolist() == loader.batch(2)[1:3].tolist()


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("micro_rows", [4, 2])
def test_cuda_graphs_train_as_eager_steps(settings, loader, micro_rows):
    device = torch.device("cuda")
    models = [make_model(settings, "transformer").to(device) for _ in range(2)]
    eager, recorded = (make_eager(model, micro_rows) for model in models)
    graphed = GraphedStep(recorded, batch_of(loader, 9).to(device), CudaGraphRecorder(device))
    batches = Batches(loader, slice(0, 4), device)
    for number in range(5):
        batch = batches.take(number)
        results = []
        for step in (eager, graphed):
            result = step.start(batch, 0.5)
            batches.read_ahead(number + 1)
            results.append(result.tolist())
            step.finish()
        assert results[1] == pytest.approx(results[0], rel=1e-4)
