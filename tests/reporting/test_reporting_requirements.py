"""Which files are needed, what a preset lacks, and that nothing here imports torch."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import report_preset as presets

from hwh_core.reporting import comparisons, requirements, selection
from hwh_core.reporting.selection import Condition, ReportError
from hwh_core.reporting.style import use_style

FIGURES = (*selection.FIGURE_NUMBERS, *selection.OWN_FIGURES, *selection.ON_DEMAND_FIGURES)
TABLES = (*selection.TABLE_NUMBERS, *selection.OWN_TABLES)
PACKAGE = Path(import_module("hwh_core.reporting").__file__).parent


def test_no_reporting_module_loads_torch_or_transformers():
    modules = sorted(f"hwh_core.reporting.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    assert len(modules) > 30
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'transformers', 'lm_eval'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_every_figure_and_table_has_a_module_and_a_caption():
    captions = PACKAGE.parents[1] / "workflow" / "report"
    names = [selection.figure_name(figure) for figure in FIGURES]
    for name in (*names, *map(selection.table_name, (*TABLES, *comparisons.COMPARISONS))):
        assert (PACKAGE / f"{name}.py").is_file()
        assert len((captions / f"{name}.rst").read_text(encoding="utf-8")) > 40


@pytest.mark.parametrize("number", FIGURES)
def test_a_figure_reads_exactly_the_files_that_the_workflow_gives_it(wide, number):
    import matplotlib.pyplot as plt

    use_style()
    results = wide.results()
    drawing = import_module(f"hwh_core.reporting.{selection.figure_name(number)}").draw(results)
    plt.close(drawing.figure)
    read = {path.relative_to(wide.root).as_posix() for path in results.used}
    assert read == set(requirements.figure_inputs(wide.preset, number))
    assert len(drawing.data) > 0
    assert drawing.figure.get_suptitle() or all(part.get_suptitle() for part in drawing.figure.subfigs)


@pytest.mark.parametrize("number", TABLES)
def test_a_table_reads_exactly_the_files_that_the_workflow_gives_it(wide, number):
    results = wide.results()
    import_module(f"hwh_core.reporting.{selection.table_name(number)}").make(results)
    read = {path.relative_to(wide.root).as_posix() for path in results.used}
    assert read == set(requirements.table_inputs(wide.preset, number))


def test_what_the_laptop_preset_can_draw():
    preset = presets.preset()
    assert selection.available_figures(preset) == [2, 3, 4, 7, 9, 11, 12, 15, "qk_norm"]
    assert selection.available_tables(preset) == [1, 2, 3, 4, "heads"]


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (5, "hwh_swa"),
        (6, "hwh_uniform13"),
        (8, "second pretrained"),
        (10, "Llama3.1"),
        (13, "Gemma-7B"),
        (14, "Gemma-7B"),
    ],
)
def test_a_figure_without_its_models_names_what_is_missing(number, named):
    with pytest.raises(ReportError, match=f"figure {number} cannot be made.*{named}"):
        requirements.figure_inputs(presets.preset(), number)


def test_presets_without_models_name_them_for_every_kind():
    bare = presets.preset(controlled=[], models=[], scales=[])
    assert selection.available_figures(bare) == []
    assert selection.available_tables(bare) == []
    for number in (2, 3, 4, 12, 15):
        with pytest.raises(ReportError, match="it lacks"):
            requirements.figure_inputs(bare, number)


@pytest.mark.parametrize("number", [1, 16])
def test_numbers_that_are_no_figure_are_refused(number):
    with pytest.raises(ReportError, match="choose one of"):
        requirements.figure_inputs(presets.preset(), number)
    with pytest.raises(ReportError, match="choose one of"):
        requirements.table_inputs(presets.preset(), 9)


def test_claims_read_everything_that_a_preset_measures():
    paths = requirements.claims_inputs(presets.preset())
    for name in (
        "synthetic.json",
        "controlled/theta1e4-L256-s0/band.json",
        "controlled/theta1e4-L256-noqk-s0/metrics.json",
        "pretrained/smollm2-135m/bands.json",
        "pretrained/smollm2-135m/heads.csv",
        "hwh/tiny/hwh_std/scores.csv",
        "hwh/tiny/hwh_std/niah.csv",
        "hwh/tiny/hwh_std/niah_cells.csv",
        "hwh/tiny/hwh_std/metrics.json",
    ):
        assert name in paths
    assert len(paths) == len(set(paths))


def test_probe_files_are_named_by_their_length_factor():
    model = presets.preset().controlled.models[0]
    names = [requirements.controlled_probe_file(model, factor).rsplit("/", 1)[1] for factor in (0.5, 1.0, 2.0)]
    assert names == ["probe_x0.5.npz", "probe_x1.npz", "probe_x2.npz"]


def test_main_conditions_are_both_bases_and_the_doubled_length():
    found = selection.main_conditions(presets.preset())
    assert found == [Condition(1e4, 256, True), Condition(1e6, 256, True), Condition(1e4, 512, True)]


def test_the_papers_length_is_preferred():
    models = [presets.controlled_model(theta, length) for theta in (1e4, 1e6) for length in (256, 2048)]
    models.append(presets.controlled_model(1e4, 4096))
    found = selection.main_conditions(presets.preset(controlled=models))
    assert [condition.length for condition in found] == [2048, 2048, 4096]


def test_a_scale_of_the_paper_is_preferred_to_a_scaled_one():
    small, medium = presets.scale(presets.MAIN), presets.scale(presets.MAIN, claim_scale="380M", name="medium")
    preset = presets.preset(scales=[small, medium])
    assert selection.scale_for(preset, "380M").name == "medium"
    assert selection.scale_for(preset, "1.4B").name == "tiny"
    assert selection.scale_for(preset, "380M", presets.ALL) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("qwen3-4b", "Qwen3-4B"),
        ("Qwen3-1.7B", "Qwen3-1.7B"),
        ("llama-3.1-8b-instruct", "Llama3.1-8B-Instruct"),
        ("gemma-7b", "Gemma-7B"),
        ("SmolLM2-135M-Instruct", "SmolLM2-135M"),
    ],
)
def test_pretrained_families_are_found_by_name(name, family):
    preset = presets.preset(models=[presets.pretrained("other"), presets.pretrained(name)])
    assert selection.pretrained_model(preset, family).name == name
