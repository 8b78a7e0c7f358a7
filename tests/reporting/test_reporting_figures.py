"""What the figures show: positions, orientation, scales, files, and the same bytes at every run."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import ConfigError, PresetConfig, validate_preset
from hwh_core.files import sha256_of
from hwh_core.reporting import panels
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError, figure_name
from hwh_core.reporting.style import COLOUR_MAPS, draw_and_write, use_style
from hwh_core.rope import inverse_frequencies, predicted_index
from hwh_core.scripting import UserError
from hwh_core.verification import settings_differences

CAPTIONS = Path(panels.__file__).parents[2] / "workflow/report"


def draw(case, number: int):
    use_style()
    drawing = import_module(f"hwh_core.reporting.fig{number}").draw(case.results())
    plt.close(drawing.figure)
    return drawing


def test_a_figure_is_pdf_png_csv_and_a_manifest(laptop, tmp_path):
    paths = draw_and_write(7, laptop.results(), tmp_path / "figures" / "fig7")
    assert {path.name for path in paths} == {"fig7.pdf", "fig7.png", "fig7.csv"}
    assert (tmp_path / "figures/fig7.pdf").read_bytes()[:5] == b"%PDF-"
    assert (tmp_path / "figures/fig7.png").read_bytes()[:4] == b"\x89PNG"
    manifest = json.loads((tmp_path / "figures/fig7.pdf.manifest.json").read_text())
    assert manifest["settings"]["drawn_figure"] == 7
    assert [name for name in manifest["inputs"] if name.endswith("heads.csv")]
    assert manifest["beside"]["fig7.csv"] == sha256_of(tmp_path / "figures/fig7.csv")


def test_a_figure_has_the_same_bytes_at_every_run(laptop, tmp_path):
    first = draw_and_write(4, laptop.results(), tmp_path / "a")
    second = draw_and_write(4, laptop.results(), tmp_path / "b")
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.suffix


def test_the_csv_of_figure_3_peaks_where_the_band_was_planted(laptop):
    data = draw(laptop, 3).data
    assert set(data["metric"]) == {"RFIS", "RPD"}
    rpd = data[data["metric"] == "RPD"]
    for (theta, length, seed), rows in rpd.groupby(["rope_theta", "length_tokens", "seed"]):
        peak = rows.groupby("frequency_group")["value"].mean().idxmax()
        assert abs(peak - (predicted_index(64, theta, length) + 0.1 * seed)) <= 0.5
    for column, name in (("predicted_covariance", "covariance"), ("predicted_oka", "oka")):
        row = rpd.iloc[0]
        assert row[column] == pytest.approx(predicted_index(64, row["rope_theta"], row["length_tokens"], name))


def test_a_band_that_did_not_pass_the_null_is_not_marked_as_observed(tmp_path):
    preset = presets.preset()
    tree.write_controlled(tmp_path, preset, verdict="none")
    use_style()
    drawing = import_module("hwh_core.reporting.fig3").draw(Results(tmp_path, preset))
    triangles = [line for axis in drawing.figure.axes for line in axis.lines if line.get_marker() == "^"]
    plt.close(drawing.figure)
    assert triangles == []
    assert drawing.data["observed_peak"].isna().all()


def triangles(axis) -> list[float]:
    """Places of the observed marks of a panel."""
    return sorted(float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "^")


@pytest.mark.parametrize("number", [3, 11, 12])
def test_observed_peaks_are_marked_one_a_seed_and_never_as_their_mean(tmp_path, number):
    preset = presets.preset()
    names = [model.name for model in preset.controlled.models]
    peaks = dict(zip(names, (13.97, 10.31, 7.2, 6.0, 11.8, 13.9), strict=True))
    tree.write_controlled(tmp_path, preset, peaks=peaks)
    drawing = draw(type("Case", (), {"results": lambda self: Results(tmp_path, preset)})(), number)
    maps = [axis for axis in drawing.figure.axes if any(t.get_text().startswith("seed ") for t in axis.texts)]
    marked = {tuple(triangles(axis)) for axis in maps}
    base = {(10.31, 13.97)}
    expected = base | ({(13.9,)} if number == 12 else {(6.0, 7.2), (11.8,)})
    assert marked == expected
    seeds = drawing.data[drawing.data["seed"] >= 0]
    assert {tuple(sorted(rows["observed_peak"].unique())) for _, rows in seeds.groupby(
        ["rope_theta", "length_tokens", "qk_norm"])} == expected  # fmt: skip
    legend = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert any("one a seed" in text for text in legend)
    assert not any("mean over seeds" in text for text in legend)


def test_a_peak_stands_at_the_lower_edge_of_the_layers_of_its_seed(laptop):
    axis = draw(laptop, 3).figure.axes[0]
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axis.lines if line.get_marker() == "^"]
    peak = predicted_index(64, 1e4, 256)
    np.testing.assert_allclose(marks, [(peak, 3.5), (peak + 0.1, 7.5)])


@pytest.mark.parametrize("number", [3, 11, 12])
def test_rows_are_named_alike_with_one_seed_and_with_several(laptop, number):
    named = set()
    for axis in draw(laptop, number).figure.axes:
        seeds = [text.get_text() for text in axis.texts if text.get_text().startswith("seed ")]
        if not seeds:
            continue
        named.add(tuple(seeds))
        assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1", "2", "3"] * len(seeds)
    assert named == {("seed 0", "seed 1"), ("seed 0",)}


def test_the_profiles_of_figure_12_are_all_in_the_legend_and_within_their_axis(laptop):
    figure = draw(laptop, 12).figure
    axis = next(axis for axis in figure.axes if axis.get_ylabel() == "RPD / its maximum")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    curves = [line for line in axis.lines if len(line.get_xdata()) == 32]
    handles = figure.legends[0].legend_handles
    assert {line.get_color() for line in curves} <= {handle.get_color() for handle in handles}
    assert [label for label in labels if label.startswith("right: mean profile")] == [
        "right: mean profile, QKNorm", "right: mean profile, no QKNorm"
    ]  # fmt: skip
    assert axis.get_ylim()[1] < 1.1
    assert axis.get_yticks()[-1] == 1.0
    assert len(triangles(axis)) == 3
    lines = [line for line in axis.lines if len(line.get_xdata()) == 2]
    assert {line.get_linestyle() for line in lines} == {"--", ":"}


@pytest.mark.parametrize("number", [2, 3, 9, 11, 12])
def test_legend_lines_look_like_the_drawn_ones(laptop, number):
    figure = draw(laptop, number).figure
    drawn = {
        (line.get_linestyle(), line.get_color(), line.get_linewidth())
        for axis in figure.axes
        for line in axis.lines
        if line.get_path_effects() == panels.THIN_OUTLINE
    }
    handles = [h for h in figure.legends[0].legend_handles if h.get_path_effects() == panels.THIN_OUTLINE]
    assert drawn
    assert {(h.get_linestyle(), h.get_color(), h.get_linewidth()) for h in handles} == drawn


def test_predicted_marks_that_nearly_coincide_stand_at_different_heights():
    assert panels.mark_levels([20.9, 17.0, 21.3], 1.5) == [0, 0, 1]
    assert panels.mark_levels([1.0, 1.1, 1.2, 1.3], 1.5) == [0, 1, 2, 0]
    use_style()
    figure, axis = plt.subplots()
    panels.frequency_axis(axis, inverse_frequencies(64, 1e4))
    panels.mark_predicted(axis, {"a": 20.9, "b": 21.3})
    spans = {line.get_label(): sorted(line.get_ydata()) for line in axis.lines[::2]}
    plt.close(figure)
    assert spans["a"][1] < spans["b"][0]


def test_the_title_of_layer_means_counts_its_triangles(laptop, tmp_path):
    figure = draw(laptop, 9).figure
    assert len(triangles(figure.axes[1])) == 2
    assert "(triangles: bands found in RPD, r=13.2, 19.2)" in figure._suptitle.get_text()
    tree.write_pretrained(tmp_path, laptop.preset)
    path = tmp_path / "pretrained/smollm2-135m/bands.json"
    bands = json.loads(path.read_text())
    for clusters, note in (
        (bands["clusters"][:1], "(triangle: band found in RPD, r=13.2)"),
        ([], "(no band was found"),
    ):
        tree.put_json(path, bands | {"clusters": clusters})
        alone = draw(type("Case", (), {"results": lambda self: Results(tmp_path, laptop.preset)})(), 9).figure
        assert len(triangles(alone.axes[1])) == len(clusters)
        assert note in alone._suptitle.get_text()


def test_figure_11_subtracts_the_model_at_initialisation(laptop):
    data = draw(laptop, 11).data
    change = data[data["quantity"] == "trained minus initialisation"].reset_index(drop=True)
    model = laptop.preset.controlled.models[0]
    maps = laptop.results().controlled_maps(model)
    expected = (maps.mean("rpd") - maps.mean("rpd_initial")).mean(axis=1)
    ours = change[change["model"] == model.name]["value"].to_numpy().reshape(expected.shape)
    np.testing.assert_allclose(ours, expected, atol=1e-9)


def test_figure_2_sorts_heads_by_qr_score(laptop):
    data = draw(laptop, 2).data
    scores = data[(data["metric"] == "RFIS") & (data["frequency_group"] == 0)]["qr"].to_numpy()
    assert (np.diff(scores) <= 0).all()


def cells(accuracy) -> pd.DataFrame:
    rows = [
        {"architecture": "gdn", "length": n, "depth": d, "accuracy": accuracy(n, d), "n": 4, "seeds": 1}
        for n in (128, 256, 512)
        for d in (0, 50, 100)
    ]
    return pd.DataFrame(rows)


def test_a_needle_grid_has_full_depth_on_top_and_the_mean_on_the_same_scale():
    use_style()
    figure, axis = plt.subplots()
    image = panels.needle_grid(axis, cells(lambda n, d: 100.0 if d == 100 else 0.0), "GDN", 256)
    shown = np.asarray(image.get_array())
    plt.close(figure)
    assert (shown[0] == 100).all()
    assert (shown[1:] == 0).all()
    assert [label.get_text() for label in axis.get_yticklabels()] == ["100", "50", "0"]
    assert image.get_clim() == (0, 100)
    curve = next(line for line in axis.lines if line.get_marker() == "o")
    assert curve.get_color() == "white"
    np.testing.assert_allclose(curve.get_ydata(), (1 - 1 / 3) * 2)
    boundary = next(line for line in axis.lines if line.get_linestyle() == "--")
    assert boundary.get_xdata()[0] == pytest.approx(1.5)
    assert [text.get_text() for text in axis.texts] == ["≤ L", "> L"]
    # Lines between the cells: 0 and 100% are whole rows.
    np.testing.assert_allclose(axis.get_yticks(minor=True), [0.5, 1.5])
    np.testing.assert_allclose(axis.get_xticks(minor=True), [0.5, 1.5])


@pytest.mark.parametrize(
    ("training_length", "note", "lines"),
    [(256, "(256 | 512 tokens)", 1), (300, "(256 | 512 tokens)", 1), (64, "all lengths are beyond", 0),
     (512, "all lengths are up to", 0)],
)  # fmt: skip
def test_the_legend_says_where_the_dashed_line_stands(training_length, note, lines):
    use_style()
    figure, axis = plt.subplots()
    panels.needle_grid(axis, cells(lambda n, d: 0.0), "GDN", training_length)
    plt.close(figure)
    assert note in panels.boundary_note([128, 256, 512], training_length)
    curve, border = panels.needle_handles([128, 256, 512], training_length)
    assert (curve.get_linestyle(), border.get_linestyle()) == ("-", "--" if lines else "None")
    assert note in border.get_label()
    assert sum(line.get_linestyle() == "--" for line in axis.lines) == lines


def test_uneven_lengths_are_said_to_be_not_to_scale():
    assert panels.length_axis([512, 1024, 1536]) == "context length (tokens)"
    assert panels.length_axis([512, 1024, 2048]).endswith("not to scale")


def test_many_lengths_are_all_labelled_upright():
    use_style()
    lengths = [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192]
    rows = [{"length": length, "depth": depth, "accuracy": 0.0} for length in lengths for depth in (0, 100)]
    figure, axis = plt.subplots()
    panels.needle_grid(axis, pd.DataFrame(rows), "GDN", 2048)
    labels = axis.get_xticklabels()
    plt.close(figure)
    assert [label.get_text() for label in labels] == ["512", "1K", "1.5K", "2K", "3K", "4K", "6K", "8K"]
    assert {label.get_rotation() for label in labels} == {90}


def test_a_strip_says_where_its_colours_end_below_the_largest_value():
    use_style()
    figure, axes = plt.subplots(1, 2)
    panels.strip(axes[0], np.array([0.0, 0.5, 0.5]), "qr")
    panels.strip(axes[1], np.array([0.01] * 200 + [9.0]), "ld")
    labels = [axis.get_xticklabels()[0].get_text() for axis in axes]
    plt.close(figure)
    assert labels == ["QR\n0 to\n0.5", "LD\n0 to ≥\n0.01"]


@pytest.mark.parametrize(("rows", "expected"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (8, list(range(8))),
                                                (11, [0, 2, 4, 6, 8, 10]), (21, [0, 4, 8, 12, 16, 20])])  # fmt: skip
def test_depth_ticks_hold_the_outer_rows(rows, expected):
    use_style()
    figure, axis = plt.subplots()
    panels.outer_ticks(axis, [str(row) for row in range(rows)])
    plt.close(figure)
    assert axis.get_yticks().tolist() == expected


def test_panels_of_a_needle_sheet_keep_their_height_under_a_long_title(tmp_path):
    mix = {"sequence_share": 0.5, "pairs_per_sequence": 10, "repeat_share": 0.4, "value_digits": [4, 7]}
    heights = []
    for name, more in (("plain", {}), ("mixed", {"retrieval_mix": mix})):
        preset = presets.preset(scales=[presets.scale(presets.MAIN) | more])
        tree.write_hwh(tmp_path / name, preset)
        use_style()
        figure = import_module("hwh_core.reporting.fig4").draw(Results(tmp_path / name, preset)).figure
        figure.draw_without_rendering()
        heights.append(figure.axes[0].get_position().height * figure.get_figheight())
        plt.close(figure)
    assert heights[1] == pytest.approx(heights[0], rel=0.15)


@pytest.mark.parametrize(("percent", "row"), [(100.0, 0.0), (50.0, 1.0), (0.0, 2.0)])
def test_the_mean_curve_meets_the_depth_axis_at_equal_percentages(percent, row):
    use_style()
    figure, axis = plt.subplots()
    panels.needle_grid(axis, cells(lambda n, d: percent), "GDN", 256)
    plt.close(figure)
    curve = next(line for line in axis.lines if line.get_marker() == "o")
    np.testing.assert_allclose(curve.get_ydata(), row)


def test_frequency_axes_show_periods_in_tokens_beside_the_group():
    use_style()
    figure, axis = plt.subplots()
    panels.frequency_axis(axis, inverse_frequencies(64, 1e4))
    top = axis.child_axes[0]
    labels = [label.get_text() for label in top.get_xticklabels()]
    plt.close(figure)
    assert axis.get_xlabel() == "frequency group r"
    assert top.get_xlabel() == "period (tokens)"
    assert labels == ["6.3", "62.8", "628", "6.28k"]
    assert panels.period_text(np.inf) == "∞"
    assert panels.period_text(2.5e6) == "2.5M"


def test_colour_maps_are_perceptually_uniform():
    assert set(COLOUR_MAPS.values()) <= {"viridis", "cividis", "magma", "inferno", "plasma"}


def test_ablation_bars_say_what_was_not_run(tmp_path):
    preset = presets.preset(scales=[presets.scale(presets.ALL)])
    tree.write_hwh(tmp_path, preset)
    for model in preset.hwh.scales[0].models:
        folder = tmp_path / "hwh/tiny" / model.name
        few = {name: metrics for name, metrics in tree.TASKS.items() if name not in ("swde", "fda", "squad_completion")}
        tree.write_scores(folder, preset.hwh.scales[0], model, tasks=few)
    use_style()
    drawing = import_module("hwh_core.reporting.fig5").draw(Results(tmp_path, preset))
    texts = [text.get_text() for text in drawing.figure.axes[0].texts]
    plt.close(drawing.figure)
    assert [text for text in texts if text == "not run"] == ["not run"] * 3
    # Bars are named by their number, so that one of 0 does not look like one that is missing.
    assert len(texts) == 3 * 5
    rows = drawing.data[drawing.data["group"] == "real-world retrieval"]
    assert rows["percent"].isna().all()


def test_candidate_bands_without_a_base_lie_on_the_models_own_grid():
    from hwh_core.reporting.headfigures import candidates

    model = presets.preset(
        models=[presets.pretrained("m") | {"candidate_bands": [{"label": "own grid", "length": 2048}]}]
    ).pretrained.models[0]
    found = candidates(model, inverse_frequencies(64, 1e4))
    assert list(found.values()) == [pytest.approx(predicted_index(64, 1e4, 2048))]
    broken = model.model_copy(update={"candidate_bands": [{"label": "x"}]})
    with pytest.raises(UserError, match=r"candidate_bands: row .* lacks 'length'"):
        candidates(broken, inverse_frequencies(64, 1e4))


# ------------------------------------------------------------------ bad input


def test_a_missing_file_is_named_with_the_way_to_make_it(laptop, tmp_path):
    with pytest.raises(ReportError, match=r"probe_x1\.npz does not exist; make it with `snakemake"):
        draw_and_write(3, Results(tmp_path, laptop.preset), tmp_path / "fig3")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_probe_is_named(tmp_path):
    preset = presets.preset()
    tree.write_controlled(tmp_path, preset)
    path = tmp_path / "controlled" / preset.controlled.models[0].name / "probe_x1.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ReportError, match=r"probe_x1\.npz is no readable file of arrays"):
        draw_and_write(3, Results(tmp_path, preset), tmp_path / "fig3")


def test_a_probe_without_an_array_or_with_nan_is_named(tmp_path):
    preset = presets.preset()
    tree.write_controlled(tmp_path, preset)
    model = preset.controlled.models[0]
    path = tmp_path / "controlled" / model.name / "probe_x1.npz"
    maps = tree.controlled_maps(model, 14.0)
    np.savez(path, **{key: value for key, value in maps.items() if key != "inv_freq"})
    with pytest.raises(ReportError, match="lacks the array 'inv_freq'"):
        Results(tmp_path, preset).controlled_maps(model)
    maps["rpd"][0, 0, 0, 0] = np.nan
    np.savez(path, **maps)
    with pytest.raises(ReportError, match="not finite"):
        Results(tmp_path, preset).controlled_maps(model)


def test_heads_that_do_not_fit_the_probe_are_refused(tmp_path):
    preset = presets.preset()
    tree.write_pretrained(tmp_path, preset)
    path = tmp_path / "pretrained/smollm2-135m/heads.csv"
    pd.read_csv(path).iloc[1:].to_csv(path, index=False)
    with pytest.raises(ReportError, match=r"heads\.csv of smollm2-135m has 71 heads"):
        draw_and_write(2, Results(tmp_path, preset), tmp_path / "fig2")


@pytest.mark.parametrize(
    ("text", "named"), [("{", "not valid JSON"), ("[]", "expected a JSON object"), ("\udcff", "not valid JSON")]
)
def test_damaged_json_is_named(tmp_path, text, named):
    (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReportError, match=rf"x\.json.*{named}"):
        Results(tmp_path, presets.preset()).json("x.json")


@pytest.mark.parametrize(("text", "named"), [("", "no CSV table"), ("a,b\n1,2\n", "lacks the columns")])
def test_damaged_tables_are_named(tmp_path, text, named):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ReportError, match=rf"x\.csv.*{named}"):
        Results(tmp_path, presets.preset()).table("x.csv", {"layer"})


# ------------------------------------------------------------------ models of the figures of pretrained models


def several(figures: list[dict], names: tuple[str, ...] = ("mine", "Gemma-7B")) -> PresetConfig:
    preset = presets.preset(models=[presets.pretrained(name) for name in names])
    data = preset.model_dump(mode="json")
    data["pretrained"]["figures"] = figures
    return validate_preset(data, "test")


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    """Results of a model of one's own and of Gemma-7B, both imagined."""
    root = tmp_path_factory.mktemp("two")
    tree.write_pretrained(root, several([]), layers=18, heads=4)
    return root


@pytest.mark.parametrize("number", [2, 7, 9, "qk_norm", "causal"])
def test_a_figure_draws_every_model_or_those_that_the_preset_names(two_models, number):
    use_style()
    module = import_module(f"hwh_core.reporting.{figure_name(number)}")
    for figures, expected in (([], ["mine", "Gemma-7B"]), ([{"figure": number, "models": ["Gemma-7B"]}], ["Gemma-7B"])):
        drawing = module.draw(Results(two_models, several(figures)))
        parts = drawing.figure.subfigs or [drawing.figure]
        titles = [part.get_suptitle() for part in parts]
        plt.close(drawing.figure)
        assert list(dict.fromkeys(drawing.data["model"])) == expected
        assert [title.split(":")[0] for title in titles] == expected
        for name in expected:
            alone = module.draw(Results(two_models, several([{"figure": number, "models": [name]}]))).data
            rows = drawing.data[drawing.data["model"] == name].reset_index(drop=True)
            pd.testing.assert_frame_equal(rows[alone.columns], alone)
    plt.close("all")


@pytest.mark.parametrize("number", ["band_curve", "causal"])
def test_titles_of_our_figures_are_one_line_and_captions_tell_the_rest(wide, number):
    use_style()
    figure = import_module(f"hwh_core.reporting.{figure_name(number)}").draw(wide.results()).figure
    figure.draw_without_rendering()
    parts = figure.subfigs or [figure]
    for part in parts:
        assert "\n" not in part.get_suptitle()
        assert part.get_suptitle().endswith("(ours)" if number == "causal" else "(ours, not in the paper)")
        box = part._suptitle.get_window_extent()
        assert box.width < 0.7 * figure.bbox.width
    caption = (CAPTIONS / f"{figure_name(number)}.rst").read_text(encoding="utf-8")
    if number == "causal":
        below = [axis.get_xlabel() for axis in parts[0].axes]
        assert below == ["change (8 windows)", "change (8 needles)", "change (8 needles)"]
        assert "their numbers stand below the panels" in caption
    else:
        assert panels.DISPLAY_NOTE in caption
        assert "a column a measured step" in caption
    plt.close(figure)


def test_figure_10_and_14_draw_chosen_layers_of_any_model(two_models):
    use_style()
    entries = [{"figure": 10, "models": ["Gemma-7B"], "layers": [3]}, {"figure": 10, "models": ["mine"]}]
    drawing = import_module("hwh_core.reporting.fig10").draw(Results(two_models, several(entries)))
    plt.close(drawing.figure)
    layers = drawing.data.groupby("model")["layer"].unique().map(sorted)
    # Retrieval heads of the imagined models: two in layer 9, one each in 8 and 10; their mean score decides.
    assert layers["Gemma-7B"] == [3]
    assert 9 in layers["mine"]
    assert len(layers["mine"]) == 2
    # The paper's model keeps the paper's layers.
    drawing = import_module("hwh_core.reporting.fig14").draw(Results(two_models, several([])))
    plt.close(drawing.figure)
    assert sorted(drawing.data["layer"].unique()) == [14, 16]
    absent = Results(two_models, several([{"figure": 10, "models": ["mine"], "layers": [99]}]))
    with pytest.raises(ReportError, match="mine has no layer \\[99\\]"):
        import_module("hwh_core.reporting.fig10").draw(absent)
    plt.close("all")


@pytest.mark.parametrize("number", [2, 10])
def test_verify_takes_no_drawing_for_settings_of_another(two_models, number, tmp_path):
    """The preset speaks of other figures and layers by the names that a drawing might choose for its own."""
    preset = several([{"figure": 13, "models": ["Gemma-7B"]}, {"figure": 10, "models": ["mine"]}])
    draw_and_write(number, Results(two_models, preset), tmp_path / "drawn")
    settings = json.loads((tmp_path / "drawn.pdf.manifest.json").read_text())["settings"]
    assert settings_differences(settings, preset.model_dump(mode="json")) == []
    assert settings_differences(settings | {"preset": "other"}, preset.model_dump(mode="json")) == ["preset"]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ([{"figure": 2, "models": ["other"]}], "figure 2 names 'other', which is not among the models"),
        ([{"figure": 2, "models": ["mine"]}, {"figure": 2, "models": ["mine"]}], "figure 2 names 'mine' twice"),
        ([{"figure": 9, "models": ["mine"], "layers": [1]}], "only figures 10 and 14 draw chosen ones"),
    ],
)
def test_a_bad_choice_of_models_is_named(figures, words):
    with pytest.raises(ConfigError, match=words):
        several(figures)


@pytest.mark.parametrize("number", [2, 9, 10, "qk_norm"])
def test_periods_are_those_of_each_layers_own_frequencies(two_models, tmp_path, number):
    """Layers of Gemma 3 with windows rotate with a base of their own: here every layer but each third."""
    folder = tmp_path / "pretrained"
    shutil.copytree(two_models / "pretrained", folder)
    with np.load(folder / "mine/probe.npz") as probe:
        arrays = dict(probe)
    groups, layers = len(arrays["inv_freq"]), len(arrays["layer_index"])
    local = inverse_frequencies(2 * groups, 1e4)
    own = np.stack([arrays["inv_freq"] if layer % 3 == 0 else local for layer in range(layers)])
    np.savez(folder / "mine/probe.npz", **arrays, layer_inv_freq=own)
    use_style()
    entry = {"figure": number, "models": ["mine"]} | ({"layers": [8, 9]} if number == 10 else {})
    drawing = import_module(f"hwh_core.reporting.{figure_name(number)}").draw(Results(tmp_path, several([entry])))
    found = drawing.data.drop_duplicates(["layer", "frequency_group"])
    expected = 2 * np.pi / own[found["layer"], found["frequency_group"]]
    np.testing.assert_allclose(found["period_tokens"], expected)
    words = {axis.get_xlabel() for top in drawing.figure.axes for axis in (top, *top.child_axes)}
    # Figure 10 has an axis for each of its layers.
    wanted = "period (tokens)" if number == 10 else "period (tokens) in layers with the lowest frequencies"
    assert wanted in words
    plt.close("all")


def test_norms_disagree_where_they_have_a_bump_of_their_own(two_models):
    use_style()
    drawing = import_module("hwh_core.reporting.fig_qk_norm").draw(Results(two_models, several([])))
    plt.close("all")
    data = drawing.data[(drawing.data["model"] == "mine") & (drawing.data["quantity"] != "share")]
    mean = data[data["metric"] == "RPD"].groupby("frequency_group")["value"].mean()
    assert mean.idxmax() == 12
    shares = drawing.data[drawing.data["quantity"] == "share"].groupby(["model", "metric", "layer"])["value"].sum()
    np.testing.assert_allclose(shares, 1.0, rtol=1e-5)


def test_norms_of_another_model_are_refused(two_models, tmp_path):
    tree.write_pretrained(tmp_path, several([]), layers=17, heads=4)
    (tmp_path / "pretrained/mine/norms.npz").write_bytes((two_models / "pretrained/mine/norms.npz").read_bytes())
    with pytest.raises(ReportError, match=r"norms\.npz of mine has .* make both again"):
        import_module("hwh_core.reporting.fig_qk_norm").draw(Results(tmp_path, several([])))
    plt.close("all")
