"""When the band appears along a training, and the program that writes the curve of one model."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from gpband_maps import LENGTH, banded_maps, null
from test_gpband_scripts import BAND, MODEL, run

from hwh_core.gpband.emergence import Emergence, emergence, emergence_of
from hwh_core.gpband.errors import BandError
from hwh_core.reporting.band_emergence import count_text, emergence_text

TOKENS = [0, 100, 200, 400, 800]


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        # It appears and stays; it wanders to its place, then stays there.
        ([None, None, 14.0, 14.1, 14.2], Emergence(200, 200, 200)),
        ([None, 9.0, 11.0, 13.5, 14.2], Emergence(100, 100, 400)),
        # It appears, vanishes and reappears.
        ([None, 14.0, None, 14.0, 14.0], Emergence(100, 400, 400)),
        ([None, 14.0, 14.0, 14.0, None], Emergence(100, None, None)),
        # Never; at the last step only; from the first on.
        ([None] * 5, Emergence(None, None, None)),
        ([None, None, None, None, 14.0], Emergence(800, 800, 800)),
        ([14.0] * 5, Emergence(0, 0, 0)),
        ([math.nan, math.nan, 14.0, math.nan, 14.0], Emergence(200, 800, 800)),
        # One group from the last place is the same place, more is not.
        ([None, 13.0, 14.0, 15.0, 14.0], Emergence(100, 100, 100)),
        ([None, 12.9, 14.0, 15.0, 14.0], Emergence(100, 100, 200)),
    ],
)
def test_when_a_band_appears(peaks, expected):
    found = emergence(TOKENS, peaks)
    assert found == expected
    assert found.vanished == (found.first is not None and found.first != found.stays)


def test_token_counts_that_do_not_belong_to_the_peaks_are_refused():
    with pytest.raises(BandError, match="do not ascend"):
        emergence([0, 200, 100], [None, None, 14.0])
    with pytest.raises(BandError, match="expected as many"):
        emergence([0, 100], [None])
    with pytest.raises(BandError, match="at least one"):
        emergence([], [])


def curve(verdicts: list[str]) -> pd.DataFrame:
    """Rows in the wrong order: they are sorted by whoever reads them."""
    frame = pd.DataFrame({"tokens": TOKENS, "verdict": verdicts, "peak_group": [14.0] * 5})
    frame["peak_group"] = frame["peak_group"].where(frame["verdict"] != "none")
    return frame.iloc[::-1]


def test_a_shoulder_is_no_band():
    assert emergence_of(curve(["none", "edge", "edge", "peak", "peak"])) == Emergence(400, 400, 400)
    assert emergence_of(curve(["none", "edge", "edge", "edge", "edge"])) == Emergence(None, None, None)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["none", "none", "peak", "peak", "peak"], "a band from 200 tokens on (none at 100)"),
        (
            ["none", "peak", "none", "peak", "peak"],
            "a band from 400 tokens on (none at 200; a first one at 100 did not stay)",
        ),
        (["none", "none", "peak", "peak", "none"], "a band first at 200 tokens, but none at the last point, 800"),
        (["none"] * 5, "no band at any of the 5 measured points up to 800 tokens"),
        (["peak"] * 5, "a band from 0 tokens on"),
    ],
)
def test_the_words_for_it(verdicts, expected):
    assert emergence_text(curve(verdicts)) == expected


def test_a_band_that_wanders_is_told():
    frame = curve(["none", "peak", "peak", "peak", "peak"])
    frame["peak_group"] = [14.0, 14.0, 12.0, 9.0, math.nan]
    assert emergence_text(frame) == (
        "a band from 100 tokens on (none at 0), within 1 group of its last place from 400 on"
    )


def test_numbers_of_tokens_are_short():
    assert [count_text(count) for count in (0, 999, 1310720, 131072000, 15e9)] == ["0", "999", "1.31M", "131M", "15B"]


def write_probe(folder, step: int, strength: float, **changes):
    """Probe of one step: the maps at initialisation, and a band at group 14 of the given strength on top."""
    maps = banded_maps(14.0) | {"null": null(length=LENGTH)}
    for name in ("rfis", "rpd"):
        maps[name] = maps[f"{name}_initial"] + strength * maps[name]
    path = folder / f"probe_step{step}.npz"
    np.savez_compressed(path, **maps, sample_weight=np.ones(len(maps["rpd"])), layer_index=np.arange(3))
    about = {
        "rope_theta": 10000.0, "head_dim": 64, "length": LENGTH, "training_length": LENGTH, "step": step,
        "tokens": 1000 * step, "loss": 6.0 - step / 100,
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(about | changes))
    return path


def extract(folder, *probes):
    settings = json.dumps({"model": MODEL, "band": BAND, "seed": 0})
    return run("extract_curve.py", "--settings", settings, "--probes", *probes, "--output", folder / "curve.csv")


def test_the_curve_of_a_model_whose_band_grows(tmp_path):
    done = extract(tmp_path, *[write_probe(tmp_path, step, share) for step, share in ((50, 1.0), (0, 0.0), (5, 0.3))])
    assert done.returncode == 0, done.stderr
    assert "m1, 50,000 tokens: peak at group 13.9" in done.stdout
    rows = pd.read_csv(tmp_path / "curve.csv")
    assert rows["tokens"].tolist() == [0, 5000, 50000]
    assert rows["verdict"].tolist() == ["none", "peak", "peak"]
    assert rows["loss_nats_per_token"].tolist() == pytest.approx([6.0, 5.95, 5.5])
    assert math.isnan(rows["peak_group"][0])
    assert rows["peak_group"][1:].tolist() == pytest.approx([14.0] * 2, abs=0.3)
    assert (rows["peak_group_low"][1:] <= rows["peak_group"][1:]).all()
    assert (rows["peak_group"][1:] <= rows["peak_group_high"][1:]).all()
    assert rows["height_over_initial"][2] > rows["height_over_initial"][1] > 2
    assert emergence_of(rows) == Emergence(5000, 5000, 5000)
    maps = pd.read_csv(tmp_path / "curve_maps.csv")
    assert len(maps) == 3 * 3 * 32 * 2
    last = maps[(maps["step"] == 50) & (maps["metric"] == "RPD")].groupby("frequency_group")["value"].mean()
    with np.load(tmp_path / "probe_step50.npz") as probe:
        assert last.to_numpy() == pytest.approx(probe["rpd"].mean(axis=(0, 1, 2)))
    manifest = json.loads((tmp_path / "curve.csv.manifest.json").read_text())
    assert len(manifest["inputs"]) == 6
    assert "curve_maps.csv" in manifest["beside"]


def test_the_last_step_is_measured_as_band_json_measures_the_trained_model(tmp_path):
    probe = write_probe(tmp_path, 50, 1.0, eval_length_factor=1.0)
    assert extract(tmp_path, probe).returncode == 0
    settings = json.dumps({"model": MODEL, "band": BAND, "seed": 0})
    done = run("extract_band.py", "--settings", settings, "--probes", probe, "--output", tmp_path / "band.json")
    assert done.returncode == 0, done.stderr
    band = json.loads((tmp_path / "band.json").read_text())["factors"]["1"]
    row = pd.read_csv(tmp_path / "curve.csv").iloc[0]
    assert row["peak_group"] == pytest.approx(band["peak"])
    assert [row["peak_group_low"], row["peak_group_high"]] == pytest.approx(band["peak_ci"])


def test_files_that_cannot_make_a_curve_are_named(tmp_path):
    first = write_probe(tmp_path, 0, 0.0)
    other = tmp_path / "other"
    other.mkdir()
    done = extract(tmp_path, first, write_probe(other, 0, 0.0))
    assert done.returncode == 1
    assert "step 0 was given by two files" in done.stderr
    done = extract(tmp_path, write_probe(other, 5, 0.0, rope_theta=5e5))
    assert "rope_theta is 500000.0, but model 'm1' has 10000.0" in done.stderr
    assert not (tmp_path / "curve.csv").exists()
