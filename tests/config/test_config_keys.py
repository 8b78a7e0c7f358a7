"""Keys and values of a preset: a mistake ends in one sentence that names file and key."""

from __future__ import annotations

import re

import pytest
from config_helpers import refusal, set_key, with_variant
from hypothesis import given
from hypothesis import strategies as st

from hwh_core.config import ConfigError, validate_preset


def test_minimal_preset_is_accepted(minimal_preset):
    preset = validate_preset(minimal_preset, "my.yaml")
    assert preset.band.prominence == 0.15
    assert preset.hwh.scales[0].models[0].rope_theta == 10000.0


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("sedd", "sedd"),
        ("data.minimun_bytes", "data.minimun_bytes"),
        ("data.sources.0.licence", "data.sources.0.files.licence"),
        ("controlled.training.step", "controlled.training.step"),
        ("controlled.training.optimizer.lr", "controlled.training.optimizer.lr"),
        ("controlled.models.0.theta", "controlled.models.0.theta"),
        ("evaluation.niah.depth", "evaluation.niah.depth"),
        ("hwh.scales.0.shape.num_layer", "hwh.scales.0.shape.num_layer"),
    ],
)
def test_misspelt_key_is_named(minimal_preset, path, named):
    set_key(minimal_preset, path, 1)
    message = refusal(minimal_preset)
    assert f"unknown key '{named}'" in message
    assert "config/README.md" in message


def test_missing_key_is_named(minimal_preset):
    del minimal_preset["controlled"]["training"]["steps"]
    assert "key 'controlled.training.steps' is missing" in refusal(minimal_preset)


def test_a_misspelt_key_is_named_rather_than_the_one_it_should_have_been(minimal_preset):
    training = minimal_preset["controlled"]["training"]
    training["warmup_step"] = training.pop("warmup_steps")
    message = refusal(minimal_preset)
    assert "unknown key 'controlled.training.warmup_step'" in message
    assert "1 more" in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "zero"),
        ("seed", -1),
        ("controlled.models.0.seed", 2**70),
        ("hwh.scales.0.models.0.seed", -1),
        ("hwh.scales.0.models.0.rope_theta", 0),
        ("hwh.scales.0.shape.initializer_range", -0.02),
        ("controlled.models.0.rope_theta", float("inf")),
        ("controlled.training.optimizer.learning_rate", float("inf")),
        ("controlled.models.0.rope_theta", "1e4x"),
        ("controlled.training.steps", 0),
        ("controlled.training.steps", -5),
        ("controlled.training.precision", "float16"),
        ("data.held_out_fraction", 1.5),
        ("evaluation.niah.depths.0", 101),
        ("targets.figures.0", 1),
        ("hwh.scales.0.claim_scale", "400M"),
        ("hwh.scales.0.retrieval_mix", True),
        ("evaluation.niah.additional", "second"),
        ("controlled.models.0.name", "../escape"),
        ("preset", "a/b"),
    ],
)
def test_bad_value_is_named_with_its_key(minimal_preset, path, value):
    set_key(minimal_preset, path, value)
    message = refusal(minimal_preset)
    assert f"key '{path}' = {value!r}" in message


@pytest.mark.parametrize("path", ["seed", "band.prominence", "hwh.scales.0.length", "evaluation.niah.samples_per_cell"])
def test_a_boolean_is_no_number(minimal_preset, path):
    set_key(minimal_preset, path, True)
    assert f"{path.rpartition('.')[2]} is true, expected a number" in refusal(minimal_preset)


@pytest.mark.parametrize("key", ["controlled.tokenizer", "hwh.scales.0.tokenizer", "data.held_out_prose_source"])
def test_unknown_reference_is_named(minimal_preset, key):
    set_key(minimal_preset, key, "nowhere")
    assert "'nowhere'" in refusal(minimal_preset)


def test_unknown_architectures_and_tokenizers_of_models_are_refused(minimal_preset):
    set_key(minimal_preset, "hwh.scales.0.models.0.architecture", "hwh_sdt")
    assert "model 'hwh_std_s0' of scale 'tiny' has the architecture 'hwh_sdt'; expected one of" in refusal(
        minimal_preset
    )
    set_key(minimal_preset, "hwh.scales.0.models.0.architecture", "hwh_std")
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "num_kv_heads": 1, "rope_theta": 10000.0, "seed": 0}
    random = {"kind": "random", "tokenizer": "nowhere"} | sizes
    minimal_preset["pretrained"]["models"] = [{"name": "m", "title": "M", "source": random}]
    assert refusal(minimal_preset).startswith(
        "my.yaml: pretrained.models.m.source.tokenizer: tokenizer 'nowhere' is not"
    )


def test_muon_needs_its_learning_rate(minimal_preset):
    set_key(minimal_preset, "controlled.training.optimizer.kind", "muon_adamw")
    assert "matrix_learning_rate" in refusal(minimal_preset)


def test_rows_that_stay_mappings_are_as_strict(minimal_preset):
    model = {"name": "m", "title": "M", "source": {"kind": "folder", "path": "m"}}
    model["candidate_bands"] = [{"label": "own", "length": 64}, {"label": "1e4", "rope_theta": 10000.0, "length": 64}]
    minimal_preset["pretrained"]["models"] = [model]
    rows = validate_preset(minimal_preset, "my.yaml").pretrained.models[0].candidate_bands
    assert rows == model["candidate_bands"]
    model["candidate_bands"][0]["rope_tehta"] = 1.0
    assert "unknown key 'pretrained.models.0.candidate_bands.0.rope_tehta'" in refusal(minimal_preset)


def test_several_mistakes_are_counted(minimal_preset):
    minimal_preset["sedd"] = 1
    minimal_preset["data"]["minimun_bytes"] = 1
    assert refusal(minimal_preset).endswith("(1 more)")


def test_the_reason_is_not_hidden_behind_a_whole_section(minimal_preset):
    """Of a section, a list or a text that is long only the key is told, or the beginning."""
    message = refusal(with_variant(minimal_preset, base="hwh_sdt"))
    assert message.startswith("my.yaml: key 'hwh.architectures.0': 'mine' has base 'hwh_sdt'; expected one of")
    assert len(message) < 300
    minimal_preset["hwh"]["architectures"] = []
    minimal_preset["hwh"]["scales"][0]["models"][0]["architecture"] = "hwh_std"
    minimal_preset["hwh"]["scales"][0]["models"][0]["retrieval_mix"] = False
    assert refusal(minimal_preset).startswith(
        "my.yaml: key 'hwh.scales.0': model 'hwh_std_s0' has retrieval_mix: false"
    )
    del minimal_preset["hwh"]["scales"][0]["models"][0]["retrieval_mix"]
    minimal_preset["controlled"]["tokenizer"] = "nowhere"
    assert refusal(minimal_preset).startswith("my.yaml: controlled.tokenizer: tokenizer 'nowhere' is not among")
    minimal_preset["controlled"]["tokenizer"] = "bpe512"
    minimal_preset["seed"] = "x" * 5000
    assert re.match(
        r"my\.yaml: key 'seed' = 'x{50,100}\.\.\.: Input should be a valid integer", refusal(minimal_preset)
    )
    minimal_preset["seed"] = list(range(5000))
    assert refusal(minimal_preset).startswith("my.yaml: key 'seed': Input should be a valid integer")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_any_section_of_a_wrong_type_is_refused_in_one_sentence(value):
    with pytest.raises(ConfigError) as caught:
        validate_preset({"preset": value, "data": value, "controlled": value}, "my.yaml")
    assert str(caught.value).startswith("my.yaml: ")


def test_values_are_immutable(minimal_preset):
    preset = validate_preset(minimal_preset, "my.yaml")
    with pytest.raises(ValueError, match="frozen"):
        preset.seed = 3
