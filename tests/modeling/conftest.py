"""Small models over every architecture."""

from __future__ import annotations

import pytest
import torch

from hwh_core.architectures import ARCHITECTURES
from hwh_core.modeling import HwHForCausalLM, build_model

VOCABULARY = 61


def tiny_shape(**changes):
    shape = {
        "num_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "attention_head_dim": 8,
        "gdn_head_dim": 8,
        "gate": True,
        "sliding_window": 12,
        # Larger than in training, so that what the mixers add, and with it a wrong mask or state, shows in the logits.
        "initializer_range": 0.1,
    }
    return shape | changes


def tiny_model(name, seed=0, qk_norm=True, **changes) -> HwHForCausalLM:
    return build_model(tiny_shape(**changes), name, 10000.0, qk_norm, 64, VOCABULARY, seed).eval()


@pytest.fixture(params=list(ARCHITECTURES))
def model(request) -> HwHForCausalLM:
    # Of fewer than 8 layers hwh_outer13 is hwh_std.
    return tiny_model(request.param, num_layers=8 if request.param == "hwh_outer13" else 4)


@pytest.fixture
def tokens():
    def draw(batch, length, seed=0):
        # Token 0 is left to padding: generate() takes it for such wherever it stands.
        return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))

    return draw


@pytest.fixture
def make_model():
    return tiny_model
