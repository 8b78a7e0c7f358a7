"""`hwh causal`: the checks of a probed model, what it refuses, and `hwh report` that shows them."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest
from probe_helpers import parsed
from test_probe_causal import BANDS, table_of_heads

from hwh_core.commands import causal, probe, report
from hwh_core.probes.causal import BAND, causal_check, frequency_sets
from hwh_core.probes.errors import ProbeError
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
    assert run(report, folder) == 0
    page = (folder / "atlas.html").read_text(encoding="utf-8")
    (row,) = summary[(summary["intervention"] == "the band") & (summary["measure"] == "loss")].itertuples()
    assert f"<td>{row.change:+.3f} [{row.change_low:+.3f}, {row.change_high:+.3f}]</td>" in page
    bands = json.loads((folder / "bands.json").read_text())
    (folder / "bands.json").write_text(json.dumps(bands | {"clusters": []}))
    with pytest.raises(UserError, match=r"causal_summary\.csv: bands\.json was made anew since"):
        run(report, folder)
    inputs = json.loads((folder / "atlas.html.manifest.json").read_text())["inputs"]
    assert str(folder / "causal_summary.csv") in inputs


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
        causal_check(None, None, heads, {"band": {"layers": []}}, [], None, rotated=4, seed=0)


def test_layers_with_other_frequencies_have_their_own_band():
    other = {"band": {"layers": [{"layer": 1, "verdict": "peak", "peak": 2.2}]}}
    sets = {one.name: one for one in frequency_sets(table_of_heads(), BANDS | {"other_frequencies": [other]}, 4)}
    assert sets[BAND].places == {0: (0, 1), 1: (2, 3)}
