"""Head groups and architectures: allocation rules, refused fields, parameter counts (no torch needed)."""

import subprocess
import sys

import pytest

from hwh_core.architectures import (
    ARCHITECTURES,
    architecture,
    describe_allocation,
    full_attention_fraction,
    layer_zone,
    layers_of_shape,
    parameter_count,
)
from hwh_core.heads import (
    FULL_ATTENTION,
    GATED_DELTANET,
    SLIDING_WINDOW,
    ArchitectureError,
    HeadGroup,
    check_layers,
    layer_width,
    layers_from_dicts,
    layers_to_dicts,
)

PAPER = {
    "num_layers": 24,
    "hidden_size": 1024,
    "attention_head_dim": 64,
    "gdn_head_dim": 128,
    "qk_norm": True,
    "gate": True,
    "conv_size": 4,
    "rope_theta": 10000.0,
    "attention_output_norm": False,
}
TINY = PAPER | {"num_layers": 8, "hidden_size": 128, "attention_head_dim": 16, "gdn_head_dim": 16}


def layer_fraction(layer):
    return sum(group.width for group in layer if group.kind == FULL_ATTENTION) / layer_width(layer)


def test_claim_n6_full_attention_fraction_of_hwh_std():
    layers = architecture("hwh_std", **PAPER)
    assert full_attention_fraction(layers) == pytest.approx(4.25 / 24, abs=0)
    assert round(full_attention_fraction(layers), 4) == 0.1771
    assert max(layer_fraction(layer) for layer in layers) == 0.25
    assert [layer_fraction(layers[index]) for index in (0, 1, 5, 6, 17, 18, 22, 23)] == [
        0, 0.125, 0.125, 0.25, 0.25, 0.125, 0.125, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(("num_layers", "fraction"), [(8, 0.156), (12, 0.167), (16, 0.172), (20, 0.175), (24, 0.177)])
def test_fraction_at_other_depths(num_layers, fraction):
    layers = architecture("hwh_std", **(PAPER | {"num_layers": num_layers}))
    assert full_attention_fraction(layers) == pytest.approx(fraction, abs=5e-4)


@pytest.mark.parametrize("num_layers", range(4, 33))
def test_allocation_is_symmetric_and_bounded_at_any_depth(num_layers):
    layers = architecture("hwh_std", **(TINY | {"num_layers": num_layers}))
    fractions = [layer_fraction(layer) for layer in layers]
    assert fractions == fractions[::-1]
    assert fractions[0] == 0
    assert max(fractions) == 0.25
    rising = fractions[: (num_layers + 1) // 2]
    assert rising == sorted(rising)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("sizes", [PAPER, PAPER | {"hidden_size": 2048}, TINY], ids=["1024", "2048", "128"])
def test_widths_add_up_in_every_layer(name, sizes):
    layers = architecture(name, **sizes)
    assert len(layers) == sizes["num_layers"]
    assert {layer_width(layer) for layer in layers} == {sizes["hidden_size"]}
    for layer in layers:
        for group in layer:
            assert group.heads * group.head_dim == group.width
            assert group.key_value_heads == group.heads


def test_heads_of_the_paper_sizes():
    outer, middle = (architecture("hwh_std", **PAPER)[index] for index in (1, 12))
    assert [(g.kind, g.heads, g.head_dim) for g in outer] == [(FULL_ATTENTION, 2, 64), (GATED_DELTANET, 7, 128)]
    assert [(g.kind, g.heads, g.head_dim) for g in middle] == [(FULL_ATTENTION, 4, 64), (GATED_DELTANET, 6, 128)]
    wide = architecture("hwh_std", **(PAPER | {"hidden_size": 2048}))
    assert [g.heads for g in wide[1]] == [4, 14]
    assert [g.heads for g in wide[12]] == [8, 12]


def test_what_distinguishes_the_architectures():
    built = {name: architecture(name, **TINY) for name in ARCHITECTURES}
    assert {g.rope_theta for layer in built["transformer"] for g in layer} == {10000.0}
    assert {g.kind for layer in built["gdn"] for g in layer} == {GATED_DELTANET}
    assert [layer[0].kind for layer in built["inter"]] == ([GATED_DELTANET] * 3 + [FULL_ATTENTION]) * 2
    assert {g.rope_theta for layer in built["inter"] for g in layer} == {None}

    def full_rope(name):
        return {g.rope_theta for layer in built[name] for g in layer if g.kind == FULL_ATTENTION}

    assert full_rope("hwh_std") == full_rope("hwh_swa") == {None}
    assert full_rope("hwh_std_r") == {10000.0}
    windows = {(g.kind, g.window, g.rope_theta) for layer in built["hwh_swa"] for g in layer}
    assert windows == {(FULL_ATTENTION, None, None), (SLIDING_WINDOW, 128, 10000.0)}
    assert [g.kind for g in built["hwh_swa"][0]] == [SLIDING_WINDOW]
    assert [layer_fraction(layer) for layer in built["hwh_uniform13"]] == [0.25] * 8
    assert [layer_fraction(layer) for layer in built["hwh_outer13"]] == [0, *[0.25] * 6, 0]
    assert built["hwh_outer13"] != built["hwh_std"]


def test_four_layers_do_not_tell_the_outer_ablation_apart():
    four = TINY | {"num_layers": 4}
    assert architecture("hwh_std", **four) == architecture("hwh_outer13", **four)


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [
        ("transformer", 380.16, 1389.5),
        ("gdn", 380.85, 1391.6),
        ("inter", 380.68, 1391.1),
        ("hwh_uniform13", 380.68, 1391.1),
        ("hwh_outer13", 380.70, 1391.1),
        ("hwh_std", 380.73, 1391.3),
    ],
)
def test_parameter_counts_of_the_paper_scales(name, small, large):
    for hidden_size, expected, tolerance in ((1024, small, 0.0051), (2048, large, 0.051)):
        count = parameter_count(
            architecture(name, **(PAPER | {"hidden_size": hidden_size})),
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 5 // 2,
            vocab_size=32000,
            tie_embeddings=False,
        )
        assert count / 1e6 == pytest.approx(expected, abs=tolerance)


def test_table_4_rows():
    rows = describe_allocation(architecture("hwh_std", **PAPER))
    by_zone = {}
    for row in rows:
        by_zone.setdefault(row["zone"], set()).add(
            (row["kind"], row["position_encoding"], row["width"], row["fraction"])
        )
    assert by_zone == {
        "first and last": {(GATED_DELTANET, "recurrent", 1024, 1.0)},
        "outer": {(FULL_ATTENTION, "none", 128, 0.125), (GATED_DELTANET, "recurrent", 896, 0.875)},
        "middle": {(FULL_ATTENTION, "none", 256, 0.25), (GATED_DELTANET, "recurrent", 768, 0.75)},
    }
    assert len(rows) == 2 + 2 * 22
    assert [layer_zone(index, 8) for index in range(8)] == [
        "first and last", "outer", *["middle"] * 4, "outer", "first and last",
    ]  # fmt: skip


def test_controlled_transformer_may_be_wider_than_the_stream():
    shape = {
        "num_layers": 2,
        "hidden_size": 64,
        "attention_head_dim": 64,
        "num_attention_heads": 4,
        "gate": False,
    }
    layers = layers_of_shape(shape, "transformer", rope_theta=1e6, qk_norm=False)
    assert [(g.heads, g.head_dim, g.rope_theta, g.qk_norm) for layer in layers for g in layer] == [
        (4, 64, 1e6, False)
    ] * 2


def test_qk_norm_of_heads_without_rope_has_its_own_switch():
    layers = architecture("hwh_std", **TINY, nope_qk_norm=False)
    assert {g.qk_norm for layer in layers for g in layer if g.kind == FULL_ATTENTION} == {False}
    assert {g.qk_norm for layer in architecture("hwh_std_r", **TINY, nope_qk_norm=False) for g in layer} == {
        True,
        False,
    }


def test_layers_survive_json():
    for name in ARCHITECTURES:
        layers = architecture(name, **TINY)
        assert layers_from_dicts(layers_to_dicts(layers)) == layers


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"kind": "linear", "heads": 1, "head_dim": 16}, ["linear", "gated_deltanet"]),
        ({"kind": FULL_ATTENTION, "heads": 0, "head_dim": 16}, ["heads", "0"]),
        ({"kind": FULL_ATTENTION, "heads": 2, "head_dim": 16, "window": 8}, ["window", "8"]),
        ({"kind": FULL_ATTENTION, "heads": 2, "head_dim": 16, "conv_size": 4}, ["conv_size", "4"]),
        ({"kind": FULL_ATTENTION, "heads": 3, "head_dim": 16, "kv_heads": 2}, ["kv_heads", "heads = 3"]),
        ({"kind": FULL_ATTENTION, "heads": 3, "head_dim": 15, "rope_theta": 1e4}, ["head_dim", "15"]),
        ({"kind": FULL_ATTENTION, "heads": 3, "head_dim": 16, "rope_theta": 0.5}, ["rope_theta", "0.5"]),
        ({"kind": SLIDING_WINDOW, "heads": 2, "head_dim": 16}, ["window", "None"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16}, ["conv_size"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16, "conv_size": 4, "rope_theta": 1e4}, ["rope_theta"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16, "conv_size": 4, "qk_norm": True}, ["qk_norm"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16, "conv_size": 4, "window": 4}, ["window"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16, "conv_size": 4, "kv_heads": 2}, ["kv_heads"]),
        ({"kind": GATED_DELTANET, "heads": 2, "head_dim": 16, "conv_size": 4, "output_norm": True}, ["output_norm"]),
        ({"kind": FULL_ATTENTION, "heads": 2, "head_dim": 16, "colour": "red"}, ["colour"]),
        ({"kind": FULL_ATTENTION, "heads": 2}, ["head_dim"]),
    ],
)
def test_head_groups_that_cannot_be(fields, names):
    with pytest.raises(ArchitectureError) as error:
        HeadGroup.from_dict(fields)
    for name in names:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("gdn_std", {}, ["gdn_std", "hwh_std"]),
        ("hwh_std", {"num_layers": 3}, ["num_layers = 3", "4"]),
        ("inter", {"num_layers": 6}, ["num_layers = 6", "multiple of 4"]),
        ("hwh_std", {"attention_head_dim": 48}, ["attention_head_dim = 48"]),
        ("hwh_std", {"gdn_head_dim": 32}, ["gdn_head_dim = 32", "112"]),
        ("gdn", {"gdn_head_dim": None}, ["gdn_head_dim"]),
        ("hwh_std", {"hidden_size": 132}, ["132"]),
        ("transformer", {"num_layers": 0}, ["num_layers = 0"]),
    ],
)
def test_sizes_that_do_not_fit_are_named(name, change, words):
    with pytest.raises(ArchitectureError) as error:
        architecture(name, **(TINY | change))
    for word in words:
        assert word in str(error.value)


def test_layers_of_unequal_width_are_refused():
    first, second = (HeadGroup(FULL_ATTENTION, heads, 16) for heads in (2, 3))
    with pytest.raises(ArchitectureError, match="layer 1 is 48"):
        check_layers([(first,), (second,)])
    with pytest.raises(ArchitectureError, match="layer 1 has no head group"):
        check_layers([(first,), ()])


def test_needs_no_torch():
    code = "import sys, hwh_core.architectures; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_variant_may_list_a_fraction_for_every_layer():
    listed = [0, 0.125, 0.5, 0.375, 0.25, 0.125, 0.0625 * 2, 1]
    shape = TINY | {"variant": {"name": "mine", "base": "hwh_std", "full_attention_fractions": listed}}
    assert [layer_fraction(layer) for layer in layers_of_shape(shape, "mine")] == listed


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"base": "hwh_std", "full_attention_fractions": [0.25] * 7}, ["7 entries", "8 layers"]),
        ({"base": "hwh_std", "full_attention_fractions": [0.3] * 8}, ["layer 0", "3/10"]),
        ({"base": "inter", "full_attention_fractions": [0.25] * 8}, ["inter", "hwh_std"]),
        ({"base": "hwh_std", "full_attention_queries_per_key": 2}, ["full_attention_queries_per_key = 2", "1 heads"]),
        ({"base": "hwh_swa", "sliding_window_queries_per_key": 5}, ["sliding_window_queries_per_key = 5"]),
        ({"base": "hwh_std", "name": "another"}, ["'mine'", "'another'"]),
    ],
)
def test_variants_that_cannot_be(variant, words):
    with pytest.raises(ArchitectureError) as error:
        layers_of_shape(TINY | {"variant": {"name": "mine"} | variant}, "mine")
    for word in words:
        assert word in str(error.value)
