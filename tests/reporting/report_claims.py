"""Imagined hybrid families and the outcomes of claims about them, for the tests of claims about trained models."""

from __future__ import annotations

from pathlib import Path

import report_preset as presets
import report_tree as tree

from hwh_core.reporting import ledger
from hwh_core.reporting.claim_model import Outcome
from hwh_core.reporting.results import Results

SINGLE_GPU = Path(__file__).resolve().parents[2] / "config" / "single_gpu.yaml"


def outcome_of(results: Results, name: str) -> Outcome:
    return next(claim for claim in ledger.CLAIMS if claim.id == name).evaluate(results)


def hybrids(root, claim_scale: str, *, seeds: int = 3, shifts=None, accuracies=None, names=presets.MAIN) -> Results:
    niah_length = 256
    preset = presets.preset(scales=[presets.scale(names, claim_scale, seeds=seeds, length=niah_length)])
    niah = preset.evaluation.niah.model_copy(update={"samples_per_cell": 60, "depths": [0, 50, 100]})
    preset = preset.model_copy(update={"evaluation": preset.evaluation.model_copy(update={"niah": niah})})
    tree.write_hwh(root, preset, shifts, accuracies, rows=20000)
    return Results(root, preset)


def constant(**levels: float):
    """Needle accuracy by architecture: ``levels`` beyond the training length, 1 within it."""
    return lambda architecture, length: lambda n, depth, distance: levels.get(architecture, 1.0) if n > length else 1.0
