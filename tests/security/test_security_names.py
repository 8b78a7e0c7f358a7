"""Names in a preset become paths, wildcards and words of shell commands: others than plain names are refused."""

from __future__ import annotations

import pytest

from hwh_core.config import ConfigError, validate_preset

HOSTILE = (
    '"; touch hacked; "', "$(touch hacked)", "`touch hacked`", "'; touch hacked; '", "a\ntouch hacked", "{input}",
    "../outside", "-rf", "", "name\n",
)  # fmt: skip


def set_preset(preset, value):
    preset["preset"] = value


def set_model(preset, value):
    preset["controlled"]["models"][0]["name"] = value


def set_scale(preset, value):
    preset["hwh"]["scales"][0]["name"] = value


def set_tokenizer(preset, value):
    preset["tokenizers"][0]["name"] = preset["controlled"]["tokenizer"] = preset["hwh"]["scales"][0]["tokenizer"] = (
        value
    )


def set_source(preset, value):
    preset["data"]["sources"][0]["name"] = preset["data"]["held_out_prose_source"] = value


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("change", [set_preset, set_model, set_scale, set_tokenizer, set_source])
def test_names_that_become_paths_are_refused(minimal_preset, change, value):
    change(minimal_preset, value)
    with pytest.raises(ConfigError, match="should match pattern"):
        validate_preset(minimal_preset, "test")
