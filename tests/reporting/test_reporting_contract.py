"""The report reads what the extraction and the classification really write, and the presets ask for nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import load_preset
from hwh_core.gpband.maps import check_maps
from hwh_core.gpband.record import BandModel, band_record
from hwh_core.reporting import ledger, requirements, selection
from hwh_core.reporting.results import Results
from hwh_core.rope import predicted_index

ROOT = Path(ledger.__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["config", "smoke", "variants", "single_gpu", "paper"])
def test_targets_of_a_preset_are_what_its_models_allow(name):
    preset = load_preset(ROOT / "config" / f"{name}.yaml")
    assert preset.targets.figures == selection.available_figures(preset)
    assert preset.targets.tables == selection.available_tables(preset)
    for number in preset.targets.figures:
        assert requirements.figure_inputs(preset, number)


def test_the_ledger_reads_what_the_extraction_writes(tmp_path):
    models = [presets.controlled_model(theta, 256, seed) for theta in (1e4, 1e6) for seed in (0, 1, 2)]
    preset = presets.preset(controlled=models)
    settings = preset.band.model_copy(update={"bootstrap_resamples": 40})
    for model in preset.controlled.models:
        peak = predicted_index(64, model.rope_theta, model.length) + 0.02 * model.seed
        arrays = tree.controlled_maps(model, peak)
        named = {key: arrays[key] for key in ("rfis_initial", "rpd_initial", "sample_weight", "layer_index")}
        maps = check_maps(arrays["rfis"], arrays["rpd"], arrays["inv_freq"], np.ones(32), **named)
        about = BandModel(
            name=model.name,
            rope_theta=model.rope_theta,
            head_dim=64,
            length=model.length,
            qk_norm=model.qk_norm,
            seed=model.seed,
        )
        probes = {factor: (maps, round(factor * model.length)) for factor in (0.5, 1.0, 2.0)}
        content = json.loads(json.dumps(band_record(about, probes, settings, seed=0), allow_nan=False))
        tree.put_json(tmp_path / "controlled" / model.name / "band.json", content)
    results = Results(tmp_path, preset)
    found = {claim.id: claim.evaluate(results) for claim in ledger.CLAIMS if claim.scale == "C"}
    for name in ("C9", "C4-scaled", "C6-scaled", "C7-scaled", "C10-scaled"):
        assert found[name].verdict == "reproduced", (name, found[name])
    assert found["C8-scaled"].parts[0].interval is not None
    assert found["C11-scaled"].verdict == "inconclusive"


def test_the_ledger_reads_what_the_classification_writes(tmp_path):
    preset = presets.preset()
    tree.write_pretrained(tmp_path, preset)
    folder = tmp_path / "pretrained/smollm2-135m"
    tree.put_json(folder / "probe.json", {"length": 2048, "num_kv_heads": 2, "training_length": 2048})
    tree.put_json(folder / "behavior.json", {"default_window": 128, "default_sinks": 4})
    for name in ("heads.csv", "bands.json"):
        (folder / name).unlink()
    model = preset.pretrained.models[0]
    settings = {
        "model": {"name": model.name, "title": model.title, "candidate_bands": model.candidate_bands},
        "band": {"bootstrap_resamples": 30},
        "seed": 0,
    }
    command = [
        *(sys.executable, str(ROOT / "scripts/classify_heads.py"), "--settings", json.dumps(settings)),
        *("--probe", str(folder / "probe.npz"), "--behavior", str(folder / "behavior.npz")),
        *("--output-heads", str(folder / "heads.csv"), "--output-bands", str(folder / "bands.json")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = Results(tmp_path, preset)
    for claim in ledger.CLAIMS:
        if claim.id.endswith("-smollm2"):
            assert claim.evaluate(results).verdict != "not_testable", claim.id
    w3 = next(claim for claim in ledger.CLAIMS if claim.id == "W3-smollm2").evaluate(results)
    assert w3.verdict == "reproduced"
    assert results.heads(model).shape[0] == 72
