"""The figure of the band against tokens seen, and what the report says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.reporting import fig_band_curve, ledger, requirements, selection
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError
from hwh_core.reporting.style import draw_and_write, use_style
from hwh_core.rope import predicted_index

ROOT = Path(ledger.__file__).resolve().parents[2]
NAMES = ("theta1e4-L256-s0", "theta1e6-L256-s0")
NEVER = (0.0,) * 7
BROKEN = (0.0, 0.3, 0.0, 0.0, 0.5, 0.8, 1.0)
TOKENS = [4096 * step for step in presets.curve_of()["steps"]]


@pytest.fixture
def curves(tmp_path) -> Results:
    """One band that appears, vanishes and appears again, and a model that never has one."""
    preset = presets.preset(curve=presets.curve_of(*NAMES))
    tree.write_all(tmp_path, preset)
    tree.write_curve(tmp_path, preset, {NAMES[0]: BROKEN, NAMES[1]: NEVER})
    return Results(tmp_path, preset)


def drawn(results: Results):
    use_style()
    drawing = fig_band_curve.draw(results)
    plt.close(drawing.figure)
    return drawing


def marked(axis, marker: str) -> list[float]:
    """Tokens at which a panel has markers of one kind."""
    return sorted(float(x) for line in axis.lines if line.get_marker() == marker for x in line.get_xdata())


def test_bands_and_their_absence_are_marked_where_they_were_measured(curves):
    figure = drawn(curves).figure
    first, second = figure.axes[:2]
    assert marked(first, "o") == [TOKENS[1], *TOKENS[4:]]
    assert marked(first, "x") == [TOKENS[0], TOKENS[2], TOKENS[3]]
    assert marked(second, "o") == []
    assert marked(second, "x") == TOKENS
    assert "a band from 20.5k tokens on (none at 12.3k; a first one at 4.1k did not stay)" in " ".join(
        first.get_title().split("\n")
    )
    for axis, theta in ((first, 1e4), (second, 1e6)):
        lines = [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == "--"]
        assert lines == pytest.approx([predicted_index(64, theta, 256)])


def test_a_shoulder_is_drawn_hollow(curves):
    path = curves.root / requirements.curve_file(curves.preset.controlled.models[0])
    path.write_text(path.read_text().replace(",peak,", ",edge,", 1))
    axis = drawn(curves).figure.axes[0]
    hollow = [line for line in axis.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "none"]
    assert "only a shoulder: not counted as a band" in legend_texts(axis.figure)
    assert [float(x) for line in hollow for x in line.get_xdata()] == [TOKENS[1]]
    assert "did not stay" not in axis.get_title()


def legend_texts(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_legend_tells_of_what_is_drawn_alone(curves):
    texts = legend_texts(drawn(curves).figure)
    assert "no band" in texts
    assert len(texts) == 4


def test_the_csv_holds_what_is_drawn(curves):
    data = drawn(curves).data
    assert set(data["quantity"]) == {
        "frequency group of the band", "loss (nats/token)", "RPD, mean over samples, heads and layers",
    }  # fmt: skip
    band = data[(data["quantity"] == "frequency group of the band") & (data["model"] == NAMES[0])]
    assert band["tokens"].tolist() == TOKENS
    assert np.isfinite(band["value"]).tolist() == [False, True, False, False, True, True, True]
    assert (band["low"].dropna() <= band["high"].dropna()).all()
    rpd = data[data["quantity"].str.startswith("RPD")]
    assert len(rpd) == 2 * 7 * 32
    last = rpd[(rpd["model"] == NAMES[0]) & (rpd["tokens"] == TOKENS[-1])]
    assert last.loc[last["value"].idxmax(), "frequency_group"] == round(predicted_index(64, 1e4, 256))


def test_columns_of_the_map_lie_around_their_tokens():
    tokens = np.array([0.0, 100.0, 200.0, 800.0])
    edges = fig_band_curve.token_edges(tokens)
    assert len(edges) == 5
    assert all(low < token < high for low, token, high in zip(edges, tokens, edges[1:], strict=False))


def test_the_figure_is_written_under_its_name(curves, tmp_path):
    paths = draw_and_write("band_curve", curves, tmp_path / "figures" / "fig_band_curve")
    assert {path.name for path in paths} == {f"fig_band_curve.{kind}" for kind in ("pdf", "png", "csv")}
    manifest = json.loads((tmp_path / "figures/fig_band_curve.pdf.manifest.json").read_text())
    assert manifest["settings"]["drawn_figure"] == "band_curve"
    assert sorted(Path(name).name for name in manifest["inputs"]) == ["curve.csv"] * 2 + ["curve_maps.csv"] * 2


def test_a_preset_without_a_curve_has_no_such_figure():
    preset = presets.preset()
    assert "band_curve" not in selection.available_figures(preset)
    with pytest.raises(ReportError, match=r"figure band_curve cannot be made.*controlled\.curve"):
        requirements.figure_inputs(preset, "band_curve")


def test_the_program_takes_the_name_of_the_figure(curves, tmp_path):
    settings = tmp_path / "preset.json"
    settings.write_text(curves.preset.model_dump_json())
    command = [sys.executable, str(ROOT / "scripts/draw_figure.py"), "band_curve", "--root", str(curves.root)]
    command += ["--settings", str(settings), "--output", str(tmp_path / "fig_band_curve")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fig_band_curve.png").stat().st_size > 10_000
    command[2] = "band_curves"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "figure band_curves is none of this report's" in done.stderr


def test_the_report_says_from_when_on_the_band_is_there_and_that_it_is_ours(curves):
    ledger.write(curves, curves.root / "claims.json")
    report = (curves.root / "claims.md").read_text()
    section = report[report.index("## Beyond the paper") :]
    assert "Ours, no claims of the paper" in section
    lines = [line for line in section.splitlines() if line.startswith("- The band")]
    assert len(lines) == 2
    assert "θ=1e4, L=256, seed 0: a band from 20.5k tokens on (none at 12.3k; a first one at 4.1k did not" in lines[0]
    assert f"at group {predicted_index(64, 1e4, 256):.1f}" in lines[0]
    assert "θ=1e6, L=256, seed 0: no band at any of the 7 measured points up to 41k tokens" in lines[1]
    assert "without a band" in lines[1]
    claims = json.loads((curves.root / "claims.json").read_text())
    assert len(claims) == len(ledger.claims_of(curves.preset))
    inputs = json.loads((curves.root / "claims.json.manifest.json").read_text())["inputs"]
    assert sum(name.endswith("curve.csv") for name in inputs) == 2


def test_the_report_says_where_it_was_not_run(laptop, tmp_path):
    ledger.write(laptop.results(), tmp_path / "claims.json")
    report = (tmp_path / "claims.md").read_text()
    assert "- The band against tokens seen: not run in this preset" in report[report.index("## Beyond the paper") :]


def test_claims_wait_for_the_curves():
    preset = presets.preset(curve=presets.curve_of(*NAMES))
    wanted = {f"controlled/{name}/curve.csv" for name in NAMES}
    assert wanted <= set(requirements.claims_inputs(preset))
    assert not any("curve" in path for path in requirements.claims_inputs(presets.preset()))
