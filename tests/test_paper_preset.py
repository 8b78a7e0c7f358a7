"""The paper's own protocol as config/paper.yaml writes it: sizes, tokens, recipe, and what is compared with what."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwh_core.config import load_preset
from hwh_core.heads import GATED_DELTANET, layer_width
from hwh_core.memory_plan import HUB_VOCABULARY, planned_trainings
from hwh_core.reporting.selection import ALLOCATION_ARCHITECTURES, COMPONENT_ARCHITECTURES, MAIN_ARCHITECTURES

PRESET = load_preset(Path(__file__).resolve().parents[1] / "config" / "paper.yaml")
SCALES = {scale.name: scale for scale in PRESET.hwh.scales}
# Parameters, tokens, warm-up steps.
SIZES = {"380M": (380e6, 15e9, 1024), "1.4B": (1.4e9, 100e9, 1908)}


def trainings(scale: str) -> dict:
    """Trainings of one scale by architecture."""
    planned = [one for one in planned_trainings(PRESET) if one.folder.startswith(f"hwh/{scale}/")]
    return {one.training.architecture: one.training for one in planned}


def test_every_model_of_the_paper_is_there():
    assert set(trainings("380M")) == {*MAIN_ARCHITECTURES, *COMPONENT_ARCHITECTURES, *ALLOCATION_ARCHITECTURES}
    assert set(trainings("1.4B")) == set(MAIN_ARCHITECTURES)
    assert PRESET.targets.tables == [*range(1, 9), "heads"], "Table 4 is generated like the others"
    assert PRESET.targets.figures == [*range(2, 16), "needle_wordings", "qk_norm"]
    for scale in SCALES.values():
        assert len({model.seed for model in scale.models}) == 1, "the same batches in the same order"


@pytest.mark.parametrize("scale", SIZES)
def test_parameters_are_the_named_ones_and_equal(scale):
    counts = [training.parameters for training in trainings(scale).values()]
    assert max(abs(count / SIZES[scale][0] - 1) for count in counts) < 0.01
    assert max(counts) / min(counts) - 1 < 0.005


@pytest.mark.parametrize("scale", SIZES)
def test_widths_of_q_k_and_v_are_equal(scale):
    hidden_size = SCALES[scale].shape.hidden_size
    for training in trainings(scale).values():
        assert len(training.layers) == 24
        for layer in training.layers:
            keys = sum((g.heads if g.kind == GATED_DELTANET else g.key_value_heads) * g.head_dim for g in layer)
            assert layer_width(layer) == keys == hidden_size


@pytest.mark.parametrize("scale", SIZES)
def test_tokens_and_recipe(scale):
    _, tokens, warmup = SIZES[scale]
    setup = SCALES[scale]
    training, optimizer = setup.training, setup.training.optimizer
    assert (setup.length, training.tokens_per_step, setup.retrieval_mix) == (2048, 524_288, None)
    assert training.steps * training.tokens_per_step == pytest.approx(tokens, rel=2e-5)
    assert training.warmup_steps == warmup
    assert (optimizer.kind, optimizer.learning_rate, optimizer.betas) == ("adamw", 4e-4, (0.9, 0.95))
    assert (optimizer.weight_decay, optimizer.epsilon) == (0.1, 1e-8)
    assert (training.final_learning_rate_fraction, training.gradient_clip) == (0.1, 1.0)
    assert training.precision == "bfloat16"


def test_text_and_tokenizer():
    (source,) = PRESET.data.sources
    assert (source.repository, source.subset) == ("HuggingFaceFW/fineweb-edu", "sample-100BT")
    assert source.max_bytes is None, "all of it"
    (tokenizer,) = PRESET.tokenizers
    assert tokenizer.kind == "hub"
    assert not tokenizer.repository.startswith("meta-llama/"), "gated"
    assert {scale.tokenizer for scale in SCALES.values()} == {PRESET.controlled.tokenizer} == {tokenizer.name}
    # Entries of that repository's config.json; its tokenizer is counted again when it is fetched.
    assert HUB_VOCABULARY == 32_000
