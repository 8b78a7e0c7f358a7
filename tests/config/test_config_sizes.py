"""Sizes, lengths and steps that cannot be trained or measured are refused before anything is fetched or trained."""

from __future__ import annotations

import pytest
from config_helpers import refusal, set_key

from hwh_core.config import validate_preset

CURVE = {"models": ["base"], "steps": [0, 1, 2]}


def test_a_curve_names_models_and_steps_of_the_trainings(minimal_preset):
    assert validate_preset(minimal_preset, "my.yaml").controlled.curve_models == []
    last = minimal_preset["controlled"]["training"]["steps"]
    curve = CURVE | {"steps": [0, 1, last]}
    minimal_preset["controlled"]["curve"] = curve
    controlled = validate_preset(minimal_preset, "my.yaml").controlled
    assert [model.name for model in controlled.curve_models] == ["base"]
    assert controlled.curve.snapshot_steps == [1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"models": ["bases"]}, "'bases' is not among controlled.models ['base']"),
        ({"models": ["base", "base"]}, "controlled.curve.models' = ['base', 'base']: 'base' stands there twice"),
        ({"models": []}, "controlled.curve.models"),
        ({"steps": [0, 1]}, "controlled.curve.steps"),
        ({"steps": [1, 2, 3]}, "start at 0 and ascend"),
        ({"steps": [0, 2, 1]}, "start at 0 and ascend"),
        ({"steps": [0, 1, 1, 2]}, "start at 0 and ascend"),
        ({"steps": [0, 1, 999999]}, "the last is 999999, expected controlled.training.steps"),
        ({"step": [0]}, "unknown key 'controlled.curve.step'"),
    ],
)
def test_a_curve_that_cannot_be_made_is_refused(minimal_preset, changes, told):
    last = minimal_preset["controlled"]["training"]["steps"]
    minimal_preset["controlled"]["curve"] = CURVE | {"steps": [0, 1, last]} | changes
    assert told in refusal(minimal_preset)


def test_sizes_that_an_architecture_of_the_project_cannot_have_are_refused(minimal_preset):
    minimal_preset["hwh"]["scales"][0]["shape"]["num_layers"] = 3
    assert "num_layers = 3: a head-wise hybrid needs at least 4 layers" in refusal(minimal_preset)


def test_sizes_that_a_controlled_model_cannot_have_are_refused(minimal_preset):
    minimal_preset["controlled"]["shape"]["attention_head_dim"] = 7
    message = refusal(minimal_preset)
    assert "key 'controlled': shape: attention_head_dim = 7 does not divide a head group of width" in message


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        ([0.5, 2.0], "= [0.5, 2.0]: the training length itself, factor 1.0, is not among them; add it"),
        ([1.0, 0.0], "greater than 0"),
        ([1.0, -1.0], "greater than 0"),
        ([1.0, float("inf")], "finite"),
    ],
)
def test_probed_lengths_hold_the_training_length_and_are_lengths(minimal_preset, factors, told):
    for possible in ([1], [2.0, 1.0]):
        minimal_preset["controlled"]["probe"]["eval_length_factors"] = possible
        validate_preset(minimal_preset, "my.yaml")
    minimal_preset["controlled"]["probe"]["eval_length_factors"] = factors
    message = refusal(minimal_preset)
    assert "controlled.probe.eval_length_factors" in message
    assert told in message


def test_what_a_probe_could_not_measure_is_refused_before_the_training(minimal_preset):
    controlled = minimal_preset["controlled"]
    length, name = controlled["models"][0]["length"], controlled["models"][0]["name"]
    controlled["probe"]["eval_length_factors"] = [1.0, 1.01]
    assert f"1.01 times the {length} tokens of {name!r} are {1.01 * length:g}, expected a whole" in refusal(
        minimal_preset
    )
    controlled["probe"] |= {"eval_length_factors": [0.5, 1.0], "num_queries": length // 2}
    validate_preset(minimal_preset, "my.yaml")
    controlled["probe"]["num_queries"] += 1
    assert f"of at least probe.num_queries = {length // 2 + 1} tokens" in refusal(minimal_preset)


@pytest.mark.parametrize("section", ["controlled", "hwh.scales.0"])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens_per_step": 100}, "training.tokens_per_step = 100 is no multiple of the length"),
        ({"micro_batch_tokens": 100}, "training.micro_batch_tokens = 100 is no multiple of the length"),
        ({"warmup_steps": 10**6}, "training.warmup_steps = 1000000 must be smaller than training.steps = "),
    ],
)
def test_trainings_that_cannot_be_are_refused_before_texts_are_fetched(minimal_preset, section, changes, told):
    for key, value in changes.items():
        set_key(minimal_preset, f"{section}.training.{key}", value)
    message = refusal(minimal_preset)
    assert f"key '{section}" in message
    assert told in message


def test_a_micro_batch_divides_a_step(minimal_preset):
    length, training = minimal_preset["hwh"]["scales"][0]["length"], minimal_preset["hwh"]["scales"][0]["training"]
    training |= {"tokens_per_step": 4 * length, "micro_batch_tokens": 2 * length}
    validate_preset(minimal_preset, "my.yaml")
    training["micro_batch_tokens"] = 3 * length
    assert f"training.micro_batch_tokens = {3 * length} does not divide tokens_per_step" in refusal(minimal_preset)


@pytest.mark.parametrize("section", ["probe", "behavior"])
def test_queries_of_a_pretrained_model_fit_into_a_sample(minimal_preset, section):
    measured = minimal_preset["pretrained"][section]
    measured["num_queries"] = measured["length"]
    validate_preset(minimal_preset, "my.yaml")
    measured["num_queries"] += 1
    assert f"key 'pretrained.{section}': num_queries: {measured['num_queries']} are more" in refusal(minimal_preset)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_heads": 3}, "gives no even size to each of num_heads = 3 heads"),
        ({"num_kv_heads": 3}, "num_kv_heads = 3 must divide num_heads"),
        ({"rope_theta": 0}, "rope_theta' = 0: Input should be greater than 1"),
    ],
)
def test_a_random_model_that_cannot_be_built_is_refused(minimal_preset, changes, told):
    source = {
        "kind": "random",
        "tokenizer": minimal_preset["tokenizers"][0]["name"],
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "rope_theta": 1e4,
        "seed": 0,
    }
    model = {"name": "random", "title": "Random", "source": source}
    minimal_preset["pretrained"]["models"] = [model]
    validate_preset(minimal_preset, "my.yaml")
    model["source"] = source | changes
    assert told in refusal(minimal_preset)
