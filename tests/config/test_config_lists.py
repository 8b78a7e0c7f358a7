"""Lists of a preset: no entry stands there twice, whether a value, a name or a model under two names."""

from __future__ import annotations

import re

import pytest
from config_helpers import refusal, set_key

from hwh_core.config import json_schema, validate_preset
from hwh_core.evaluation.rows import TASKS

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


@pytest.mark.parametrize("key", ["controlled", SCALE])
def test_a_training_under_two_names_is_refused(minimal_preset, key):
    models = (minimal_preset["controlled"] if key == "controlled" else minimal_preset["hwh"]["scales"][0])["models"]
    first = models[0]["name"]
    models.append({**models[0], "name": "again"})
    message = refusal(minimal_preset)
    assert f"key '{key}.models': {first!r} and 'again' are the same training under two names" in message
    models[1]["seed"] += 1
    validate_preset(minimal_preset, "my.yaml")


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
