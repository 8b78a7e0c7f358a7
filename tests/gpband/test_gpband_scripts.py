"""The programs that write band.json, heads.csv and bands.json, on files in the layout of the probes."""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gpband_maps import GROUPS, LENGTH, banded_maps, null

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"name": "m1", "rope_theta": 10000.0, "length": LENGTH, "qk_norm": True, "seed": 7}
BAND = {"bootstrap_resamples": 50}


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


def run(script: str, *arguments: object) -> Done:
    """Run a program as ``python scripts/<script>`` would, in this process (a new one costs seconds of imports)."""
    argv, out, err, code = sys.argv, io.StringIO(), io.StringIO(), 0
    sys.argv = [str(ROOT / "scripts" / script), *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = argv
    return Done(code, out.getvalue(), err.getvalue())


def write_probe(folder: Path, factor: float, centre: float = 14.0, **changes) -> Path:
    path = folder / f"probe_x{factor:g}.npz"
    maps = banded_maps(centre) | {"null": null(length=int(LENGTH * factor))}
    np.savez_compressed(path, **maps, sample_weight=np.ones(len(maps["rpd"])), layer_index=np.arange(3))
    about = {
        "model": "m1",
        "rope_theta": 10000.0,
        "head_dim": 64,
        "length": int(LENGTH * factor),
        "training_length": LENGTH,
        "eval_length_factor": factor,
        "num_kv_heads": 1,
    }
    path.with_suffix(".json").write_text(json.dumps(about | changes))
    return path


def extract(folder: Path, *probes: Path, settings: dict | None = None) -> Done:
    settings = {"model": MODEL, "band": BAND, "seed": 0} if settings is None else settings
    arguments = ["--settings", json.dumps(settings), "--probes", *probes, "--output", folder / "band.json"]
    return run("extract_band.py", *arguments)


def test_band_json(tmp_path):
    probes = [write_probe(tmp_path, factor) for factor in (0.5, 1, 2)]
    done = extract(tmp_path, *probes)
    assert done.returncode == 0, done.stderr
    assert "peak at group" in done.stdout
    band = json.loads((tmp_path / "band.json").read_text())
    assert {k: band[k] for k in ("model", "seed", "rope_theta", "length", "qk_norm", "head_dim")} == {
        "model": "m1",
        "seed": 7,
        "rope_theta": 10000.0,
        "length": LENGTH,
        "qk_norm": True,
        "head_dim": 64,
    }
    assert band["predicted"]["covariance"] == pytest.approx(14.045, abs=0.005)
    assert band["predicted"]["oka"] == pytest.approx(14.76, abs=0.005)
    assert list(band["factors"]) == ["0.5", "1", "2"]
    one = band["factors"]["1"]
    assert one["eval_length"] == LENGTH
    assert one["verdict"] == "peak"
    assert one["peak_ci"][0] <= one["peak"] <= one["peak_ci"][1]
    assert one["residual"]["covariance"]["value"] == pytest.approx(one["peak"] - band["predicted"]["covariance"])
    assert one["period"] == pytest.approx(2 * np.pi * 1e4 ** (one["peak"] / 32))
    assert one["period_ratio"] == pytest.approx(one["period"] / band["predicted"]["period"])
    assert one["c8_rate"] == 1.0
    assert 0 < one["c8_chance"] < 0.2
    assert one["below_band_ratio"] < one["below_band_ratio_initial"]
    assert one["initial"]["peak"] == pytest.approx(one["initial"]["null_peak"], abs=0.1)
    assert [layer["layer"] for layer in one["layers"]] == [0, 1, 2]
    assert band["drift"]["shifts"]["2"]["artifact_shift"] == pytest.approx(2.408, abs=0.001)
    assert band["drift"]["max_abs_shift"] < 0.1
    manifest = json.loads((tmp_path / "band.json.manifest.json").read_text())
    assert len(manifest["inputs"]) == 6
    assert manifest["code_hash"]


def test_band_json_is_reproducible(tmp_path):
    probe = write_probe(tmp_path, 1)
    texts = []
    for _ in range(2):
        assert extract(tmp_path, probe).returncode == 0
        texts.append((tmp_path / "band.json").read_text())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["drift"]["shifts"] == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 1e6}, "rope_theta is 1000000.0"),
        ({"rope_theta": None}, "rope_theta is None"),
        ({"training_length": 512}, "training_length is 512"),
    ],
)
def test_probe_of_another_model_is_refused(tmp_path, change, words):
    done = extract(tmp_path, write_probe(tmp_path, 1, **change))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "band.json").exists()


def test_bad_files_and_settings_are_one_sentence(tmp_path):
    probe = write_probe(tmp_path, 1)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(probe.read_bytes()[:1000])
    cut.with_suffix(".json").write_text(probe.with_suffix(".json").read_text())
    nan = tmp_path / "nan.npz"
    maps = banded_maps(14.0)
    maps["rfis"] = maps["rfis"].copy()
    maps["rfis"][0, 0, 0, 0] = np.nan
    np.savez(nan, **maps)
    nan.with_suffix(".json").write_text(probe.with_suffix(".json").read_text())
    cases = [
        (extract(tmp_path, cut), "cut.npz cannot be read"),
        (extract(tmp_path, nan), "nan.npz: rfis: 1 of"),
        (extract(tmp_path, tmp_path / "none.npz"), "none.json does not exist"),
        (extract(tmp_path, probe, probe), "was given by another file"),
        (extract(tmp_path, probe, settings={"model": MODEL, "band": {"promience": 1}, "seed": 0}), "'band.promience'"),
    ]
    for done, words in cases:
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "band.json").exists()


def write_behavior(folder: Path, shape: tuple[int, int] = (3, 2), **changes) -> Path:
    rng = np.random.default_rng(0)
    path = folder / "behavior.npz"
    qr = rng.random((6, *shape))
    np.savez_compressed(
        path, qr=qr, qr_calibrated=qr - 0.1, ld=rng.random((6, *shape, 2, 1)), windows=[64, 128], sinks=[4]
    )
    path.with_suffix(".json").write_text(json.dumps({"default_window": 128, "default_sinks": 4} | changes))
    return path


def classify(folder: Path, probe: Path, behavior: Path, **changes) -> Done:
    candidate = {"label": "pretraining", "rope_theta": 10000.0, "length": LENGTH} | changes
    # The workflow hands over the preset's whole entry of the model.
    model = {"name": "m", "title": "M", "source": {"kind": "folder", "path": "x"}, "candidate_bands": [candidate]}
    settings = {"model": model, "band": BAND, "seed": 1}
    outputs = ["--output-heads", folder / "heads.csv", "--output-bands", folder / "bands.json"]
    arguments = ["--settings", json.dumps(settings), "--probe", probe, "--behavior", behavior, *outputs]
    return run("classify_heads.py", *arguments)


def test_heads_csv_and_bands_json(tmp_path):
    probe = write_probe(tmp_path, 1, training_length=None)
    with np.load(probe) as file:
        arrays = {key: file[key] for key in file.files if not key.endswith("_initial")}
    np.savez(probe, **arrays)
    behavior = write_behavior(tmp_path)
    done = classify(tmp_path, probe, behavior)
    assert done.returncode == 0, done.stderr
    heads = pd.read_csv(tmp_path / "heads.csv")
    assert len(heads) == 6
    identity, shares = ["layer", "head", "kv_group", "head_class"], ["s_ret", "s_ret_lo", "s_ret_hi", "d_ratio"]
    assert {*identity, *shares, "boundary", "qr", "qr_calibrated", "ld"} <= set(heads.columns)
    pd.testing.assert_frame_equal(heads, pd.read_parquet(tmp_path / "heads.parquet"), check_dtype=False)
    scores = np.load(behavior)
    np.testing.assert_allclose(heads["qr"], scores["qr"].mean(axis=0).ravel())
    np.testing.assert_allclose(heads["ld"], scores["ld"][..., 1, 0].mean(axis=0).ravel())
    bands = json.loads((tmp_path / "bands.json").read_text())
    assert bands["band"]["no_initial_model"]
    assert bands["band"]["below_band_ratio_initial"] is None
    assert len(bands["clusters"]) == 1
    assert bands["clusters"][0]["centre"] == pytest.approx(14.0, abs=0.2)
    assert abs(bands["candidate_bands"][0]["nearest_cluster_minus_predicted"]) < 0.3
    assert sum(bands["num_heads_by_class"].values()) == 6
    assert bands["validation"]["spearman_s_ret_qr"]["n_heads"] == 6
    assert bands["rotary_dim"] == 2 * GROUPS
    assert (tmp_path / "heads.csv.manifest.json").is_file()
    assert (tmp_path / "bands.json.manifest.json").is_file()


def test_scores_of_another_model_are_refused(tmp_path):
    probe = write_probe(tmp_path, 1)
    done = classify(tmp_path, probe, write_behavior(tmp_path, (2, 2)))
    assert done.returncode == 1
    assert "qr: expected [sample, 3 layers, 2 heads]" in done.stderr
    done = classify(tmp_path, probe, write_behavior(tmp_path, default_window=99))
    assert done.returncode == 1
    assert "default_window 99 is not among windows [64, 128]" in done.stderr
    done = classify(tmp_path, probe, write_behavior(tmp_path), rope_theta=0.5)
    assert done.returncode == 1
    assert "candidate_bands" in done.stderr
    assert "rope_theta: 0.5 is not above 1" in done.stderr
    assert not (tmp_path / "heads.csv").exists()
