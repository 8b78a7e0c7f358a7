"""`hwh verify` of results of which a part was left behind on purpose: references, and presets without weights."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from verify_helpers import PROGRAM, check

from hwh_core import verification
from hwh_core.commands.verify import summary
from hwh_core.config import validate_preset
from hwh_core.provenance import write_manifest
from hwh_core.verification import Verifier


@pytest.fixture
def reference(results):
    """The small results of the chain, kept below results/reference: the probe is left out, its manifest stays."""
    folder = Path("results/reference/minimal")
    shutil.copytree(results, folder)
    (folder / "controlled/base/probe.npz").unlink()
    Path("source.txt").unlink()
    shutil.rmtree(results)
    return folder


def test_what_reference_results_leave_out_does_not_make_them_stale(reference, minimal_preset):
    findings = Verifier(reference, validate_preset(minimal_preset, "test"), Path()).check()
    assert all(finding.follows for finding in findings)
    assert {path.name for finding in findings for path in finding.not_kept} == {"probe.npz", "source.txt"}
    assert summary(findings, True) == [
        "3 artifacts checked, 0 no longer follow from their inputs, settings and code",
        "inputs not kept here: 1 (reference results; of 1 artifacts the manifest alone)",
    ]


@pytest.fixture
def trained(results):
    """A training with a folder of weights, and scores that were measured with it; the weights are gone since."""
    model = results / "controlled/base/model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"weights")
    write_manifest(model, inputs=[], settings={}, started=time.time(), script=PROGRAM)
    scores = results / "controlled/base/scores.csv"
    scores.write_text("x", encoding="utf-8")
    inputs = [model, model / "model.safetensors"]
    write_manifest(scores, inputs=inputs, settings={}, started=time.time(), script=PROGRAM)
    (model / "model.safetensors").unlink()
    # Its settings are the whole preset, in which these tests change a key.
    (results / "fig4.csv.manifest.json").unlink()
    (results / "fig4.csv").unlink()
    return results


def test_weights_that_the_preset_does_not_keep_are_no_complaint(trained, minimal_preset):
    found = check(trained, minimal_preset)
    assert "it was changed after it had been made" in found["model"]
    assert "model.safetensors is gone" in found["scores.csv"]
    minimal_preset["keep_weights"] = False
    findings = Verifier(trained, validate_preset(minimal_preset, "test"), Path()).check()
    assert all(finding.follows for finding in findings)
    assert {path.name for finding in findings for path in finding.not_kept} == {"model", "model.safetensors"}
    assert "weights not handed on: 2 (keep_weights: false; what was made from them is checked)" in summary(
        findings, False
    )
    shutil.rmtree(trained / "controlled/base/model")
    assert check(trained, minimal_preset) == {}


def test_only_weights_may_be_gone_and_scores_must_be_of_the_training_that_is_recorded(trained, minimal_preset):
    minimal_preset["keep_weights"] = False
    (trained / "controlled/base/probe.npz").unlink()
    assert set(check(trained, minimal_preset)) == {"probe.npz", "band.json"}
    model = trained / "controlled/base/model"
    (model / "model.safetensors").write_bytes(b"of another training")
    write_manifest(model, inputs=[], settings={}, started=time.time(), script=PROGRAM)
    (model / "model.safetensors").unlink()
    assert check(trained, minimal_preset)["scores.csv"] == (
        "input results/minimal/controlled/base/model was another one than model.manifest.json describes"
    )


def test_reference_results_are_held_against_what_they_keep(reference, minimal_preset, monkeypatch):
    # A run of one's own with other content says nothing of the reference.
    own = Path("results/minimal/controlled/base/probe.npz")
    own.parent.mkdir(parents=True)
    own.write_text("of another run", encoding="utf-8")
    assert check(reference, minimal_preset) == {}
    (reference / "fig4.csv").write_text("edited", encoding="utf-8")
    assert check(reference, minimal_preset) == {"fig4.csv": "it was changed after it had been made"}
    (reference / "controlled/base/probe.npz").write_text("edited", encoding="utf-8")
    found = check(reference, minimal_preset)
    assert "input results/minimal/controlled/base/probe.npz has changed" in found["band.json"]
    monkeypatch.setattr(verification, "program_hash", lambda script, settings: "0" * 16)
    assert set(check(reference, minimal_preset)) == {"probe.npz", "band.json", "fig4.csv"}
