"""`hwh causal`: the checks of a probed model, what it refuses, and `hwh report` that shows them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from probe_helpers import parsed
from test_probe_causal import BANDS, table_of_heads

from hwh_core.commands import causal, probe, report
from hwh_core.probes.causal import BAND, UNFINISHED, CausalChecks, Measurement, frequency_sets
from hwh_core.probes.errors import ProbeError
from hwh_core.reporting import fig_causal
from hwh_core.scripting import UserError

SMALL = ("--length", 512, "--num-windows", 2, "--num-needles", 2, "--random-draws", 2)


def run(command, *arguments) -> int:
    return command.run(parsed(command, command.__name__.rpartition(".")[2], *arguments))


@pytest.fixture(scope="module")
def text(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("prose") / "mine.txt"
    path.write_text("\n\n".join(corpus.texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def probed(random_llama, text, tmp_path_factory):
    """Folder of a probe of random_llama; heads of random weights have no class, so theirs are made up."""
    out = tmp_path_factory.mktemp("probed") / "out"
    options = ("--num-samples", 2, "--length", 96, "--queries", 8, "--windows", 8, "--window", 8)
    assert run(probe, random_llama, "--samples", f"text:{text}", "--out", out, *options) == 0
    heads = table_of_heads().assign(ld=0.5, rfis_total=1.0, rpd_total=1.0)
    heads.to_csv(out / "heads.csv", index=False)
    (out / "bands.json").write_text(json.dumps(BANDS))
    return out


@pytest.fixture
def folder(probed, tmp_path):
    return shutil.copytree(probed, tmp_path / "out")


def test_one_command_checks_a_probed_model_and_the_report_shows_it(random_llama, text, folder, capsys):
    assert run(causal, random_llama, "--out", folder, "--text", text, *SMALL) == 0
    printed = capsys.readouterr().out
    assert "retrieval heads (4), loss (nats/token)" in printed
    table, summary = pd.read_csv(folder / "causal.csv"), pd.read_csv(folder / "causal_summary.csv")
    # The unchanged model, and five sets with two draws each; two values of every measure.
    assert len(table) == (1 + 5 * 3) * 3 * 2
    assert len(summary) == 5 * 3
    losses = table[(table["measure"] == "loss") & table["draw"].isna()].groupby("intervention")["value"].mean()
    assert losses["none"] != losses["retrieval heads"]
    manifest = json.loads((folder / "causal.csv.manifest.json").read_text())
    assert manifest["settings"]["num_windows"] == 2
    assert {path.rsplit("/", 1)[-1] for path in manifest["inputs"]} == {
        "probe.npz", "heads.csv", "bands.json", "mine.txt"
    }  # fmt: skip
    assert set(manifest["beside"]) >= {"causal_summary.csv"}
    assert not (folder / "causal_runs").exists()
    assert run(report, folder) == 0
    page = (folder / "atlas.html").read_text(encoding="utf-8")
    assert '<a href="fig_causal.pdf">' in page
    (row,) = summary[(summary["intervention"] == "the band") & (summary["measure"] == "loss")].itertuples()
    assert f"<td>{row.change:+.3f} [{row.change_low:+.3f}, {row.change_high:+.3f}]</td>" in page
    bands = json.loads((folder / "bands.json").read_text())
    (folder / "bands.json").write_text(json.dumps(bands | {"clusters": []}))
    with pytest.raises(UserError, match=r"causal_summary\.csv: bands\.json was made anew since.*--restart"):
        run(report, folder)
    inputs = json.loads((folder / "atlas.html.manifest.json").read_text())["inputs"]
    assert str(folder / "causal_summary.csv") in inputs


def test_the_checks_are_drawn_as_in_the_workflow(random_llama, text, folder, monkeypatch, capsys):
    drawn = {}

    def watched(figure, summary, title):
        drawn["drawing"] = fig_causal_draw(figure, summary, title)
        return drawn["drawing"]

    fig_causal_draw = fig_causal._draw
    monkeypatch.setattr(fig_causal, "_draw", watched)
    assert run(causal, random_llama, "--out", folder, "--text", text, *SMALL) == 0
    assert str(folder / "fig_causal.pdf") in capsys.readouterr().out
    assert (folder / "fig_causal.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "fig_causal.pdf").read_bytes().startswith(b"%PDF")
    summary = pd.read_csv(folder / "causal_summary.csv")
    pd.testing.assert_frame_equal(pd.read_csv(folder / "fig_causal.csv"), summary, check_exact=False, rtol=1e-6)
    manifest = json.loads((folder / "fig_causal.pdf.manifest.json").read_text())
    assert list(manifest["inputs"]) == [str(folder / "causal_summary.csv")]
    axes = drawn["drawing"].figure.axes
    assert len(axes) == 3
    # One row a set, and on it the change that the table tells.
    for axis, measure in zip(axes, ("loss", "needle", "exact"), strict=True):
        rows = summary[summary["measure"] == measure]
        points = axis.containers[1].lines[0]
        np.testing.assert_allclose(points.get_xdata(orig=False), rows["change"])
        assert len(points.get_ydata()) == 5
    assert drawn["drawing"].figure.get_suptitle().startswith("random: heads silenced, rotation left out")
    (folder / "causal_summary.csv").write_text(summary.iloc[::-1].to_csv(index=False))
    with pytest.raises(UserError, match=r"fig_causal\.pdf: causal_summary\.csv was made anew since"):
        run(report, folder)


def killed_after(monkeypatch, finished: int) -> None:
    """Let measuring end as by a kill once ``finished`` interventions are measured."""
    measure, calls = Measurement.__call__, []

    def killed(self):
        if len(calls) == finished:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(self)

    monkeypatch.setattr(Measurement, "__call__", killed)


def test_killed_checks_go_on_after_their_finished_interventions(random_llama, text, folder, monkeypatch, capsys):
    whole = shutil.copytree(folder, folder.parent / "whole")
    command = (random_llama, "--text", text, *SMALL, "--out")
    run(causal, *command, whole)
    with monkeypatch.context() as patch:
        killed_after(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            run(causal, *command, folder)
    assert not (folder / "causal.csv").exists()
    measure, left = Measurement.__call__, []
    with monkeypatch.context() as patch:
        # Other settings or another model are refused before anything is measured.
        patch.setattr(Measurement, "__call__", None)
        with pytest.raises(UserError, match=r"causal_runs: holds causal checks .*\(seed was 0, is 1.*--restart"):
            run(causal, *command, folder, "--seed", 1)
        with pytest.raises(UserError, match=r"num_needles was 2, is 3"):
            run(causal, *command, folder, "--num-needles", 3)
        patch.setattr(Measurement, "__call__", lambda self: left.append(1) or measure(self))
        capsys.readouterr()
        assert run(causal, *command, folder) == 0
    assert "going on after 4 finished interventions of 16" in capsys.readouterr().err
    assert len(left) == 12
    assert not (folder / "causal_runs").exists()
    for name in ("causal.csv", "causal_summary.csv", "fig_causal.csv", "fig_causal.png"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_finished_checks_are_not_made_twice_and_others_are_refused(random_llama, text, folder, monkeypatch, capsys):
    command = (random_llama, "--text", text, *SMALL, "--out", folder)
    run(causal, *command)
    before = (folder / "causal.csv").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "__call__", None)
        capsys.readouterr()
        assert run(causal, *command) == 0
        assert "holds these checks already" in capsys.readouterr().out
        with pytest.raises(UserError, match=r"out: holds causal checks .*\(seed was 0, is 1.*--restart"):
            run(causal, *command, "--seed", 1)
        # The heads of a class are other ones.
        heads = pd.read_csv(folder / "heads.csv")
        heads.assign(head_class=heads["head_class"].iloc[::-1].to_numpy()).to_csv(folder / "heads.csv", index=False)
        with pytest.raises(UserError, match=r"\(sets was"):
            run(causal, *command)
    assert run(causal, *command, "--restart") == 0
    assert (folder / "causal.csv").read_bytes() != before


def test_the_workflows_atlas_leaves_out_what_is_made_on_demand(folder):
    from hwh_core.reporting.atlas import write_atlas

    (folder / "causal_summary.csv").write_text("not even a table")
    assert 'id="causal"' not in write_atlas(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--length", 0), "--length: 0 does not fit"),
        (("--random-draws", -1), "--random-draws: -1 does not fit"),
        (("--length", 9000), "--length: 9000 tokens are more than the 4096 positions"),
        (("--text", "nowhere.txt"), "--text: nowhere.txt does not exist"),
    ],
)
def test_options_that_do_not_fit_are_named(random_llama, text, folder, options, named):
    with pytest.raises(UserError, match=named):
        run(causal, random_llama, "--out", folder, "--text", text, *SMALL, *options)
    assert not (folder / "causal.csv").exists()


@pytest.mark.parametrize("name", ["probe.npz", "heads.csv", "bands.json"])
def test_a_folder_without_a_probe_is_named(random_llama, text, folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"--out: .* has no {name}; first run hwh probe"):
        run(causal, random_llama, "--out", folder, "--text", text)


def test_a_seed_that_no_generator_takes_is_refused(random_llama, text, folder):
    with pytest.raises(UserError, match="--seed: -1 is not between 0 and 4294967295"):
        run(causal, random_llama, "--out", folder, "--text", text, "--seed", -1)


def test_another_model_than_the_one_probed_is_refused(random_llama, text, folder):
    about = json.loads((folder / "probe.json").read_text())
    about["settings"]["model"] = "0" * 16
    (folder / "probe.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="holds the probe of another model"):
        run(causal, random_llama, "--out", folder, "--text", text)
    del about["settings"]
    (folder / "probe.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="was not written by hwh probe"):
        run(causal, random_llama, "--out", folder, "--text", text)


def test_without_classes_and_bands_there_is_nothing_to_take_away():
    heads = table_of_heads().assign(head_class="unclassified", qr=float("nan"), boundary=float("nan"))
    with pytest.raises(ProbeError, match="nothing can be taken away"):
        CausalChecks(None, None, heads, {"band": {"layers": []}}, [], None, rotated=4, seed=0)


def test_layers_with_other_frequencies_have_their_own_band():
    other = {"band": {"layers": [{"layer": 1, "verdict": "peak", "peak": 2.2}]}}
    sets = {one.name: one for one in frequency_sets(table_of_heads(), BANDS | {"other_frequencies": [other]}, 4)}
    assert sets[BAND].places == {0: (0, 1), 1: (2, 3)}


def test_what_was_killed_before_its_first_intervention_is_no_other_run(random_llama, text, folder):
    """Settings alone, as a killed process leaves them, are in nobody's way."""
    (folder / UNFINISHED).mkdir()
    (folder / UNFINISHED / "settings.json").write_text('{"model": "another"}')
    assert run(causal, random_llama, "--out", folder, "--text", text, *SMALL) == 0
    assert not (folder / UNFINISHED).exists()
