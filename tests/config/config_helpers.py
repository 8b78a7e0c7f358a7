"""What the tests of presets share: edits of a preset as plain data, and how it is refused."""

from __future__ import annotations

import pytest

from hwh_core.config import ConfigError, validate_preset


def set_key(data: dict, path: str, value: object) -> None:
    """Set ``a.b.0.c`` in nested dicts and lists."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        data = data[part]
    data[last] = value


def refusal(data: dict) -> str:
    """The one sentence with which a preset is refused."""
    with pytest.raises(ConfigError) as caught:
        validate_preset(data, "my.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.yaml: ")
    return message


def with_variant(preset: dict, **changes: object) -> dict:
    """The preset, whose first model now has a variant ``mine``: HwH-std with DeltaNet but for ``changes``."""
    variant = {"name": "mine", "base": "hwh_std", "recurrence": "deltanet"} | changes
    preset["hwh"]["architectures"] = [variant]
    preset["hwh"]["scales"][0]["models"][0]["architecture"] = "mine"
    return preset
