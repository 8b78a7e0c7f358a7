"""Imagined results, written once for the tests of this folder that only read them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import report_preset as presets
import report_tree as tree
from chromium import Browser, find_browser

from hwh_core.config import NiahGrid, PresetConfig
from hwh_core.reporting.requirements import additional_cells_file
from hwh_core.reporting.results import Results


class Case(NamedTuple):
    """A preset and the folder of its imagined results."""

    root: Path
    preset: PresetConfig

    def results(self) -> Results:
        """A fresh reader, which has used no file yet."""
        return Results(self.root, self.preset)


@pytest.fixture(scope="session")
def wide(tmp_path_factory) -> Case:
    """All architectures with two seeds, five pretrained models, controlled models with and without QK-norm."""
    names = ("Qwen3-4B", "Qwen3-1.7B", "Llama3.1-8B-Instruct", "Gemma-7B", "smollm2-135m")
    preset = presets.preset(
        controlled=[*presets.laptop_controlled(), presets.controlled_model(1e6, 256, qk_norm=False)],
        models=[presets.pretrained(name) for name in names],
        scales=[presets.scale(presets.ALL, seeds=2)],
        probe=presets.HEAD_PROBE,
        curve=presets.curve_of("theta1e4-L256-s0", "theta1e6-L256-s0"),
    )
    second = NiahGrid(variant="single_2", wording="second")
    niah = preset.evaluation.niah.model_copy(update={"additional": [second]})
    preset = preset.model_copy(update={"evaluation": preset.evaluation.model_copy(update={"niah": niah})})
    root = tmp_path_factory.mktemp("wide")
    tree.write_controlled(root, preset)
    tree.write_curve(root, preset)
    tree.write_pretrained(root, preset, layers=18, heads=4)
    tree.write_hwh(root, preset)
    for cells in root.glob("hwh/*/*/niah_cells.csv"):
        shutil.copyfile(cells, cells.with_name(additional_cells_file(second)))
    tree.write_head_influence(root, preset)
    tree.put_json(root / "synthetic.json", tree.synthetic())
    return Case(root, preset)


@pytest.fixture(scope="session")
def laptop(tmp_path_factory) -> Case:
    """Results in the shape of the laptop preset."""
    preset = presets.preset()
    root = tmp_path_factory.mktemp("laptop")
    tree.write_all(root, preset)
    return Case(root, preset)


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window. Where it must be there (HWH_REQUIRE_BROWSER) its absence is a failure."""
    program = find_browser()
    if program is None:
        told = "no Chromium found: run `make chromium`, or name one in HWH_CHROMIUM"
        (pytest.fail if os.environ.get("HWH_REQUIRE_BROWSER") else pytest.skip)(told)
    browser = Browser(program)
    yield browser
    browser.close()
