"""What the figure and the report say of the heads of trained models whose reading is known."""

from __future__ import annotations

import re
import warnings
from importlib import import_module

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.reporting import head_influence, ledger, selection
from hwh_core.reporting.head_influence import GDN, KIND_TITLES, NOPE, ROPE, WINDOW, add_kinds, by_seed
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError
from hwh_core.reporting.style import draw_and_write, use_style

MODULE = import_module("hwh_core.reporting.fig_head_influence")


def drawn(case):
    use_style()
    drawing = MODULE.draw(case.results())
    plt.close(drawing.figure)
    return drawing


def preset_with(architectures=presets.ALL, seeds=2):
    return presets.preset(scales=[presets.scale(list(architectures), seeds=seeds)], probe=presets.HEAD_PROBE)


def notes_of(root, preset, reading=tree.READING):
    tree.write_head_influence(root, preset, reading)
    return head_influence.notes(Results(root, preset))


def test_kinds_of_heads():
    table = pd.DataFrame(
        {
            "kind": ["full_attention", "full_attention", "sliding_window", "gated_deltanet"],
            "position_encoding": ["none", "rope", "rope", "recurrent"],
        }
    )
    assert add_kinds(table)["head_kind"].tolist() == [NOPE, ROPE, WINDOW, GDN]
    assert head_influence.kinds_in(add_kinds(table[2:])) == [WINDOW, GDN]


def test_values_by_seed_are_means_over_heads_with_their_error():
    heads = pd.DataFrame(
        {"architecture": "gdn", "head_kind": GDN, "seed": [0, 0, 0, 1], "needle_share": [0.1, 0.3, np.nan, 0.5]}
    )
    values = by_seed(heads, "gdn", GDN, "needle_share")
    assert values[0].value == pytest.approx(0.2)
    assert values[0].stderr == pytest.approx(0.1)
    assert (values[0].n, values[1].n, values[1].value) == (2, 1, 0.5)
    assert by_seed(heads, "gdn", NOPE, "needle_share") == {}


def test_the_report_says_that_nope_heads_retrieve_and_gdn_heads_are_local(tmp_path):
    lines = notes_of(tmp_path, preset_with())
    assert "the needle share would be 0.080, and 0.58 would come from within 128 tokens" in lines[0]
    [std] = [line for line in lines if line.startswith("What the heads of HwH-std read (2 seeds)")]
    assert "do NoPE heads read more of the needle than Gated DeltaNet heads: yes (difference 0.64" in std
    assert "(NoPE): needle share 0.645 [0.505, 0.786], best head" in std
    assert std.count("above an even spread: yes") == 1
    assert std.count("above an even spread: no, the reverse") == 1
    assert "do Gated DeltaNet heads read nearer than NoPE heads: yes (difference 0.4" in std
    assert "best head of each model 0.7" in std
    assert re.search(r"best head of each model 0\.\d{3} and 0\.\d{3} \(do these heads", std), "one number a seed"
    assert "rotating" not in std
    [rope] = [line for line in lines if "HwH-std-r read" in line]
    assert "RPD of its rotating heads: peak at group 5.00 (seed 0), peak at group 5.10 (seed 1); predicted" in rope
    [swa] = [line for line in lines if "HwH-swa read" in line]
    assert "do NoPE heads read more of the needle than sliding-window heads: yes" in swa
    assert len(lines) == 1 + len(selection.PROBED_ARCHITECTURES)


def test_the_report_says_when_it_is_the_other_way_round(tmp_path):
    reverse = tree.READING | {"none": tree.READING["recurrent"], "recurrent": tree.READING["none"]}
    [std] = [line for line in notes_of(tmp_path, preset_with(), reverse) if "heads of HwH-std read" in line]
    assert "do NoPE heads read more of the needle than Gated DeltaNet heads: no, the reverse (difference -0.6" in std
    assert "do Gated DeltaNet heads read nearer than NoPE heads: no, the reverse" in std


def test_one_seed_decides_nothing_and_what_was_not_trained_is_named(tmp_path):
    lines = notes_of(tmp_path, preset_with(presets.MAIN, seeds=1))
    [std] = [line for line in lines if "heads of HwH-std read" in line]
    undecided = "not decided, one seed"
    assert sum("so it decides none of the questions" in line for line in lines) == 1
    assert f"read more of the needle than Gated DeltaNet heads: {undecided} (difference 0.65" in std
    assert std.count(f"above an even spread: {undecided}") == 2
    assert "What the heads of HwH-std-r read: not run." in lines
    assert "What the heads of HwH-swa read: not run." in lines


def test_heads_alike_are_not_told_apart(tmp_path):
    alike = dict.fromkeys(tree.READING, (0.1, 20.0, 0.5))
    [std] = [line for line in notes_of(tmp_path, preset_with(), alike) if "heads of HwH-std read" in line]
    assert "more of the needle than Gated DeltaNet heads: not decided" in std
    assert "read nearer than NoPE heads: not decided" in std


def test_heads_that_read_sinks_alone_are_left_out_of_distances(tmp_path):
    preset = preset_with(["hwh_std"])
    tree.write_head_influence(tmp_path, preset)
    for model in preset.hwh.scales[0].models:
        path = tmp_path / "hwh" / "tiny" / model.name / "head_influence.csv"
        heads = pd.read_csv(path)
        nope = heads["position_encoding"] == "none"
        heads.loc[nope, ["median_distance_tokens", "share_within_128_tokens"]] = np.nan
        heads.to_csv(path, index=False)
        bins = pd.read_csv(path.with_name("head_influence_bins.csv"))
        bins.loc[bins["position_encoding"] == "none", "share"] = np.nan
        bins.to_csv(path.with_name("head_influence_bins.csv"), index=False)
    [std] = [line for line in head_influence.notes(Results(tmp_path, preset)) if "heads of HwH-std read" in line]
    assert "NoPE): needle share 0.6" in std
    assert "median distance undefined" in std
    assert "read nearer" not in std
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the layout warns where it gives up
        draw_and_write("head_influence", Results(tmp_path, preset), tmp_path / "fig_head_influence")
    use_style()
    drawing = MODULE.draw(Results(tmp_path, preset))
    plt.close(drawing.figure)
    titles = [axis.get_title().replace("\n", " ") for part in drawing.figure.subfigs for axis in part.axes]
    assert f"every head (log axes) but {2 * nope.sum()} that read the first 4 tokens alone" in titles


def test_a_preset_without_the_probe_says_so_and_draws_nothing(laptop):
    [line] = head_influence.notes(laptop.results())
    assert "not run in this preset (`hwh.probe`)" in line
    assert line in ledger.markdown([], laptop.results())
    with pytest.raises(ReportError, match=r"figure head_influence cannot be made.*hwh\.probe"):
        draw_and_write("head_influence", laptop.results(), "unused")


def test_controls_and_allocations_are_not_probed():
    preset = preset_with()
    scale, models = selection.probed(preset)
    assert scale.name == "tiny"
    assert [model.name for model in models[:3]] == ["hwh_std-s0", "hwh_std-s1", "hwh_std_r-s0"]
    assert {model.architecture for model in models} == set(selection.PROBED_ARCHITECTURES)


def test_the_csv_holds_what_is_drawn(wide):
    data = drawn(wide).data
    assert set(data["part"]) == {"profiles", "heads", "if all tokens weighed alike"}
    profiles = data[data["part"] == "profiles"]
    sums = profiles.groupby(["architecture", "head_kind"])["share"].sum()
    np.testing.assert_allclose(sums, 1.0, rtol=1e-6)
    assert sums.index.tolist() == [
        ("gdn", GDN), ("hwh_std", GDN), ("hwh_std", NOPE), ("hwh_std_r", GDN), ("hwh_std_r", ROPE), ("hwh_swa", NOPE),
        ("hwh_swa", WINDOW), ("inter", GDN), ("inter", NOPE), ("transformer", ROPE),
    ]  # fmt: skip
    assert ((profiles["low"] <= profiles["share"] + 1e-9) & (profiles["share"] <= profiles["high"] + 1e-9)).mean() > 0.9
    scale, models = selection.probed(wide.preset)
    heads = wide.results().head_influence(scale, models)
    assert (data["part"] == "heads").sum() == len(heads)


def test_even_shares_are_those_of_equal_weights():
    bins, sinks = [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16)], 2
    weights = np.array([[float(sinks <= s <= t) for s in range(16)] for t in range(10, 16)])
    weights /= weights.sum(axis=1, keepdims=True)
    expected = [
        np.mean([sum(row[t - d] for d in range(low, high) if t >= d) for t, row in enumerate(weights, 10)])
        for low, high in bins
    ]
    np.testing.assert_allclose(MODULE.even_shares(bins, range(10, 16), sinks), expected)


def test_every_kind_has_its_own_colour_line_and_marker_and_stands_in_the_legend(wide):
    looks = list(MODULE.LOOKS.values())
    assert all(len({str(look[i]) for look in looks}) == len(KIND_TITLES) for i in range(3))
    figure = drawn(wide).figure
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*KIND_TITLES.values(), "if all tokens weighed alike", "middle 80% of heads (lines: mean)"]
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[:6] == [f"{selection.ARCHITECTURE_TITLES[name]} (2 seeds)" for name in selection.PROBED_ARCHITECTURES]


def test_heads_below_the_lowest_share_stay_in_the_panel(tmp_path):
    preset = preset_with(["hwh_std"], seeds=1)
    tree.write_head_influence(tmp_path, preset, tree.READING | {"recurrent": (1e-9, 0.01, 0.0)})
    use_style()
    drawing = MODULE.draw(Results(tmp_path, preset))
    plt.close(drawing.figure)
    axis = drawing.figure.axes[-1]
    for line in axis.lines[:2]:
        assert (line.get_ydata() >= axis.get_ylim()[0]).all()
        assert (line.get_xdata() >= axis.get_xlim()[0]).all()
        assert (line.get_xdata() <= axis.get_xlim()[1]).all()
    assert drawing.data["needle_share"].min() < 2e-9, "the CSV keeps the number itself"
