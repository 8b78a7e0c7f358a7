"""A training on a card ends before its first step where the Gated DeltaNet kernels compute wrong gradients."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from tiny_training import LENGTH

from hwh_core.modeling import build_model, delta_net_check
from hwh_core.modeling.delta_net import GatedDeltaNetGroup, l2_normalize
from hwh_core.scripting import UserError
from hwh_core.training.checkpoint import CheckpointFolder
from hwh_core.training.distributed import Workers
from hwh_core.training.settings import parse_settings
from hwh_core.training.trainer import Trainer
from hwh_kernels import gated_delta_rule_check
from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule
from hwh_kernels.gated_delta_rule_check import HopperGuard

CPU = torch.device("cpu")


class Doubled(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def right(q, k, v, g, beta, scale):
    return chunk_gated_delta_rule(l2_normalize(q), l2_normalize(k), v, g, beta, scale)[0]


def wrong(q, k, *rest):
    return right(q, Doubled.apply(k), *rest)


@pytest.fixture
def module():
    """What flash-linear-attention's guard looks at, on a Hopper card with one of the doubtful versions of Triton."""
    return SimpleNamespace(IS_NVIDIA_HOPPER=True, TRITON_ABOVE_3_4_0=True, TRITON_ABOVE_3_7_1=False)


@pytest.fixture
def trainer_with(settings, loader, tmp_path, monkeypatch, module):
    """Builds a trainer that takes itself to be on a card, with ``rule`` in place of the library's kernels."""

    def build(rule):
        recipe = parse_settings(settings()).training
        model = build_model(settings()["model"]["shape"], "hwh_std", 1e4, True, LENGTH, 64, 0)
        trainer = Trainer(model, loader, recipe, LENGTH, CheckpointFolder(tmp_path, {}, 1), Workers(0, 1, CPU))
        trainer.workers = dataclasses.replace(trainer.workers, device=torch.device("cuda"))
        own = delta_net_check.check_gated_delta_rule
        monkeypatch.setattr(
            delta_net_check, "check_gated_delta_rule", lambda device, shapes, **size: own(CPU, shapes, **size)
        )
        monkeypatch.setattr(GatedDeltaNetGroup, "uses_fla", lambda self, device: device.type == "cuda")
        monkeypatch.setattr(gated_delta_rule_check.fla, "gated_delta_rule", rule)
        monkeypatch.setattr(gated_delta_rule_check, "hopper_guard", lambda device: HopperGuard(module))
        return trainer

    return build


def test_a_wrong_gradient_stops_the_training_and_says_what_to_install(trainer_with, tmp_path, module):
    trainer = trainer_with(wrong)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(UserError, match=r"gradient of k by .*Install Triton 3\.7\.1 or later, or tilelang"):
        trainer.run()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert not list(tmp_path.glob("**/*.safetensors")), "nothing was trained that could be kept"
    assert trainer.delta_net_check is None
    assert not module.TRITON_ABOVE_3_7_1, "the library refuses as before"


def test_a_check_that_passed_is_kept_for_the_manifest(trainer_with, monkeypatch, module):
    trainer = trainer_with(right)
    monkeypatch.setattr(trainer, "_eager_step", lambda: "step")
    assert trainer._build_step(torch.zeros(4, LENGTH + 1, dtype=torch.int64)) == "step"
    assert trainer.delta_net_check["passed"]
    assert trainer.delta_net_check["guard_was_bypassed"]
    assert module.TRITON_ABOVE_3_7_1
