"""Models stand in one table only where they answered the same rows, in one version of the task, with one window."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import load_preset
from hwh_core.reporting import selection
from hwh_core.reporting.comparable import Same, raise_if_mixed
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError

ROOT = Path(selection.__file__).resolve().parents[2]
WHOLE_TEXTS = {"held_out_articles": (("word_perplexity", 100.0), ("bits_per_byte", 1.2))}


@pytest.fixture
def family(tmp_path) -> Results:
    """Scores and needles of four models."""
    preset = presets.preset()
    tree.write_hwh(tmp_path, preset)
    return Results(tmp_path, preset)


def write_gdn(results: Results, **changes) -> None:
    """Scores of one of the four anew."""
    scale = results.preset.hwh.scales[0]
    tree.write_scores(results.root / "hwh/tiny/gdn", scale, scale.models[1], **changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rows_sha256": "b" * 64}, r"rows_sha256 is a{12} for transformer and .*, b{12} for gdn; .* the same rows"),
        ({"rows_sha256": None}, r"rows_sha256 is a{12} for transformer and .*, not recorded for gdn; .* the same rows"),
        ({"task_version": "2.0"}, r"task_version is 1\.0 for transformer and .*, 2\.0 for gdn; .* one version"),
        ({"task_version": None}, r"task_version is 1\.0 for transformer and .*, not recorded for gdn"),
        ({"add_bos": True}, r"add_bos is False for transformer and .*, True for gdn; .* one evaluation\.add_bos"),
        ({"task_version": "1"}, r"task_version is 1\.0 for .*, 1 for gdn"),
    ],
)
def test_one_task_measured_on_other_things_is_refused(family, changes, told):
    write_gdn(family, **changes)
    with pytest.raises(ReportError, match=rf"^task 'arc_challenge' of scale 'tiny': {told}"):
        import_module("hwh_core.reporting.table1").make(family)


def test_rows_that_no_model_records_are_refused_as_well(family):
    scale = family.preset.hwh.scales[0]
    for model in scale.models:
        tree.write_scores(family.root / "hwh/tiny" / model.name, scale, model, rows_sha256=None)
    with pytest.raises(ReportError, match="rows_sha256 is not recorded for transformer and gdn and inter and hwh_std;"):
        family.scores(scale, scale.models)


def test_another_window_is_refused_for_perplexities_of_whole_texts_alone(family):
    scale = family.preset.hwh.scales[0]
    write_gdn(family, tasks={name: metrics for name, metrics in tree.TASKS.items() if name == "piqa"}, max_length=512)
    assert len(family.scores(scale, scale.models)) > 0
    for model in scale.models:
        folder = family.root / "hwh/tiny" / model.name
        tree.write_scores(folder, scale, model, tasks=WHOLE_TEXTS, max_length=512 if model.name == "gdn" else 256)
    told = r"task 'held_out_articles' of scale 'tiny': max_length is 256 for .*, 512 for gdn; .* one window"
    with pytest.raises(ReportError, match=told):
        family.scores(scale, scale.models)
    write_gdn(family, tasks=WHOLE_TEXTS, max_length=None)
    with pytest.raises(ReportError, match=r"max_length is 256 for .*, not recorded for gdn"):
        family.scores(scale, scale.models)


def test_scores_of_a_version_without_these_columns_are_to_be_made_again(family):
    path = family.root / "hwh/tiny/gdn/scores.csv"
    tree.put_table(path, pd.read_csv(path).drop(columns=["max_length", "task_version"]))
    scale = family.preset.hwh.scales[0]
    with pytest.raises(ReportError, match=r"gdn/scores\.csv lacks the columns \['max_length', 'task_version'\]"):
        family.scores(scale, scale.models)


@pytest.mark.parametrize(("checksum", "shown"), [("b" * 64, "b{12}"), (None, "not recorded")])
@pytest.mark.parametrize("module", ["table2", "fig4"])
def test_needle_grids_on_other_prompts_are_refused(family, checksum, shown, module):
    for model in family.preset.hwh.scales[0].models:
        path = family.root / "hwh/tiny" / model.name / "niah_cells.csv"
        own = checksum if model.name == "inter" else "a" * 64
        tree.put_table(path, pd.read_csv(path).assign(prompts_sha256=own))
    made = import_module(f"hwh_core.reporting.{module}")
    told = rf"niah_cells\.csv of scale 'tiny': prompts_sha256 is a{{12}} for .*, {shown} for inter; .* same prompts"
    with pytest.raises(ReportError, match=told):
        (made.make if module == "table2" else made.draw)(family)


def test_scales_of_one_table_must_have_answered_the_same_rows(tmp_path):
    preset = presets.preset(scales=[presets.scale(presets.MAIN), presets.scale(presets.MAIN, name="larger")])
    tree.write_hwh(tmp_path, preset)
    results, scale = Results(tmp_path, preset), preset.hwh.scales[1]
    assert len(import_module("hwh_core.reporting.table1").make(results).rows) > 8
    for model in scale.models:
        tree.write_scores(tmp_path / "hwh/larger" / model.name, scale, model, rows_sha256="b" * 64)
    told = r"^task 'arc_challenge' of all scales: rows_sha256 is a{12} for tiny/transformer .*, b{12} for larger/trans"
    with pytest.raises(ReportError, match=told):
        import_module("hwh_core.reporting.table1").make(results)


@pytest.mark.parametrize("module", ["table2", "table6"])
def test_one_column_is_one_task(tmp_path, module):
    preset = presets.preset(scales=[presets.scale(presets.ALL)])
    tree.write_hwh(tmp_path, preset)
    results, scale = Results(tmp_path, preset), preset.hwh.scales[0]

    def write(name, *tasks):
        (model,) = (model for model in scale.models if model.name == name)
        run = {**tree.TASKS, **dict.fromkeys(tasks, (("contains", 0.2),))}
        tree.write_scores(tmp_path / "hwh/tiny" / name, scale, model, tasks=run)

    made = import_module(f"hwh_core.reporting.{module}")
    for model in scale.models:
        write(model.name, "based_nq_2048", "based_nq_512")
    assert "NQ is the task based_nq_2048." in made.make(results).notes
    # One that lacks it is not run; one that has another would stand in the same column.
    write("hwh_std")
    assert "NQ is the task based_nq_2048." in made.make(results).notes
    write("hwh_std", "based_nq_512")
    told = r"^column 'NQ' of scale 'tiny': the task is .*based_nq_512 for hwh_std[,;] .* one of these tasks"
    with pytest.raises(ReportError, match=told):
        made.make(results)


@pytest.mark.parametrize(("number", "shown"), [(3, "3"), (None, "not recorded")])
def test_scores_of_truncated_prompts_are_refused(family, number, shown):
    path = family.root / "hwh/tiny/gdn/scores.csv"
    scores = pd.read_csv(path)
    tree.put_table(path, scores.assign(num_truncated=[0] * (len(scores) - 1) + [number]))
    told = rf"^task '{scores['task'].iloc[-1]}' of scale 'tiny': num_truncated is {shown} for gdn, expected 0;"
    with pytest.raises(ReportError, match=told):
        import_module("hwh_core.reporting.table1").make(family)


@pytest.mark.parametrize("module", ["table2", "fig4"])
def test_needle_grids_of_truncated_prompts_are_refused(family, module):
    made = import_module(f"hwh_core.reporting.{module}")
    make = made.make if module == "table2" else made.draw
    path = family.root / "hwh/tiny/gdn/niah_cells.csv"
    cells = pd.read_csv(path)
    tree.put_table(path, cells.assign(num_truncated=0))
    make(family)
    tree.put_table(path, cells.assign(num_truncated=[2] + [0] * (len(cells) - 1)))
    with pytest.raises(ReportError, match=r"^niah_cells\.csv of scale 'tiny': num_truncated is 2 for gdn, expected 0;"):
        make(family)


def test_one_model_alone_mixes_nothing():
    rows = pd.DataFrame({"model": ["a", "a"], "rows_sha256": [None, None]})
    raise_if_mixed(rows, Same("rows_sha256", "evaluate again"), "task 'x'")
    raise_if_mixed(rows[:0], Same("rows_sha256", "evaluate again"), "task 'x'")


@pytest.mark.parametrize("name", ["laptop", "single_gpu", "variants"])
def test_the_committed_scores_may_stand_side_by_side(name):
    preset = load_preset(ROOT / "config" / f"{'config' if name == 'laptop' else name}.yaml")
    results, read = Results(ROOT / "results/reference" / name, preset), 0
    for scale in preset.hwh.scales:
        models = [m for m in scale.models if (results.root / "hwh" / scale.name / m.name / "scores.csv").is_file()]
        if models:
            read += results.scores(scale, models)["model"].nunique()
            results.cells(scale, models)
    assert read == len(list(results.root.glob("hwh/*/*/scores.csv"))) > 3
