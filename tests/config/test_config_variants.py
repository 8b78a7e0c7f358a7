"""Variants of architectures: a training is told of them, and one that changes nothing or cannot be is refused."""

from __future__ import annotations

import re

import pytest
from config_helpers import refusal, with_variant

from hwh_core.architectures import layers_of_shape
from hwh_core.config import ArchitectureVariant, validate_preset
from hwh_core.config.variants import EFFECTS
from hwh_core.scripting import UserError
from hwh_core.training.settings import parse_settings


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


def test_a_variant_that_is_its_base_or_another_one_is_refused(minimal_preset):
    same = [{"name": "one", "base": "hwh_std", "recurrence": "deltanet"}]
    minimal_preset["hwh"]["architectures"] = [*same, same[0] | {"name": "two"}]
    assert "'one' and 'two' are one architecture under two names" in refusal(minimal_preset)
    minimal_preset["hwh"]["architectures"] = [{"name": "one", "base": "hwh_std", "recurrence": "gated_deltanet"}]
    assert "'one' changes nothing of 'hwh_std'; give it a key, or name 'hwh_std'" in refusal(minimal_preset)
