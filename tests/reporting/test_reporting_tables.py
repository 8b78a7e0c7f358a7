"""Cells of the tables: ours, intervals, the paper's values, what was not run, and what is refused."""

from __future__ import annotations

import csv
import shutil
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import NiahGrid, validate_preset
from hwh_core.reporting import published, task_scores
from hwh_core.reporting.intervals import wilson
from hwh_core.reporting.requirements import additional_cells_file
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError
from hwh_core.reporting.table4 import zones
from hwh_core.reporting.tables import Cell, Table, make_and_write, render, seeds_cell, tex_escape


def make(case_or_results, number: int) -> Table:
    results = case_or_results.results() if hasattr(case_or_results, "results") else case_or_results
    return import_module(f"hwh_core.reporting.table{number}").make(results)


def row(table: Table, *labels: str) -> dict[str, Cell]:
    return next(cells for found, cells in table.rows if found == labels)


def test_a_table_is_csv_markdown_tex_and_a_manifest(laptop, tmp_path):
    paths = make_and_write(3, laptop.results(), tmp_path / "table3")
    assert {path.name for path in paths} == {"table3.csv", "table3.md", "table3.tex"}
    assert (tmp_path / "table3.csv.manifest.json").is_file()
    tex = (tmp_path / "table3.tex").read_text()
    assert tex.count(r"\begin{") == tex.count(r"\end{") == 2
    body = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {10}
    markdown = (tmp_path / "table3.md").read_text().splitlines()
    assert {line.count("|") for line in markdown if line.startswith("|")} == {12}
    with open(tmp_path / "table3.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    predicted = [
        r for r in rows if r["L"] == "2048" and r["column"] == "r*" and r["θ"] == "1e4" and r["QKNorm"] == "on"
    ]
    assert predicted[0]["paper"] == "21.27"
    assert "Table 3" in predicted[0]["paper_source"]
    assert float(predicted[0]["ours"]) == pytest.approx(21.27, abs=0.005)


def test_table_3_holds_prediction_observation_and_null(laptop):
    table = make(laptop, 3)
    every = row(table, "1e4", "256", "on", "all")
    one = row(table, "1e4", "256", "on", "0")
    assert one["r*"].ours == pytest.approx(14.045, abs=1e-3)
    assert one["observed r"].ours == pytest.approx(14.045, abs=1e-3)
    assert one["T(r)"].ours == pytest.approx(358, abs=1)
    assert one["verdict against null"].ours == "peak"
    assert one["init peak"].ours == pytest.approx(14.145, abs=1e-3)
    assert every["observed r"].n_seeds == 2
    assert every["observed r"].high - every["observed r"].low > 10 * (one["observed r"].high - one["observed r"].low)
    assert every["verdict against null"].ours == "peak 2/2"
    unrun = row(table, "1e4", "4096", "on", "-")
    assert unrun["observed r"].ours is None
    assert unrun["observed r"].text == "not run (paper 24)"
    assert unrun["T(r)"].paper == 6283


def test_table_3_shows_no_peak_that_failed_the_null(tmp_path):
    preset = presets.preset()
    tree.write_controlled(tmp_path, preset, verdict="none")
    table = make(Results(tmp_path, preset), 3)
    cells = row(table, "1e4", "256", "on", "0")
    assert cells["observed r"].ours is None
    assert cells["verdict against null"].ours == "none"


def test_table_1_has_both_means_and_the_papers_values(wide):
    table = make(wide, 1)
    cells = row(table, "tiny", "HwH-std")
    seven = [cells[c.title].ours for c in task_scores.COMMONSENSE]
    assert cells["Avg (7)"].ours == pytest.approx(np.mean(seven))
    assert cells["Avg (8)"].ours == pytest.approx(np.mean([*seven, cells["LMB acc"].ours]))
    assert cells["Hella."].ours == pytest.approx(30.05, abs=0.01)
    assert cells["LMB ppl"].ours == pytest.approx(59.97, abs=0.01)
    paper = row(table, "380M (paper)", "HwH-std")
    assert [paper[c].paper for c in ("Wiki ppl", "LMB ppl", "Avg (8)", "Avg (7)")] == [27.41, 34.84, 42.78, 42.78]
    assert paper["Wiki ppl"].text == "not run (paper 27.41)"


def test_the_papers_value_stands_in_the_row_of_its_own_scale(tmp_path):
    preset = presets.preset(scales=[presets.scale(presets.MAIN, claim_scale="380M", name="medium")])
    tree.write_hwh(tmp_path, preset)
    table = make(Results(tmp_path, preset), 1)
    assert row(table, "medium", "HwH-std")["Wiki ppl"].text.endswith("(paper 27.41)")
    assert row(table, "medium", "GDN")["Wiki ppl"].paper is None
    assert [labels for labels, _ in table.rows if "(paper)" in labels[0]] == []


def test_perplexities_are_averaged_and_bounded_on_the_logarithm():
    values = {0: task_scores.SeedValue(100.0, 90.0, 4), 1: task_scores.SeedValue(400.0, 360.0, 4)}
    cell = seeds_cell(values, percent=False)
    assert cell.ours == pytest.approx(200.0)
    assert 0 < cell.low < 100 < 400 < cell.high
    assert cell.low * cell.high == pytest.approx(200.0**2)
    alone = seeds_cell({0: task_scores.SeedValue(5405376.9, 5.5e6, 4)}, percent=False)
    assert alone.low > 1
    assert alone.text.startswith("5,405,377 [")


def test_a_note_on_the_papers_average_stands_only_where_the_table_shows_it(wide):
    assert any("42.78" in note for note in make(wide, 1).notes)
    assert not any("42.78" in note for note in make(wide, 5).notes)


def test_table_2_has_the_papers_four_models_also_where_they_were_not_trained(tmp_path):
    preset = presets.preset(scales=[presets.scale(["hwh_std"])])
    tree.write_hwh(tmp_path, preset)
    table = make(Results(tmp_path, preset), 2)
    ours = [labels[1] for labels, _ in table.rows if labels[0] == "tiny"]
    assert ours == ["Transformer", "GDN", "Inter", "HwH-std"]
    assert {cell.text for cell in row(table, "tiny", "GDN").values()} == {"not run"}


def test_table_4_names_shared_key_heads(minimal_preset):
    variant = {"name": "mine", "base": "hwh_std", "full_attention_queries_per_key": 2,
               "full_attention_fractions": [0.0, 0.5, 0.25, 0.5]}  # fmt: skip
    minimal_preset["hwh"]["architectures"] = [variant]
    minimal_preset["hwh"]["scales"][0]["models"].append({"name": "mine_s0", "architecture": "mine", "seed": 0})
    family = validate_preset(minimal_preset, "test").hwh
    found = zones(family, family.scales[0], "mine")
    assert [found[f"share {share}"]["FA heads"] for share in ("0", "0.25", "0.5")] == [
        "none",
        "2×4 full attention on 1 key head",
        "4×4 full attention on 2 key heads",
    ]


def test_tasks_that_were_not_run_say_so_and_leave_no_average(tmp_path):
    preset = presets.preset()
    for model in preset.hwh.scales[0].models:
        folder = tmp_path / "hwh/tiny" / model.name
        tree.write_scores(folder, preset.hwh.scales[0], model, tasks={"piqa": tree.TASKS["piqa"]})
    cells = row(make(Results(tmp_path, preset), 1), "tiny", "GDN")
    assert cells["PIQA"].ours == pytest.approx(60.0)
    for title in ("Wiki ppl", "BoolQ", "Avg (7)", "Avg (8)"):
        assert cells[title].text == "not run"


def test_two_models_of_one_architecture_and_seed_are_refused(tmp_path):
    preset = presets.preset()
    scale = preset.hwh.scales[0]
    tree.write_hwh(tmp_path, preset)
    twin = scale.models[0].model_copy(update={"name": "gdn", "architecture": "transformer"})
    tree.write_scores(tmp_path / "hwh/tiny/gdn", scale, twin)
    with pytest.raises(ReportError, match=r"transformer hold task .* 2 times for seed 0"):
        make(Results(tmp_path, preset), 1)


def test_table_2_averages_the_grid_over_depths(wide):
    cells = row(make(wide, 2), "tiny", "GDN")
    assert cells["NIAH-S2 grid @256"].ours == pytest.approx(100)
    assert cells["NIAH-S2 grid @768"].ours == pytest.approx(100 / 3)
    assert cells["NIAH-S2 grid @256"].high == 100
    assert cells["SWDE"].ours == pytest.approx(30.05, abs=0.01)
    assert cells["DROP"].text == "not run"
    assert cells["Avg retrieval"].text == "not run"


def test_the_papers_zeros_of_the_transformer_stand_in_all_of_rulers_tasks_at_4k(tmp_path):
    preset = presets.preset(scales=[presets.scale(presets.MAIN, claim_scale="1.4B", length=2048)])
    theirs = NiahGrid(variant="multikey_2", wording="ruler", fill="lm_eval", lengths=(1024, 4096), samples=2)
    grids = [theirs, NiahGrid(variant="single_2", wording="second", lengths=(4096,))]
    niah = preset.evaluation.niah.model_copy(update={"additional": grids, "lengths": [1024, 4096]})
    preset = preset.model_copy(update={"evaluation": preset.evaluation.model_copy(update={"niah": niah})})
    tree.write_hwh(tmp_path, preset)
    for cells in tmp_path.glob("hwh/*/*/niah_cells.csv"):
        for grid in grids:
            shutil.copyfile(cells, cells.with_name(additional_cells_file(grid)))
    made = make(Results(tmp_path, preset), 2)
    stated = {column for column, cell in row(made, "tiny", "Transformer").items() if cell.paper == 0.0}
    assert stated == {"NIAH-S2 grid @4096", "NIAH-MK2, lm-eval's samples @4096"}
    assert all(cell.paper is None for cell in row(made, "tiny", "HwH-std").values())
    assert any("of Table 2." in note for note in made.paper_sources())


def test_retrieval_tasks_that_were_not_run_are_named_and_the_two_cuts_stand_side_by_side(wide, tmp_path):
    made = make(wide, 2)
    assert any(note.startswith("Not run: TriviaQA, NQ, DROP.") for note in made.notes)
    assert not any(column.endswith("left") for column in made.columns)
    preset = presets.preset()
    tree.write_hwh(tmp_path, preset)
    scale = preset.hwh.scales[0]
    for model in scale.models:
        cuts = dict.fromkeys(("swde", "based_drop", "based_nq_2048"), (("contains", 0.5), ("contains_left", 0.2)))
        tree.write_scores(tmp_path / "hwh/tiny" / model.name, scale, model, tasks={**tree.TASKS, **cuts})
    made = make(Results(tmp_path, preset), 2)
    assert [column for column in made.columns if column.endswith("left")] == ["SWDE left", "NQ left", "DROP left"]
    cells = row(made, "tiny", "Transformer")
    assert (cells["SWDE"].ours, cells["SWDE left"].ours) == (pytest.approx(50), pytest.approx(20))
    assert any(note.startswith("Not run: TriviaQA.") for note in made.notes)


@pytest.mark.parametrize("number", [1, 2, 5, 6, 7, 8])
def test_published_models_stand_below_ours_with_their_source(wide, number):
    made = make(wide, number)
    rows = [(labels, cells) for labels, cells in made.rows if "published" in labels[0]]
    assert made.rows[-len(rows) :] == rows != []
    for _, cells in rows:
        shown = {title: cell for title, cell in cells.items() if cell.published}
        assert {"arXiv" in cell.source for cell in shown.values()} == {True}
        assert all(cell.text != "not run" for cell in cells.values())
    assert any("for comparison only" in note for note in made.notes)
    long = made.long()
    numbers = long[long["published"].notna()]
    assert len(numbers) > 10
    assert numbers["ours"].isna().all()
    assert numbers["paper_source"].notna().all()


def test_published_averages_are_those_of_their_own_rows():
    """A typing error in a number would show; the mean of Gated DeltaNet-H1 is off by 0.06 where it was published."""
    for rows in (published.LANGUAGE_LARGE, published.LANGUAGE_SMALL):
        for model in rows:
            accuracies = [value for title, value in model.values.items() if title in published.LANGUAGE_TITLES[2:-1]]
            assert np.mean(accuracies) == pytest.approx(model.values["Avg (8)"], abs=0.07)
    assert len(published.LANGUAGE_400M) == 4
    for model in published.RETRIEVAL_LARGE:
        values = [model.values[title] for title in published.RETRIEVAL_TITLES[:-1]]
        assert np.mean(values) == pytest.approx(model.values["Avg retrieval"], abs=0.06)


@pytest.mark.parametrize("number", [1, 5, 7])
def test_tables_of_language_modelling_show_the_published_models_nearest_to_380m(wide, number):
    made = make(wide, number)
    cells = row(made, "400M (published)", "Gated DeltaNet-H2")
    assert [cells[title].published for title in ("Wiki ppl", "LMB ppl", "Avg (8)")] == [24.19, 28.09, 47.69]
    assert cells["PIQA"].text == cells["Avg (7)"].text == ""
    names = [labels[1] for labels, _ in made.rows if labels[0] == "400M (published)"]
    assert names == ["Transformer++", "Mamba2", "Gated DeltaNet", "Gated DeltaNet-H2"]
    assert any("400M: arXiv 2501.00663 (Titans), Table 1" in note for note in made.notes)


@pytest.mark.parametrize(
    ("number", "note"),
    [
        (1, published.HYBRID_NOTE),
        (2, published.RULER_NOTE),
        (3, published.NORM_BAND_NOTE),
        (5, published.ABLATION_NOTE),
        (7, published.HYBRID_NOTE),
    ],
)
def test_published_numbers_that_fit_no_column_stand_below_with_their_source(wide, number, note):
    assert note in make(wide, number).notes
    assert "arXiv" in note or "OpenReview" in note


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "The paper's values of Wiki ppl, LMB ppl, Avg (8), Avg (7): {} of Table 1."),
        (3, "The paper's values of r*, T*, observed r, T(r): {} of Table 3, appendix B.4."),
        (4, "The paper's values of FA:local: {} of section 4.1."),
    ],
)
def test_what_is_read_names_the_source_of_the_papers_values(wide, number, expected):
    made, told = make(wide, number), expected.format("arXiv 2609.02986v2, published summary")
    assert f"- {told}\n" in render(made, "md", "wide")
    assert f"\\par\\footnotesize {told}\n" in render(made, "tex", "wide")


def test_tables_without_a_value_of_the_paper_name_no_source_of_one(wide):
    assert "The paper's values" not in render(make(wide, 8), "md", "wide")


def test_a_value_of_the_paper_without_its_source_is_an_error():
    with pytest.raises(ValueError, match="x: the paper's value has no source"):
        Table(1, "t", ["a"], ["x"]).add(("1",), {"x": Cell(1.0, paper=2.0)})


def test_table_4_is_generated_from_the_architectures(wide):
    table = make(wide, 4)
    middle = row(table, "tiny", "HwH-std", "middle")
    outer = row(table, "tiny", "HwH-std", "outer")
    edge = row(table, "tiny", "HwH-std", "first and last")
    assert (middle["FA:local"].ours, outer["FA:local"].ours, edge["FA:local"].ours) == ("1:3", "1:7", "local only")
    assert (middle["layers"].ours, outer["layers"].ours, edge["layers"].ours) == ("2–5", "1, 6", "0, 7")
    assert middle["FA:local"].paper == "1:3"
    assert int(middle["FA dims"].ours) + int(middle["local dims"].ours) == 128
    assert middle["FA position"].ours == "NoPE"
    assert row(table, "tiny", "HwH-std-r", "middle")["FA position"].ours == "RoPE"
    assert row(table, "tiny", "Inter", "every 4th layer")["layers"].ours == "3, 7"
    assert "sliding window" in row(table, "tiny", "HwH-swa", "middle")["local heads"].ours


def test_table_4_shows_every_share_of_a_variant(minimal_preset):
    """Layers of one zone may differ where a preset lists their shares: none is hidden behind another."""
    scale = minimal_preset["hwh"]["scales"][0]
    listed = [0.0, 0.5, 0.25, 0.5]
    variant = {"name": "mine", "base": "hwh_std", "full_attention_fractions": listed, "recurrence": "deltanet"}
    minimal_preset["hwh"]["architectures"] = [variant]
    scale["models"].append({"name": "mine_s0", "architecture": "mine", "seed": 0})
    family = validate_preset(minimal_preset, "test").hwh
    found = zones(family, family.scales[0], "mine")
    assert {zone: (cells["layers"], cells["FA dims"]) for zone, cells in found.items()} == {
        "share 0": ("0", "0"),
        "share 0.5": ("1, 3", "16"),
        "share 0.25": ("2", "8"),
    }
    assert found["share 0"]["local heads"] == "8×4 DeltaNet"


@pytest.mark.parametrize("number", [5, 6, 7, 8])
def test_ablation_tables_have_a_row_for_each_compared_architecture(wide, number):
    table = make(wide, number)
    names = [labels[1] for labels, _ in table.rows if "published" not in labels[0]]
    expected = ["HwH-std", "HwH-swa", "HwH-std-r"] if number < 7 else ["HwH uniform 1:3", "HwH outer 1:3", "HwH-std"]
    assert names == expected
    assert ("PIQA" in table.columns) == (number in (5, 7))
    assert ("SWDE" in table.columns) == (number in (6, 8))


def test_cells_read_ours_then_interval_then_paper():
    assert Cell(1.0, 0.5, 1.5, paper=2.0).text == "1.00 [0.50, 1.50] (paper 2.00)"
    assert Cell(None).text == "not run"
    assert Cell("peak").text == "peak"


def test_a_row_that_does_not_fit_is_an_error():
    table = Table(1, "t", ["a"], ["x"])
    with pytest.raises(ValueError, match="does not fit"):
        table.add(("1", "2"), {})
    with pytest.raises(ValueError, match="does not fit"):
        table.add(("1",), {"y": Cell(1.0)})


def test_tex_prints_special_characters():
    assert tex_escape("50% a_b & θ ≤ 2^3") == r"50\% a\_b \& $\theta$ $\le$ 2\textasciicircum{}3"


def test_no_right_answer_of_sixty_is_no_certainty(tmp_path):
    """In accuracies, in averages of them and in needles alike: the interval is Wilson's where all rows agree."""
    preset = presets.preset()
    scale = preset.hwh.scales[0]
    tree.write_hwh(tmp_path, preset)
    none = {**tree.TASKS, "lambada_openai": (("acc", 0.0), ("perplexity", 60.0)), "swde": (("contains", 1.0),)}
    for model in scale.models:
        tree.write_scores(tmp_path / "hwh/tiny" / model.name, scale, model, tasks=none, n=60)
    cells = row(make(Results(tmp_path, preset), 1), "tiny", "GDN")
    assert cells["LMB acc"].text == "0.00 [0.00, 6.02]"
    found = row(make(Results(tmp_path, preset), 2), "tiny", "GDN")["SWDE"]
    assert (found.low, found.high) == (pytest.approx(100 - 6.0165, abs=1e-3), 100)


def test_shares_of_rows_and_of_prompts_have_one_error():
    cells = pd.DataFrame({"architecture": "gdn", "length": 128, "depth": [0, 50], "mean": 1.0, "n": 4, "seed": 0})
    needles = task_scores.needle_values(cells, "gdn", lambda n: True)[0]
    scores = pd.DataFrame({"architecture": "gdn", "task": "piqa", "metric": "acc", "value": 1.0, "stderr": 0.0, "n": 8,
                           "seed": [0]})  # fmt: skip
    accuracy = task_scores.column_values(scores, "gdn", task_scores.COMMONSENSE[0])[0]
    assert needles == accuracy == task_scores.share_of(1.0, 8)
    assert (needles.value, needles.n) == (100, 8)
    assert 100 - 1.959964 * needles.stderr == pytest.approx(100 * wilson(8, 8)[0])
