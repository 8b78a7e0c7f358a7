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
from hwh_core.config import (
    ArchitectureVariant,
    ConfigError,
    PresetConfig,
    json_schema,
    load_preset,
    read_preset,
    validate_preset,
)
from hwh_core.config.variants import EFFECTS
from hwh_core.evaluation.rows import TASKS
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
        ({"base": "hwh_sdt"}, "key 'hwh.architectures.0': 'mine' has base 'hwh_sdt'; expected one of transformer"),
        ({"recurrence": "mamba"}, "hwh.architectures.0.recurrence"),
        ({"full_attention_fractions": [1.5]}, "hwh.architectures.0.full_attention_fractions.0"),
        ({"full_attention_fractions": []}, "hwh.architectures.0.full_attention_fractions' = []: "),
    ],
)
def test_variants_that_cannot_be_are_refused(minimal_preset, changes, told):
    assert told in refusal(with_variant(minimal_preset, **changes))


UNFIT = [
    ({"full_attention_fractions": [0.25] * 3}, "full_attention_fractions has 3 entries, and the model has "),
    ({"full_attention_fractions": [0.3] * 8}, "a full-attention fraction of 3/10 of width "),
    ({"full_attention_queries_per_key": 7}, "full_attention_queries_per_key = 7 does not divide a head group of "),
]


@pytest.mark.parametrize(("changes", "told"), UNFIT)
def test_a_variant_that_no_scale_can_build_is_refused_with_the_model_that_names_it(minimal_preset, changes, told):
    scale = minimal_preset["hwh"]["scales"][0]
    scale["shape"]["num_layers"] = 8
    with_variant(minimal_preset)
    validate_preset(minimal_preset, "my.yaml")
    message = refusal(with_variant(minimal_preset, **changes))
    name = scale["models"][0]["name"]
    assert f"model {name!r} of scale {scale['name']!r} with the architecture 'mine' cannot be built: " in message
    assert told in message
    # One that no model names waits for a scale of its size.
    scale["models"][0]["architecture"] = "hwh_std"
    validate_preset(minimal_preset, "my.yaml")


def test_sizes_that_an_architecture_of_the_project_cannot_have_are_refused(minimal_preset):
    minimal_preset["hwh"]["scales"][0]["shape"]["num_layers"] = 3
    assert "num_layers = 3: a head-wise hybrid needs at least 4 layers" in refusal(minimal_preset)


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


def test_sizes_that_a_controlled_model_cannot_have_are_refused(minimal_preset):
    minimal_preset["controlled"]["shape"]["attention_head_dim"] = 7
    message = refusal(minimal_preset)
    assert "key 'controlled': shape: attention_head_dim = 7 does not divide a head group of width" in message


IDLE = [
    ("hwh_std", {"sliding_window_queries_per_key": 2}, "no sliding-window heads"),
    ("hwh_swa", {"recurrence": "deltanet"}, "no Gated DeltaNet heads"),
    ("transformer", {"recurrence": "deltanet"}, "no Gated DeltaNet heads"),
    ("gdn", {"full_attention_queries_per_key": 2}, "no full-attention heads"),
    ("gdn", {"attention_output_norm": True}, "no attention heads"),
    ("hwh_std_r", {"nope_qk_norm": False}, "no attention heads without RoPE"),
    ("transformer", {"nope_qk_norm": True}, "no attention heads without RoPE"),
]


@pytest.mark.parametrize(("base", "changes", "told"), IDLE)
def test_a_key_of_a_variant_that_reaches_no_head_is_refused(minimal_preset, base, changes, told):
    (key, value), *_ = changes.items()
    neutral = {"recurrence": "gated_deltanet"} | changes
    message = refusal(with_variant(minimal_preset, base=base, **neutral))
    assert f"'mine' has {key} = {value!r}, but its base {base!r} has {told}" in message
    assert "remove it" in message
    having = re.search(r"a base that has them \(([^)]+)\)", message)[1].split(", ")
    assert base not in having
    for other in having:
        validate_preset(with_variant(minimal_preset, base=other, **neutral), "my.yaml")


@pytest.mark.parametrize(
    ("base", "share", "changes"),
    [
        ("hwh_std", 0.0, {"full_attention_queries_per_key": 2}),
        ("hwh_std", 0.0, {"nope_qk_norm": True}),
        ("hwh_std", 1.0, {"recurrence": "deltanet"}),
        ("hwh_swa", 1.0, {"sliding_window_queries_per_key": 2}),
    ],
)
def test_what_heads_a_variant_has_depends_on_its_fractions(minimal_preset, base, share, changes):
    changes = {"recurrence": "gated_deltanet"} | changes
    with_variant(minimal_preset, base=base, full_attention_fractions=[share] * 4, **changes)
    assert f"its base {base!r} with these full_attention_fractions has no" in refusal(minimal_preset)
    # No model names it any more: of the sizes of a scale these fractions are no whole parts.
    minimal_preset["hwh"]["scales"][0]["models"][0]["architecture"] = "hwh_std"
    minimal_preset["hwh"]["architectures"][0]["full_attention_fractions"] = [0.3, share, share, 1 / 3]
    validate_preset(minimal_preset, "my.yaml")


def test_fractions_of_a_base_without_them_are_refused(minimal_preset):
    message = refusal(with_variant(minimal_preset, base="gdn", full_attention_fractions=[0.5] * 4))
    assert "'mine': full_attention_fractions: architecture gdn has no list of fractions; expected one of" in message


def test_every_key_of_a_variant_has_a_stated_effect():
    others = {"name", "base", "full_attention_fractions"}
    assert set(ArchitectureVariant.model_fields) == others | set(EFFECTS)
    for key, effect in EFFECTS.items():
        assert ArchitectureVariant.model_fields[key].default == effect.unset


SCALE, NIAH = "hwh.scales.0", "evaluation.niah"
FIGURE = {"figure": 10, "models": ["m"]}
PRETRAINED = {"name": "m", "title": "M", "source": {"kind": "folder", "path": "m"}}
MIX = {"sequence_share": 0.5, "pairs_per_sequence": 1, "repeat_share": 0.5, "value_digits": [4]}
GRID = {"variant": "single_1", "wording": "ruler", "lengths": [64]}


def with_all_lists(preset: dict) -> dict:
    """The preset with the lists that the least one leaves out."""
    preset["hwh"]["scales"][0]["retrieval_mix"] = MIX | {}
    preset["pretrained"]["models"] = [PRETRAINED | {}]
    preset["pretrained"]["figures"] = [FIGURE | {"layers": [0]}]
    preset["evaluation"]["niah"]["additional"] = [GRID | {}]
    source = {
        "kind": "pypi",
        "name": "package",
        "package": "p",
        "version": "1",
        "filename": "p.whl",
        "sha256": "0" * 64,
    }
    preset["data"]["sources"].append(source | {"members": ["a"], "license": "MIT"})
    return preset


LISTS = [
    ("data.sources.0.paths", ["a.txt", "b.txt"]),
    ("data.sources.1.members", ["a.py", "b.py"]),
    ("controlled.probe.eval_length_factors", [1.0, 2.0]),
    ("synthetic.rope_thetas", [10000.0, 20000.0]),
    ("pretrained.behavior.windows", [8, 16]),
    ("pretrained.behavior.sinks", [1, 4]),
    ("pretrained.figures.0.layers", [0, 3]),
    (f"{SCALE}.retrieval_mix.value_digits", [4, 7]),
    (f"{NIAH}.lengths", [64, 128]),
    (f"{NIAH}.depths", [50, 100]),
    (f"{NIAH}.additional.0.lengths", [64, 128]),
]
TARGETS = [("targets.figures", [3, 4]), ("targets.tables", [3, "heads"])]


@pytest.mark.parametrize(("path", "values"), LISTS + TARGETS)
def test_an_entry_twice_in_a_list_is_refused(minimal_preset, path, values):
    set_key(with_all_lists(minimal_preset), path, values)
    validate_preset(minimal_preset, "my.yaml")
    set_key(minimal_preset, path, [*values, values[0]])
    message = refusal(minimal_preset)
    assert re.search(rf"key '{path.replace('.', '[.a-z]*[.]')}' = ", message)
    assert f" = {[*values, values[0]]!r}: {values[0]!r} stands there twice" in message
    assert message.endswith("remove one of them")


@pytest.mark.parametrize("path", [*(path for path, _ in LISTS), f"{SCALE}.models"])
def test_an_empty_list_is_refused(minimal_preset, path):
    set_key(with_all_lists(minimal_preset), path, [])
    message = refusal(minimal_preset)
    assert " = []: " in message
    assert "at least 1 item" in message
    assert message.endswith("add what is missing")


def test_targets_may_be_empty(minimal_preset):
    minimal_preset["targets"] = {"figures": [], "tables": []}
    validate_preset(minimal_preset, "my.yaml")


def arrays(node: object, place: str) -> dict[str, dict]:
    """Arrays of a JSON schema by where they stand."""
    if isinstance(node, list):
        parts = [arrays(child, place) for child in node]
    elif isinstance(node, dict):
        parts = [arrays(child, f"{place}.{key}" if isinstance(child, dict) else place) for key, child in node.items()]
    else:
        parts = []
    found = {place: node} if isinstance(node, dict) and node.get("type") == "array" else {}
    return found | {name: array for part in parts for name, array in part.items()}


def test_lists_of_plain_values_hold_each_once_or_it_is_known_why_not():
    """So that a new list is not forgotten; of models and the like names are compared."""
    found = {
        name.removeprefix(".").replace(".properties", "")
        for name, array in arrays(json_schema()["$defs"], "").items()
        if "$ref" not in str(array.get("items", "$ref")) and not array.get("uniqueItems")
    }
    known = {
        "ArchitectureVariant.full_attention_fractions": "one a layer",
        "BehaviorConfig.samples": "files are compared, of which the first has its kind before it",
        "CurveConfig.steps": "they ascend",
    }
    assert found == set(known)


def test_a_task_twice_or_unknown_is_refused(minimal_preset):
    tasks = minimal_preset["evaluation"]["tasks"]
    tasks[:] = [{"name": "piqa"}, {"name": "boolq"}, {"name": "piqa", "limit": 5}]
    assert "key 'evaluation.tasks'" in refusal(minimal_preset)
    assert "'piqa' stands there twice" in refusal(minimal_preset)
    tasks[:] = [{"name": "piqua"}]
    assert "key 'evaluation.tasks.0.name' = 'piqua': 'piqua' is not a known task; " in refusal(minimal_preset)
    tasks[:] = [{"name": name} for name in TASKS]
    validate_preset(minimal_preset, "my.yaml")


def test_a_file_of_samples_twice_is_refused(minimal_preset):
    set_key(minimal_preset, "pretrained.behavior.samples", ["squad:a.json", "b.json"])
    validate_preset(minimal_preset, "my.yaml")
    set_key(minimal_preset, "pretrained.behavior.samples", ["squad:a.json", "b.json", "a.json"])
    assert "samples: 'a.json' stands there twice" in refusal(minimal_preset)


def test_predictions_with_the_same_label_are_refused(minimal_preset):
    bands = [{"label": "own", "length": 64}, {"label": "own", "length": 128}]
    minimal_preset["pretrained"]["models"] = [PRETRAINED | {"candidate_bands": bands}]
    assert "candidate_bands" in refusal(minimal_preset)
    assert "'own' stands there twice" in refusal(minimal_preset)


def test_a_variant_that_is_its_base_or_another_one_is_refused(minimal_preset):
    same = [{"name": "one", "base": "hwh_std", "recurrence": "deltanet"}]
    minimal_preset["hwh"]["architectures"] = [*same, same[0] | {"name": "two"}]
    assert "'one' and 'two' are one architecture under two names" in refusal(minimal_preset)
    minimal_preset["hwh"]["architectures"] = [{"name": "one", "base": "hwh_std", "recurrence": "gated_deltanet"}]
    assert "'one' changes nothing of 'hwh_std'; give it a key, or name 'hwh_std'" in refusal(minimal_preset)


@pytest.mark.parametrize("path", ["seed", "band.prominence", "hwh.scales.0.length", "evaluation.niah.samples_per_cell"])
def test_a_boolean_is_no_number(minimal_preset, path):
    set_key(minimal_preset, path, True)
    assert f"{path.rpartition('.')[2]} is true, expected a number" in refusal(minimal_preset)


@pytest.mark.parametrize("key", ["controlled", SCALE])
def test_a_training_under_two_names_is_refused(minimal_preset, key):
    models = (minimal_preset["controlled"] if key == "controlled" else minimal_preset["hwh"]["scales"][0])["models"]
    first = models[0]["name"]
    models.append({**models[0], "name": "again"})
    message = refusal(minimal_preset)
    assert f"key '{key}.models': {first!r} and 'again' are the same training under two names" in message
    models[1]["seed"] += 1
    validate_preset(minimal_preset, "my.yaml")


def test_unknown_architectures_and_tokenizers_of_models_are_refused(minimal_preset):
    set_key(minimal_preset, f"{SCALE}.models.0.architecture", "hwh_sdt")
    assert "model 'hwh_std_s0' of scale 'tiny' has the architecture 'hwh_sdt'; expected one of" in refusal(
        minimal_preset
    )
    set_key(minimal_preset, f"{SCALE}.models.0.architecture", "hwh_std")
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "num_kv_heads": 1, "rope_theta": 10000.0, "seed": 0}
    random = {"kind": "random", "tokenizer": "nowhere"} | sizes
    minimal_preset["pretrained"]["models"] = [{"name": "m", "title": "M", "source": random}]
    assert refusal(minimal_preset).startswith(
        "my.yaml: pretrained.models.m.source.tokenizer: tokenizer 'nowhere' is not"
    )


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "key 'a' stands twice in one section, in lines 1 and 3"),
        ("s:\n  - {x: 1, y: 2, x: 1}\n", "key 'x' stands twice in one section, in lines 2 and 2"),
        ("s:\n  t: {}\n  u: 1\n  t: []\n", "key 't' stands twice in one section, in lines 2 and 4"),
        ("a: &a {x: 1}\nb: {<<: *a, y: 2, y: 3}\n", "key 'y' stands twice"),
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path, text, said):
    path = tmp_path / "preset.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {said}")):
        read_preset(path)


def test_keys_that_replace_merged_ones_stand_once(tmp_path):
    path = tmp_path / "preset.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\nd: *b\n", encoding="utf-8")
    assert read_preset(path) == yaml.safe_load(path.read_text(encoding="utf-8"))
    assert read_preset(path)["b"] == {"x": 3, "y": 2}
