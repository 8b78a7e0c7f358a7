"""A scale trained with a retrieval mix: reports say so, and its controls stand apart."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import jinja2
import matplotlib.pyplot as plt
import pandas as pd
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import ConfigError, PresetConfig, validate_preset
from hwh_core.reporting import captions, ledger, requirements, selection
from hwh_core.reporting.hybrid_family import Family
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError
from hwh_core.reporting.style import draw_and_write, use_style

MIX = {"sequence_share": 0.5, "pairs_per_sequence": 10, "repeat_share": 0.4, "value_digits": [4, 7]}
CONTROLS = [
    {"name": f"{name}-nomix", "architecture": name, "seed": 0, "retrieval_mix": False}
    for name in ("transformer", "hwh_std")
]
GRIDS = [{"variant": "multikey_1", "wording": "ruler"}, {"variant": "single_2", "wording": "second"}]
FILES = ("niah_multikey_1_ruler_cells.csv", "niah_single_2_second_cells.csv")


def with_mix() -> PresetConfig:
    scale = presets.scale(presets.ALL)
    scale |= {"retrieval_mix": MIX, "models": [*scale["models"], *CONTROLS]}
    data = presets.preset(scales=[scale]).model_dump(mode="json")
    data["evaluation"]["niah"]["additional"] = GRIDS
    return validate_preset(data, "imagined preset")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Results:
    """All models find every needle but the controls, which find none; in the additional grids half of that."""
    preset = with_mix()
    root = tmp_path_factory.mktemp("mixed")
    tree.write_all(root, preset)
    scale = preset.hwh.scales[0]
    for model in scale.models:
        folder = root / "hwh" / scale.name / model.name
        tree.write_niah(folder, scale, model, preset, lambda *_, found=float(model.retrieval_mix): found)
        for name in FILES:
            cells = pd.read_csv(folder / "niah_cells.csv")
            cells.assign(mean=cells["mean"] / 2).to_csv(folder / name, index=False)
    return Results(root, preset)


def table(results: Results, number: int):
    return importlib.import_module(f"hwh_core.reporting.table{number}").make(results)


def test_controls_are_in_no_comparison():
    scale = with_mix().hwh.scales[0]
    assert [model.name for model in selection.controls(scale)] == ["transformer-nomix", "hwh_std-nomix"]
    assert [model.name for model in selection.models_of(scale, presets.MAIN)] == presets.MAIN
    assert len(selection.compared(scale)) == 8
    only_controls = scale.model_copy(update={"models": list(selection.controls(scale))})
    assert selection.architectures_of(only_controls) == []


def test_claims_read_the_compared_models_alone(mixed):
    family = Family(mixed, mixed.preset.hwh.scales[0])
    assert set(family.cells["model"]) == set(family.scores["model"]) == set(presets.ALL)
    assert family.at("transformer", 1.0)[0].value == 100
    files = requirements.claims_inputs(mixed.preset)
    assert "hwh/tiny/hwh_std-nomix/metrics.json" in files
    assert "hwh/tiny/hwh_std-nomix/niah.csv" not in files


def test_claims_of_the_scale_and_the_ledger_name_the_mix(mixed):
    records = {record.id: record for record in ledger.evaluate(mixed)}
    for name in ("M1b-scaled", "B1-scaled", "B5-scaled"):
        assert "trained with a retrieval mix, which the paper does not have" in records[name].note
    lines = [line for line in ledger.deviations(mixed.preset) if "retrieval mix" in line]
    assert len(lines) == 1
    assert "50% of the sequences carry 10 facts with values of 4 or 7 digits" in lines[0]
    assert lines[0].endswith("Controls without the mix: transformer-nomix, hwh_std-nomix.")
    kinds = {row["model"]: row["kind"] for row in ledger.models_tried(mixed)}
    assert kinds["hwh/tiny/hwh_std-nomix"].endswith("control without the retrieval mix")
    assert "control" not in kinds["hwh/tiny/hwh_std"]


@pytest.mark.parametrize("number", [1, 2, 5, 6, 7, 8])
def test_every_table_of_scores_names_the_mix(mixed, number):
    assert sum("retrieval mix, which the paper does not have" in note for note in table(mixed, number).notes) == 1


@pytest.mark.parametrize("number", [4, 5, 6, 15, "needle_wordings"])
def test_every_figure_of_needles_names_the_mix_and_leaves_the_controls_out(mixed, number):
    """The mix stands in the title, which is one line that fits the figure, as the legend does."""
    use_style()
    results = Results(mixed.root, mixed.preset)
    drawing = importlib.import_module(f"hwh_core.reporting.{selection.figure_name(number)}").draw(results)
    assert drawing.figure.get_suptitle().endswith(", scale tiny, trained with a retrieval mix (not in the paper)")
    drawing.figure.draw_without_rendering()
    for part in (drawing.figure._suptitle, *drawing.figure.legends):
        box = part.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawing.figure.bbox.width
    assert "\n" not in drawing.figure.get_suptitle()
    plt.close(drawing.figure)
    assert not any(name.endswith("nomix") for name in drawing.settings["drawn"])
    assert {str(path.relative_to(mixed.root)) for path in results.used} == set(
        requirements.figure_inputs(mixed.preset, number)
    )


@pytest.mark.parametrize("number", [4, 5, 6, 15, "needle_wordings", "head_influence"])
def test_captions_describe_the_mix_that_titles_name(mixed, laptop, number):
    caption = Path(captions.__file__).parents[2] / "workflow/report" / f"{selection.figure_name(number)}.rst"
    note = captions.caption_note(mixed.preset, number)
    assert note.startswith("Trained with a retrieval mix, which the paper does not have: 50% of the sequences carry 10")
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(caption.read_text(encoding="utf-8"))
    told = template.render(snakemake=SimpleNamespace(params=SimpleNamespace(note=note)))
    assert told.endswith(f"\n\n{note}")
    assert captions.caption_note(laptop.preset, number) == ""
    assert "mix, which" not in template.render(snakemake=SimpleNamespace(params=SimpleNamespace(note="")))


def test_titles_and_captions_without_a_mix_name_none(mixed, laptop):
    assert captions.title_of("Needles", laptop.preset.hwh.scales[0]) == "Needles, scale tiny"
    assert captions.caption_note(mixed.preset, 3) == ""


def test_table_2_shows_controls_and_additional_grids_in_places_of_their_own(mixed):
    results = Results(mixed.root, mixed.preset)
    made = table(results, 2)
    assert {str(path.relative_to(mixed.root)) for path in results.used} == set(
        requirements.table_inputs(mixed.preset, 2)
    )
    rows = {labels[1]: cells for labels, cells in made.rows if "published" not in labels[0]}
    assert list(rows) == [
        "Transformer", "GDN", "Inter", "HwH-std", "Transformer, no retrieval mix", "HwH-std, no retrieval mix",
    ]  # fmt: skip
    for label, cells in rows.items():
        found = 0 if "no retrieval mix" in label else 100
        assert cells["NIAH-S2 grid @256"].ours == found
        assert cells["NIAH-MK1, RULER wording @256"].ours == found / 2
        assert cells["NIAH-S2, second wording @512"].ours == found / 2
    # Half, once, twice the training length of 256; not 768.
    assert [c for c in made.columns if "MK1" in c] == [f"NIAH-MK1, RULER wording @{n}" for n in (128, 256, 512)]


def test_without_a_mix_nothing_is_said_of_one(laptop):
    results = laptop.results()
    assert selection.mix_note(laptop.preset.hwh.scales[0]) == ""
    assert not any("retrieval mix" in note for number in (1, 2) for note in table(results, number).notes)
    assert not any("retrieval mix" in line for line in ledger.deviations(laptop.preset))
    assert not any("MK1" in column for column in table(results, 2).columns)


def test_a_control_in_a_scale_without_a_mix_is_refused():
    scale = presets.scale(presets.MAIN)
    scale["models"] = [*scale["models"], CONTROLS[0]]
    with pytest.raises(ConfigError, match=r"'transformer-nomix' has retrieval_mix: false, but the scale 'tiny' has no"):
        presets.preset(scales=[scale])


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([GRIDS[0], GRIDS[0]], "evaluation.niah.additional: name 'multikey_1_ruler' stands there twice"),
        ([{"variant": "single_2", "wording": "ruler"}], "single_2 in the wording ruler is the main grid"),
        (
            [{"variant": "multivalue", "wording": "ruler"}],
            "multivalue has several answers; it needs metric ruler_contains",
        ),
        (
            [{"variant": "multiquery", "wording": "second"}],
            "wording 'second' has neither lm-eval's samples nor several",
        ),
        ([{"variant": "single_1", "wording": "ruler", "fill": "lm_eval"}], "samples is missing: with fill lm_eval"),
        (
            [{"variant": "single_1", "wording": "ruler", "fill": "lm_eval", "samples": 500}],
            "single_1_ruler_lm_eval is made for max_new_tokens = 128",
        ),
    ],
)
def test_additional_grids_are_others_than_the_main_one(grids, message):
    data = with_mix().model_dump(mode="json")
    data["evaluation"]["niah"]["additional"] = grids
    with pytest.raises(ConfigError, match=message):
        validate_preset(data, "imagined preset")


def test_an_additional_grid_that_is_missing_is_named(mixed, tmp_path):
    shutil.copytree(mixed.root, tmp_path / "copy")
    (tmp_path / "copy/hwh/tiny/gdn" / FILES[0]).unlink()
    with pytest.raises(selection.ReportError, match=r"gdn/niah_multikey_1_ruler_cells\.csv does not exist"):
        table(Results(tmp_path / "copy", mixed.preset), 2)


def test_a_figure_shows_all_kinds_of_prompts_side_by_side(mixed, tmp_path):
    """Every needle of the main grid found, half of those of the others; controls are in none of the curves."""
    draw_and_write("needle_wordings", mixed, tmp_path / "fig_needle_wordings")
    data = pd.read_csv(tmp_path / "fig_needle_wordings.csv")
    assert set(data["architecture"]) == set(presets.ALL)
    by_grid = data.groupby("grid")["percent"].agg(["min", "max"]).T.to_dict("list")
    assert by_grid == {
        "NIAH-S2, RULER wording (Figures 4 and 15)": [100, 100],
        "NIAH-MK1, RULER wording": [50, 50],
        "NIAH-S2, second wording": [50, 50],
    }
    seeds = {(model.architecture, model.seed) for model in selection.compared(mixed.preset.hwh.scales[0])}
    assert set(data[["architecture", "seed"]].itertuples(index=False, name=None)) == seeds, "a curve each"
    assert not data.duplicated(["grid", "architecture", "seed", "length"]).any()
    assert (data["low"] <= data["percent"]).all()
    assert (data["percent"] <= data["high"]).all()
    assert data["high"].max() <= 100


def test_kinds_of_prompts_need_a_second_kind(laptop):
    with pytest.raises(ReportError, match=r"needle_wordings cannot be made.*evaluation\.niah\.additional"):
        draw_and_write("needle_wordings", laptop.results(), "unused")
