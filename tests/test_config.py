"""The schema of presets: mistakes end in one sentence that names file and key, and files mean what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hwh_core.architectures import layers_of_shape
from hwh_core.config import ConfigError, PresetConfig, json_schema, load_preset, validate_preset
from hwh_core.scripting import UserError
from hwh_core.training.settings import parse_settings

ROOT = Path(__file__).resolve().parents[1]
PRESETS = sorted((ROOT / "config").glob("*.yaml"))


def set_key(data: dict, path: str, value: object) -> None:
    """Set ``a.b.0.c`` in nested dicts and lists."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        data = data[part]
    data[last] = value


def refusal(data: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_preset(data, "my.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.yaml: ")
    return message


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


@pytest.mark.parametrize(
    "key", ["data.sources", "tokenizers", "controlled.models", "hwh.scales", "hwh.scales.0.models"]
)
def test_duplicate_name_is_named(minimal_preset, key):
    entries = minimal_preset
    for part in key.split("."):
        entries = entries[int(part) if part.isdigit() else part]
    entries.append(dict(entries[0]))
    message = refusal(minimal_preset)
    assert repr(entries[0]["name"]) in message
    assert "unique" in message


@pytest.mark.parametrize("key", ["controlled.tokenizer", "hwh.scales.0.tokenizer", "data.held_out_prose_source"])
def test_unknown_reference_is_named(minimal_preset, key):
    set_key(minimal_preset, key, "nowhere")
    assert "'nowhere'" in refusal(minimal_preset)


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
        ({"models": ["base", "base"]}, "'base' stands there twice"),
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


def test_several_mistakes_are_counted(minimal_preset):
    minimal_preset["sedd"] = 1
    minimal_preset["data"]["minimun_bytes"] = 1
    assert refusal(minimal_preset).endswith("(1 more)")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        load_preset(tmp_path / "absent.yaml")


@pytest.mark.parametrize("content", [b"a: [1", b"\xff\xfe", b"- 1\n- 2\n", b"", b"!!python/object:os.system {}\n"])
def test_file_that_is_no_preset_is_named(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_preset(path)


def test_values_are_immutable(minimal_preset):
    preset = validate_preset(minimal_preset, "my.yaml")
    with pytest.raises(ValueError, match="frozen"):
        preset.seed = 3


def test_schema_file_agrees_with_the_models():
    stored = json.loads((ROOT / "workflow" / "schemas" / "config.schema.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(json_schema())), "run `python -m hwh_core.config` and commit the schema"


def test_schema_refuses_unknown_keys_at_every_level():
    schema = json_schema()
    objects = [schema, *schema["$defs"].values()]
    assert len(objects) > 20
    assert all(entry["additionalProperties"] is False for entry in objects if entry["type"] == "object")


def assert_same(resolved: object, written: object, path: str) -> None:
    """Every key of the file stands in the resolved preset with the same value and the same type."""
    if isinstance(written, dict):
        for key, value in written.items():
            assert_same(resolved[key], value, f"{path}.{key}")
    elif isinstance(written, list):
        assert len(resolved) == len(written), path
        for index, (left, right) in enumerate(zip(resolved, written, strict=True)):
            assert_same(left, right, f"{path}.{index}")
    else:
        assert resolved == written, path
        assert type(resolved) is type(written), f"{path}: {written!r} is read as {resolved!r}; write it in that form"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_file_equals_its_resolved_form(path):
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    preset = load_preset(path)
    resolved = json.loads(preset.model_dump_json())
    assert_same(resolved, written, path.name)
    assert PresetConfig.model_validate(resolved) == preset


def scalars(node: yaml.Node) -> list[yaml.ScalarNode]:
    """All scalars of a YAML document, as they are written."""
    if isinstance(node, yaml.ScalarNode):
        return [node]
    children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    return [scalar for child in children for scalar in scalars(child)]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_no_number_is_read_as_text(path):
    written = scalars(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    plain = [node for node in written if node.style is None and node.tag == "tag:yaml.org,2002:str"]
    looks_like_a_number = re.compile(r"[-+]?[0-9][0-9_.]*([eE][-+]?[0-9]+)?")
    assert [node.value for node in plain if looks_like_a_number.fullmatch(node.value)] == []


def test_the_presets_are_there():
    names = {load_preset(path).preset: path.name for path in PRESETS}
    expected = {
        "smoke": "smoke.yaml",
        "laptop": "config.yaml",
        "variants": "variants.yaml",
        "single_gpu": "single_gpu.yaml",
        "paper": "paper.yaml",
    }
    assert expected.items() <= names.items()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_any_section_of_a_wrong_type_is_refused_in_one_sentence(value):
    with pytest.raises(ConfigError) as caught:
        validate_preset({"preset": value, "data": value, "controlled": value}, "my.yaml")
    assert str(caught.value).startswith("my.yaml: ")


def with_variant(preset: dict, **changes: object) -> dict:
    variant = {"name": "mine", "base": "hwh_std", "recurrence": "deltanet"} | changes
    preset["hwh"]["architectures"] = [variant]
    preset["hwh"]["scales"][0]["models"][0]["architecture"] = "mine"
    return preset


def test_a_model_may_name_a_variant_of_the_preset(minimal_preset):
    plain = validate_preset(minimal_preset, "my.yaml").hwh
    assert "variant" not in plain.shape_of(plain.scales[0], "hwh_std").model_dump(), "others are told what they were"
    family = validate_preset(with_variant(minimal_preset), "my.yaml").hwh
    shape = family.shape_of(family.scales[0], "mine").model_dump()
    assert shape["variant"]["recurrence"] == "deltanet"
    assert {**shape, "variant": None} == {**plain.scales[0].shape.model_dump(), "variant": None}
    assert family.shape_of(family.scales[0], "hwh_std") == family.scales[0].shape


def test_a_variant_may_set_norms_of_its_own(minimal_preset):
    plain = validate_preset(with_variant(minimal_preset), "my.yaml")
    assert "nope_qk_norm" not in plain.hwh.architectures[0].model_dump(), "settings of others stay what they were"
    changes = {"attention_output_norm": True, "nope_qk_norm": False}
    preset = validate_preset(with_variant(minimal_preset, **changes), "my.yaml")
    assert validate_preset(preset.model_dump(mode="json"), "my.yaml") == preset
    scale = preset.hwh.scales[0]
    shape = preset.hwh.shape_of(scale, "mine").model_dump(mode="json")
    unchanged = plain.hwh.shape_of(scale, "mine").model_dump(mode="json")
    assert shape == unchanged | changes, "a training is told of a variant's norms as of those of any shape"
    assert scale.shape.attention_output_norm is False
    attention = [g for layer in layers_of_shape(shape, "mine") for g in layer if g.kind == "full_attention"]
    assert {(group.output_norm, group.qk_norm) for group in attention} == {(True, False)}


def test_settings_of_a_training_carry_the_variant(minimal_preset):
    family = validate_preset(with_variant(minimal_preset), "my.yaml").hwh
    scale = family.scales[0]
    told = {"rope_theta": 1e4, "qk_norm": True, "length": 32, "seed": 0, "architecture": "mine"}
    told["shape"] = family.shape_of(scale, "mine").model_dump(mode="json")
    settings = parse_settings({"model": told, "training": scale.training.model_dump(mode="json")})
    assert settings.written()["model"] == told
    del told["shape"]["variant"]
    with pytest.raises(UserError, match="architecture 'mine' is unknown"):
        parse_settings({"model": told, "training": scale.training.model_dump(mode="json")})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "hwh_std"}, "the name 'hwh_std' is taken"),
        ({"base": "hwh_sdt"}, "'mine' has base 'hwh_sdt'; expected one of transformer"),
        ({"recurrence": "mamba"}, "hwh.architectures.0.recurrence"),
        ({"full_attention_fractions": [1.5]}, "hwh.architectures.0.full_attention_fractions.0"),
    ],
)
def test_variants_that_cannot_be_are_refused(minimal_preset, changes, told):
    assert told in refusal(with_variant(minimal_preset, **changes))
