"""Claims about controlled Transformers (C): every rule with constructed numbers, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import report_preset as presets
import report_tree as tree
from report_claims import SINGLE_GPU, outcome_of

from hwh_core.config import load_preset
from hwh_core.reporting.intervals import CONTRADICTED
from hwh_core.reporting.results import Results
from hwh_core.rope import predicted_index

PAPER_CONTROLLED = [
    presets.controlled_model(theta, length, seed, qk_norm)
    for theta, length, qk_norm in (
        (1e4, 2048, True),
        (1e6, 2048, True),
        (1e4, 4096, True),
        (1e4, 2048, False),
        (1e6, 2048, False),
    )
    for seed in (0, 1, 2)
]
CENTRES = {"theta1e4-L2048": 21.5, "theta1e6-L2048": 14.5, "theta1e4-L4096": 24.0}
CENTRES |= {"theta1e4-L2048-noqk": 23.0, "theta1e6-L2048-noqk": 15.5}


def controlled(root, moved: dict[str, float] | None = None, spread: float = 0.05, **changes) -> Results:
    """Three seeds a condition at the paper's lengths, ``spread`` apart; ``moved`` shifts conditions by name."""
    preset = presets.preset(controlled=PAPER_CONTROLLED)
    peaks = {}
    for model in preset.controlled.models:
        condition = model.name.rsplit("-s", 1)[0]
        peaks[model.name] = CENTRES[condition] + (moved or {}).get(condition, 0.0) + spread * (model.seed - 1)
    tree.write_controlled(root, preset, peaks, **changes)
    return Results(root, preset)


@pytest.mark.parametrize("name", ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10"])
def test_the_papers_numbers_are_reproduced(tmp_path, name):
    outcome = outcome_of(controlled(tmp_path), name)
    assert outcome.verdict == "reproduced", outcome
    assert outcome.evidence
    assert (tmp_path / outcome.evidence).is_file()
    assert outcome.n_samples > 0


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("C1", {"theta1e4-L2048": 2.0}),
        ("C2", {"theta1e6-L2048": -2.0}),
        ("C3", {"theta1e4-L4096": 2.0}),
        ("C4", {"theta1e6-L2048": 3.0}),
        ("C5", {"theta1e4-L2048-noqk": -2.5}),
        ("C5", {"theta1e6-L2048-noqk": 2.0}),
    ],
)
def test_bands_elsewhere_are_not_reproduced(tmp_path, name, moved):
    assert outcome_of(controlled(tmp_path, moved), name).verdict == "not_reproduced"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("C6", {"layer_iqr": 4.0}),
        ("C7", {"below_band_ratio": 0.5, "below_band_ratio_ci": [0.45, 0.55]}),
        ("C7", {"below_band_over_initial": 0.5, "below_band_over_initial_ci": [0.45, 0.55]}),
        ("C8", {"c8_rate": 0.0}),
        ("C10", {"drift": 2.0}),
    ],
)
def test_readings_outside_the_tolerance_are_not_reproduced(tmp_path, name, changes):
    assert outcome_of(controlled(tmp_path, **changes), name).verdict == "not_reproduced"


@pytest.mark.parametrize("name", ["C1", "C4", "C10"])
def test_seeds_that_disagree_are_inconclusive(tmp_path, name):
    results = controlled(tmp_path, spread=1.5)
    if name == "C10":
        for model in results.preset.controlled.models:
            shift = 0.7 * (model.seed - 1)
            tree.put_json(tmp_path / "controlled" / model.name / "band.json", tree.band(model, drift=shift))
    assert outcome_of(results, name).verdict == "inconclusive"


@pytest.mark.parametrize("name", ["C1", "C4", "C5", "C7", "C10"])
def test_a_band_that_fails_the_null_in_one_seed_is_inconclusive(tmp_path, name):
    results = controlled(tmp_path)
    model = results.preset.controlled.models[0]
    path = tmp_path / "controlled" / model.name / "band.json"
    tree.put_json(path, tree.band(model, 21.5, verdict="none"))
    outcome = outcome_of(results, name)
    assert outcome.verdict == "inconclusive"
    assert "null at initialisation" in outcome.note


def test_no_band_at_all_gives_no_number(tmp_path):
    outcome = outcome_of(controlled(tmp_path, verdict="none"), "C1")
    assert outcome.verdict == "inconclusive"
    assert outcome.parts[0].interval is None


def test_an_edge_is_no_band(tmp_path):
    assert outcome_of(controlled(tmp_path, verdict="edge"), "C1").verdict == "inconclusive"


def test_agreement_no_better_than_chance_proves_nothing(tmp_path):
    outcome = outcome_of(controlled(tmp_path, c8_chance=0.99), "C8")
    assert outcome.verdict == "inconclusive"
    assert "no better than chance" in outcome.note


def test_models_of_other_conditions_are_no_seeds(tmp_path):
    assert outcome_of(controlled(tmp_path / "three"), "C8").n_seeds == 3
    models = [presets.controlled_model(theta, length) for theta, length in ((1e4, 2048), (1e6, 2048), (1e4, 4096))]
    preset = presets.preset(controlled=models)
    tree.write_controlled(tmp_path / "one", preset)
    outcome = outcome_of(Results(tmp_path / "one", preset), "C8")
    assert (outcome.verdict, outcome.n_seeds) == ("inconclusive", 1)
    assert "in 3 models" in outcome.note
    assert "one seed" in outcome.note


def test_c6_says_how_many_layers_it_rests_on(tmp_path):
    outcome = outcome_of(controlled(tmp_path), "C6")
    assert all("layers have an RPD peak" in part.note for part in outcome.parts)


def test_two_layers_are_too_few_for_one_band_in_all_layers(tmp_path):
    outcome = outcome_of(controlled(tmp_path, layers=2), "C6")
    assert outcome.verdict == "not_testable"
    assert "2 layers" in outcome.note


def test_a_value_without_an_interval_over_samples_is_inconclusive(tmp_path):
    assert outcome_of(controlled(tmp_path, peak_ci=None), "C1").verdict == "inconclusive"


def test_the_constants_are_reported_without_a_verdict(tmp_path):
    outcome = outcome_of(controlled(tmp_path), "C11")
    assert outcome.verdict == "inconclusive"
    residuals = {part.label: part.interval.estimate for part in outcome.parts}
    assert residuals["r - r* (x*=4.4934), θ=1e4, L=2048"] == pytest.approx(21.5 - predicted_index(64, 1e4, 2048))
    assert residuals["r - r* (x*=3.6572), θ=1e4, L=2048"] == pytest.approx(21.5 - predicted_index(64, 1e4, 2048, "oka"))
    assert "report only" in outcome.note


def test_the_replicas_have_their_own_row(tmp_path):
    models = [presets.controlled_model(theta, 256, seed) for theta in (1e4, 1e6) for seed in (0, 1, 2)]
    preset = presets.preset(controlled=models)
    tree.write_controlled(tmp_path, preset)
    results = Results(tmp_path, preset)
    good = outcome_of(results, "C9")
    assert good.verdict == "reproduced"
    assert "not run" in good.note
    assert outcome_of(results, "C1").verdict == "not_testable"
    for model in preset.controlled.models:
        tree.put_json(tmp_path / "controlled" / model.name / "band.json", tree.band(model, 5.0 + 0.01 * model.seed))
    assert outcome_of(Results(tmp_path, preset), "C9").verdict == "not_reproduced"


def test_one_seed_a_condition_is_inconclusive(tmp_path):
    preset = presets.preset(controlled=[presets.controlled_model(1e4, 2048)])
    tree.write_controlled(tmp_path, preset)
    outcome = outcome_of(Results(tmp_path, preset), "C1")
    assert outcome.verdict == "inconclusive"
    assert "one seed" in outcome.note
    assert outcome.n_seeds == 1


AT_THE_PAPERS_LENGTHS = ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10"]


PAPER_CENTRES = {(1e4, 2048, True): 21.5, (1e6, 2048, True): 14.5, (1e4, 4096, True): 24.0}
PAPER_CENTRES |= {(1e4, 2048, False): 23.0, (1e6, 2048, False): 15.5}


def condition_of(model) -> tuple[float, int, bool]:
    return model.rope_theta, model.length, model.qk_norm


def single_gpu(root: Path, chosen: Callable[..., bool], moved: Callable[..., float]) -> Results:
    """Imagined bands of the ``chosen`` models of the preset single_gpu: where the paper has them, ``moved`` each."""
    preset = load_preset(SINGLE_GPU)
    models = [model for model in preset.controlled.models if chosen(model)]
    preset = preset.model_copy(update={"controlled": preset.controlled.model_copy(update={"models": models})})
    peaks = {model.name: PAPER_CENTRES[condition_of(model)] + moved(model) for model in models}
    tree.write_controlled(root, preset, peaks)
    return Results(root, preset)


def with_seeds(root: Path, seeds: set[int], apart: float) -> Results:
    return single_gpu(root, lambda model: model.seed in seeds, lambda model: apart * model.seed)


@pytest.mark.parametrize("name", AT_THE_PAPERS_LENGTHS)
def test_two_seeds_of_single_gpu_decide_the_claims_about_controlled_models(tmp_path, name):
    both = outcome_of(with_seeds(tmp_path / "both", {0, 1}, 0.05), name)
    assert (both.verdict, "one seed" in both.note, "one pair" in both.note) == ("reproduced", False, False)
    assert both.n_seeds >= 2


@pytest.mark.parametrize("name", ["C1", "C2", "C3", "C4", "C5"])
def test_one_seed_of_single_gpu_decides_nothing_and_two_that_disagree_neither(tmp_path, name):
    assert outcome_of(with_seeds(tmp_path / "one", {0}, 0.05), name).verdict == "inconclusive"
    assert outcome_of(with_seeds(tmp_path / "apart", {0, 1}, 1.0), name).verdict != "reproduced"


@pytest.mark.parametrize(("moved", "expected"), [(0.1, "reproduced"), (3.0, "inconclusive")])
def test_a_seed_of_one_condition_alone_may_speak_against_the_pairs(tmp_path, moved, expected):
    """Of three seeds with QK-norm two have partners without it, whose bands lie 1.5 groups higher."""
    results = single_gpu(
        tmp_path,
        lambda model: model.seed < 2 or condition_of(model) == (1e4, 2048, True),
        lambda model: moved if model.seed == 2 else 0.0,
    )
    outcome = outcome_of(results, "C5")
    assert outcome.verdict == expected
    assert (CONTRADICTED in outcome.note) is (expected == "inconclusive")
