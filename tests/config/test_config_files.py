"""Files of presets mean what they say, and the schema of the repository is that of the models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from hwh_core.config import ConfigError, PresetConfig, json_schema, load_preset, read_preset

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted((ROOT / "config").glob("*.yaml"))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml does not exist"):
        load_preset(tmp_path / "absent.yaml")


@pytest.mark.parametrize("content", [b"a: [1", b"\xff\xfe", b"- 1\n- 2\n", b"", b"!!python/object:os.system {}\n"])
def test_file_that_is_no_preset_is_named(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_preset(path)


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
