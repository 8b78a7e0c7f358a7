"""The probe along a training: the same measure as of the trained model, every step against the first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from probe_helpers import VOCABULARY, controlled_model

from hwh_core.data.loader import sequences_for_probe
from hwh_core.data.store import TokenStore
from hwh_core.probes.curve import probe_curve
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.jobs import probe_controlled
from hwh_core.training.snapshots import snapshot_folder

ROOT = Path(__file__).resolve().parents[2]
STEPS = [0, 5, 20]
SETTINGS = {
    "model": {"name": "c", "rope_theta": 10000.0, "length": 48, "qk_norm": True, "seed": 4},
    "probe": {"num_samples": 3, "num_queries": 16, "eval_length_factors": [1.0]},
    "seed": 0,
}
CURVE = SETTINGS | {"steps": STEPS, "tokens_per_step": 96}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the model at initialisation, of snapshots (one, after step 5) and of the trained model."""
    base = tmp_path_factory.mktemp("curve")
    for seed, folder in ((0, base / "initial"), (1, snapshot_folder(base / "snapshots", 5)), (2, base / "model")):
        controlled_model(seed).save_pretrained(folder)
    return base / "initial", base / "snapshots", base / "model"


def test_every_step_is_measured_against_the_first_and_the_last_as_the_trained_model(folders, corpus):
    initial, _, model = folders
    found = dict(probe_curve(CURVE, *folders, corpus.store))
    assert list(found) == STEPS
    for step, maps in found.items():
        np.testing.assert_array_equal(maps.rpd_initial, found[0].rpd)
        np.testing.assert_array_equal(maps.rfis_initial, found[0].rfis)
        assert maps.description["step"] == step
        assert maps.description["tokens"] == 96 * step
        assert maps.description["training_length"] == maps.description["length"] == 48
    assert not np.allclose(found[5].rpd, found[0].rpd)
    trained = dict(probe_controlled(SETTINGS, model, initial, corpus.store))[1.0]
    for name in ("rpd", "rfis", "rpd_initial", "rfis_initial", "null"):
        np.testing.assert_array_equal(getattr(found[20], name), getattr(trained, name))


def test_the_loss_is_that_of_the_probed_text(folders, corpus):
    found = dict(probe_curve(CURVE, *folders, corpus.store))
    ids = torch.from_numpy(sequences_for_probe(TokenStore.open(corpus.store), 48, 3, 0))
    for step, seed in ((0, 0), (5, 1), (20, 2)):
        with torch.no_grad():
            logits = controlled_model(seed)(ids).logits[:, :-1]
        expected = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        assert found[step].description["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_snapshot_that_is_not_there_is_named(folders, corpus):
    with pytest.raises(ProbeError, match=r"no snapshot after step 7.*snapshot_steps"):
        list(probe_curve(CURVE | {"steps": [0, 7, 20]}, *folders, corpus.store))


def test_the_program_writes_every_step_and_records_the_snapshots(folders, corpus, tmp_path):
    initial, snapshots, model = folders
    command = [sys.executable, str(ROOT / "scripts/probe_curve.py"), "--settings", json.dumps(CURVE)]
    for option, folder in (("model", model), ("initial", initial), ("snapshots", snapshots), ("store", corpus.store)):
        command += [f"--{option}", str(folder)]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [f"probe_step{step}.{kind}" for step in STEPS for kind in ("json", "npz", "npz.manifest.json")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected)
    manifest = json.loads((tmp_path / "probe_step5.npz.manifest.json").read_text())
    assert list(manifest["snapshots"]) == ["step-00000005"]
    assert not any("snapshots" in name for name in manifest["inputs"])
