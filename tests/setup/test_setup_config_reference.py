"""config/README.md documents every key of the schema, with its default and its origin, and no other key."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from hwh_core.architectures import layers_of_shape
from hwh_core.config import PresetConfig, load_preset, validate_preset

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
ORIGINS = {"paper", "literature", "ours"}
Section = tuple[str, str | None]


def models_in(annotation: object, marks: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Models inside a type annotation, with ``[]`` for every list around them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, marks
        return
    inner = "[]" if typing.get_origin(annotation) in (list, tuple) else ""
    for argument in typing.get_args(annotation):
        yield from models_in(argument, marks + inner)


def schema_sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[Section, type[BaseModel]]]:
    """Every place where a model stands in a preset, and the `kind` that chooses it, if several may stand there."""
    for name, field in model.model_fields.items():
        found = list(models_in(field.annotation))
        for child, marks in found:
            kind = typing.get_args(child.model_fields["kind"].annotation)[0] if len(found) > 1 else None
            place = f"{path}.{name}{marks}".lstrip(".")
            yield (place, kind), child
            yield from schema_sections(child, place)


SCHEMA: dict[Section, type[BaseModel]] = {("(top level)", None): PresetConfig, **dict(schema_sections(PresetConfig))}


def read_reference() -> dict[Section, dict[str, tuple[str, str, str]]]:
    """Rows of every section: key -> (meaning, default, origin)."""
    sections: dict[Section, dict[str, tuple[str, str, str]]] = {}
    for block in re.split(r"^### ", REFERENCE, flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        codes = re.findall(r"`([^`]+)`", heading)
        kinds = [code.removeprefix("kind: ") for code in codes if code.startswith("kind: ")]
        rows = {}
        for line in body.splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            if len(cells) == 4 and (match := re.fullmatch(r"`(\w+)`", cells[0])):
                assert match.group(1) not in rows, f"{heading}: {match.group(1)} stands there twice"
                rows[match.group(1)] = (cells[1], cells[2], cells[3])
        for place in (code for code in codes if not code.startswith("kind: ")):
            sections[place, kinds[0] if kinds else None] = rows
    return sections


DOCUMENTED = read_reference()


def test_every_section_of_the_schema_is_documented_and_no_other():
    assert set(DOCUMENTED) == set(SCHEMA)


@pytest.mark.parametrize("section", sorted(SCHEMA, key=str), ids=lambda section: ":".join(filter(None, section)))
def test_every_key_is_documented_and_tagged(section):
    rows, fields = DOCUMENTED[section], SCHEMA[section].model_fields
    assert set(rows) == set(fields)
    for key, (meaning, _, origin) in rows.items():
        assert len(meaning) > 3 or key == "kind", f"{section}: {key} has no explanation"
        assert origin in ORIGINS, f"{section}: {key} has the origin {origin!r}, expected one of {sorted(ORIGINS)}"


@pytest.mark.parametrize("section", sorted(SCHEMA, key=str), ids=lambda section: ":".join(filter(None, section)))
def test_every_default_is_the_one_of_the_schema(section):
    for key, field in SCHEMA[section].model_fields.items():
        told = DOCUMENTED[section][key][1]
        if field.is_required():
            assert told == "required", f"{section}: {key}"
            continue
        default = field.get_default(call_default_factory=True)
        if default is None:
            assert told == "none", f"{section}: {key}"
        elif isinstance(default, BaseModel):
            assert told == "see below", f"{section}: {key}"
        else:
            value = yaml.safe_load(told.strip("`"))
            default = list(default) if isinstance(default, tuple) else default
            assert float(value) == default if isinstance(default, float) else value == default, f"{section}: {key}"


def test_every_choice_of_a_key_is_named():
    for section, model in SCHEMA.items():
        for key, field in model.model_fields.items():
            if typing.get_origin(field.annotation) is typing.Literal:
                for choice in typing.get_args(field.annotation):
                    assert f"`{choice}`" in DOCUMENTED[section][key][0], f"{section}: {key} does not name {choice!r}"


def test_table_of_presets_names_the_files():
    table = dict(re.findall(r"^\| `(\w+)` \| `(\w+\.yaml)` \|", REFERENCE, flags=re.MULTILINE))
    files = {load_preset(path).preset: path.name for path in (ROOT / "config").glob("*.yaml")}
    assert {name: files.get(name) for name in table} == table
    assert len(table) == 5


def test_example_of_variants_is_one_for_the_laptop_preset():
    (example,) = re.findall(r"^```yaml\n(.*?)^```", REFERENCE, flags=re.MULTILINE | re.DOTALL)
    written = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    written["hwh"] |= yaml.safe_load(example)["hwh"]
    family = validate_preset(written, "example").hwh
    assert len(family.architectures) == 3
    for variant in family.architectures:
        shape = family.shape_of(family.scales[0], variant.name).model_dump()
        assert len(layers_of_shape(shape, variant.name)) == 8
