"""Claims about trained models (C, M, B): every rule with constructed numbers, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.config import NiahGrid, load_preset
from hwh_core.reporting import ledger, requirements
from hwh_core.reporting.claim_model import Outcome
from hwh_core.reporting.hybrid_readings import NOT_ABLE
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


def outcome_of(results: Results, name: str) -> Outcome:
    return next(claim for claim in ledger.CLAIMS if claim.id == name).evaluate(results)


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


# ------------------------------------------------------------------ M and B


def hybrids(root, claim_scale: str, *, seeds: int = 3, shifts=None, accuracies=None, names=presets.MAIN) -> Results:
    niah_length = 256
    preset = presets.preset(scales=[presets.scale(names, claim_scale, seeds=seeds, length=niah_length)])
    niah = preset.evaluation.niah.model_copy(update={"samples_per_cell": 60, "depths": [0, 50, 100]})
    preset = preset.model_copy(update={"evaluation": preset.evaluation.model_copy(update={"niah": niah})})
    tree.write_hwh(root, preset, shifts, accuracies, rows=20000)
    return Results(root, preset)


BETTER = {"hwh_std": 0.08, "hwh_swa": 0.0, "hwh_std_r": 0.0}


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, {"M": "380M", "B": "1.4B"}[name[0]]) for name in ("M1b", "M3", "M6", "B1", "B3", "B4", "B5")],
)
def test_the_papers_ranking_is_reproduced_at_its_scale_only(tmp_path, name, size):
    results = hybrids(tmp_path, size, shifts=BETTER, names=NAMES.get(name, presets.MAIN))
    outcome = outcome_of(results, name)
    assert outcome.verdict == "reproduced", outcome
    assert outcome.n_seeds == 3
    assert outcome_of(results, f"{name}-scaled").verdict == "not_testable"


def test_a_scaled_row_never_fills_the_papers_row(tmp_path):
    results = hybrids(tmp_path, "scaled", shifts=BETTER)
    assert outcome_of(results, "M6-scaled").verdict == "reproduced"
    assert outcome_of(results, "M6").verdict == "not_testable"


@pytest.mark.parametrize(("name", "size"), [("M1b", "380M"), ("M3", "380M"), ("M6", "380M"), ("B5", "1.4B")])
def test_the_opposite_ranking_is_not_reproduced(tmp_path, name, size):
    worse = {"hwh_std": -0.08, "hwh_std_r": 0.08}
    assert (
        outcome_of(hybrids(tmp_path, size, shifts=worse, names=NAMES.get(name, presets.MAIN)), name).verdict
        == "not_reproduced"
    )


NAMES = {"M2": ["hwh_std", "hwh_swa"], "M3": ["hwh_std", "hwh_std_r"], "M5": ["transformer", "hwh_std_r"]}


def constant(**levels: float):
    """Needle accuracy by architecture: ``levels`` beyond the training length, 1 within it."""
    return lambda architecture, length: lambda n, depth, distance: levels.get(architecture, 1.0) if n > length else 1.0


@pytest.mark.parametrize(
    ("name", "levels"),
    [("B1", {"transformer": 0.5}), ("B2", {"hwh_std": 0.3}), ("B3", {"gdn": 0.5}), ("B4", {"inter": 0.5})],
)
def test_needle_claims_fail_on_other_accuracies(tmp_path, name, levels):
    assert outcome_of(hybrids(tmp_path, "1.4B", accuracies=constant(**levels)), name).verdict == "not_reproduced"


def test_best_beyond_twice_the_length(tmp_path):
    levels = {"transformer": 0.0, "gdn": 0.3, "inter": 0.0}
    assert outcome_of(hybrids(tmp_path, "1.4B", accuracies=constant(**levels)), "B2").verdict == "reproduced"


@pytest.mark.parametrize(("name", "able"), [("B1", "transformer"), ("B2", "hwh_std"), ("B3", "gdn"), ("B4", "inter")])
def test_models_that_never_retrieve_within_their_length_are_inconclusive(tmp_path, name, able):
    def nothing(architecture, length):
        return lambda n, depth, distance: 0.0 if architecture == able else 1.0

    outcome = outcome_of(hybrids(tmp_path, "1.4B", accuracies=nothing), name)
    assert outcome.verdict == "inconclusive"
    assert all(part.verdict == "inconclusive" and "never reaches 90%" in part.note for part in outcome.parts)


def needles_alone(results: Results) -> Results:
    """The same without real-world retrieval tasks: retrieval is then needles within the training length."""
    scale = results.preset.hwh.scales[0]
    few = {name: metrics for name, metrics in tree.TASKS.items() if name not in ("swde", "fda", "squad_completion")}
    for model in scale.models:
        tree.write_scores(results.root / "hwh/tiny" / model.name, scale, model, tasks=few)
    return results


@pytest.mark.parametrize(
    ("std", "others", "expected"),
    [(0.0, 0.0, "inconclusive"), (1.0, 1.0, "reproduced"), (0.09, 0.0, "reproduced"), (0.0, 0.09, "not_reproduced")],
)
def test_models_that_answer_nothing_do_not_match(tmp_path, std, others, expected):
    def same(architecture, length):
        return lambda n, depth, distance: std if architecture == "hwh_std" else others

    results = needles_alone(hybrids(tmp_path, "scaled", accuracies=same))
    outcome = outcome_of(results, "M6-scaled")
    assert outcome.verdict == expected
    assert ("equal at about nothing is no match" in outcome.note) is (expected == "inconclusive")


def test_one_seed_decides_no_ranking(tmp_path):
    outcome = outcome_of(hybrids(tmp_path, "380M", seeds=1, shifts=BETTER), "M6")
    assert outcome.verdict == "inconclusive"
    assert outcome.note.endswith("all numbers: one seed: the spread over seeds is unknown")


def test_n_counts_what_a_claim_reads_once_and_nothing_else(tmp_path):
    results = hybrids(tmp_path, "1.4B")
    cells = results.cells(results.preset.hwh.scales[0], results.preset.hwh.scales[0].models)
    inter = cells[(cells["architecture"] == "inter") & (cells["length"] >= 2.75 * 256)]
    b4 = outcome_of(results, "B4")
    assert b4.n_samples == inter["n"].sum()
    assert ("other prompts" in b4.note) is bool(results.preset.evaluation.niah.additional)
    transformer = cells[(cells["architecture"] == "transformer") & cells["length"].isin([128, 256, 512])]
    assert outcome_of(results, "B1").n_samples == transformer["n"].sum()
    scores = results.scores(results.preset.hwh.scales[0], results.preset.hwh.scales[0].models)
    perplexities = scores[scores["metric"].isin(["word_perplexity", "perplexity"])]
    wanted = perplexities[perplexities["task"].isin(["wikitext", "lambada_openai"])]["n"].sum()
    language = hybrids(tmp_path / "380M", "380M")
    assert outcome_of(language, "M1b").n_samples == wanted


@pytest.mark.parametrize(("worse", "expected"), [("hwh_uniform13", "reproduced"), ("hwh_outer13", "not_reproduced")])
def test_m4_edges(tmp_path, worse, expected):
    def accuracies(architecture, length):
        low = {"hwh_outer13": 0.4, worse: 0.1}.get(architecture, 1.0)
        return lambda n, depth, distance: low if n > length else 1.0

    results = hybrids(tmp_path, "380M", accuracies=accuracies, names=["hwh_uniform13", "hwh_outer13", "hwh_std"])
    parts = {part.label: part.verdict for part in outcome_of(results, "M4").parts}
    assert parts["needles in (L, 2L]: edges removed - uniform"] == expected
    assert parts["needles beyond 2L: outer 1:7 - outer 1:3"] == "reproduced"


def test_m2_parts(tmp_path):
    accuracies = constant(hwh_std=0.3, hwh_swa=0.8)
    results = hybrids(tmp_path, "380M", shifts={"hwh_std": 0.05}, accuracies=accuracies, names=NAMES["M2"])
    parts = {part.label: part.verdict for part in outcome_of(results, "M2").parts}
    assert parts["commonsense: GDN - SWA"] == "reproduced"
    assert parts["retrieval: SWA - GDN"] == "not_reproduced"
    assert parts["needles beyond L: SWA - GDN"] == "reproduced"


@pytest.mark.parametrize(("wiki", "expected"), [(27.4, "reproduced"), (35.0, "not_reproduced")])
def test_m1_compares_with_the_papers_numbers(tmp_path, wiki, expected):
    results = hybrids(tmp_path, "380M", names=["hwh_std"])
    scale = results.preset.hwh.scales[0]
    tasks = tree.TASKS | {
        "wikitext": (("word_perplexity", wiki),),
        "lambada_openai": (("perplexity", 34.84), ("acc", 0.48)),
    }
    for model in scale.models:
        tree.write_scores(tmp_path / "hwh/tiny" / model.name, scale, model, tasks=tasks, n=20000)
    outcome = outcome_of(results, "M1")
    assert outcome.verdict == expected
    assert "mean of 7" in outcome.note


def test_m5_is_reported_and_never_decided(tmp_path):
    outcome = outcome_of(hybrids(tmp_path, "380M", names=NAMES["M5"]), "M5")
    assert outcome.verdict == "inconclusive"
    assert [part.interval.estimate for part in outcome.parts] == [100.0, 100.0]


def test_retrieval_at_small_scale_may_be_needles_within_the_length_and_says_so(tmp_path):
    results = needles_alone(hybrids(tmp_path, "scaled", names=presets.MAIN))
    assert "needles within the training length" in outcome_of(results, "M6-scaled").note


def test_architectures_that_were_not_trained_are_named(tmp_path):
    outcome = outcome_of(hybrids(tmp_path, "380M", names=presets.MAIN), "M2")
    assert outcome.verdict == "not_testable"
    assert "hwh_swa" in outcome.note


SINGLE_GPU = Path(__file__).resolve().parents[2] / "config" / "single_gpu.yaml"
AT_THE_PAPERS_LENGTHS = ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10"]


def single_gpu(root: Path, seeds: set[int], apart: float) -> Results:
    """Imagined bands of the preset single_gpu: where the paper has them, and ``apart`` a seed."""
    preset = load_preset(SINGLE_GPU)
    models = [model for model in preset.controlled.models if model.seed in seeds]
    preset = preset.model_copy(update={"controlled": preset.controlled.model_copy(update={"models": models})})
    centres = {(1e4, 2048, True): 21.5, (1e6, 2048, True): 14.5, (1e4, 4096, True): 24.0}
    centres |= {(1e4, 2048, False): 23.0, (1e6, 2048, False): 15.5}
    peaks = {m.name: centres[m.rope_theta, m.length, m.qk_norm] + apart * m.seed for m in models}
    tree.write_controlled(root, preset, peaks)
    return Results(root, preset)


@pytest.mark.parametrize("name", AT_THE_PAPERS_LENGTHS)
def test_two_seeds_of_single_gpu_decide_the_claims_about_controlled_models(tmp_path, name):
    both = outcome_of(single_gpu(tmp_path / "both", {0, 1}, 0.05), name)
    assert (both.verdict, "one seed" in both.note, "one pair" in both.note) == ("reproduced", False, False)
    assert both.n_seeds >= 2


@pytest.mark.parametrize("name", ["C1", "C2", "C3", "C4", "C5"])
def test_one_seed_of_single_gpu_decides_nothing_and_two_that_disagree_neither(tmp_path, name):
    assert outcome_of(single_gpu(tmp_path / "one", {0}, 0.05), name).verdict == "inconclusive"
    assert outcome_of(single_gpu(tmp_path / "apart", {0, 1}, 1.0), name).verdict != "reproduced"


@pytest.mark.parametrize(("peak", "expected"), [(21.6, "reproduced"), (24.5, "inconclusive")])
def test_a_seed_of_one_condition_alone_may_speak_against_the_pairs(tmp_path, peak, expected):
    """Of three seeds with QK-norm two have partners without it, whose bands lie 1.5 groups higher."""
    preset = load_preset(SINGLE_GPU)
    lone = [
        m for m in preset.controlled.models if m.seed < 2 or (m.rope_theta, m.length, m.qk_norm) == (1e4, 2048, True)
    ]
    preset = preset.model_copy(update={"controlled": preset.controlled.model_copy(update={"models": lone})})
    centres = {(1e4, 2048, True): 21.5, (1e6, 2048, True): 14.5, (1e4, 4096, True): 24.0}
    centres |= {(1e4, 2048, False): 23.0, (1e6, 2048, False): 15.5}
    peaks = {m.name: peak if m.seed == 2 else centres[m.rope_theta, m.length, m.qk_norm] for m in lone}
    tree.write_controlled(tmp_path, preset, peaks)
    outcome = outcome_of(Results(tmp_path, preset), "C5")
    assert outcome.verdict == expected
    assert (CONTRADICTED in outcome.note) is (expected == "inconclusive")


def test_architectures_of_single_gpu_that_claims_compare_have_two_seeds():
    family = load_preset(SINGLE_GPU).hwh
    variants = {variant.name for variant in family.architectures}
    seeds = {}
    for model in family.scales[0].models:
        if model.retrieval_mix and model.architecture not in variants:
            seeds.setdefault(model.architecture, set()).add(model.seed)
    assert set(seeds) == set(presets.ALL)
    assert all({0, 1} <= found for found in seeds.values())


# ------------------------------------------------------------------ needles in a wording of the retrieval mix

ALLOCATIONS = [*presets.MAIN, "hwh_std_r", "hwh_uniform13", "hwh_outer13"]


def in_trained_wording(root, accuracies, seeds: int = 3) -> Results:
    """A scaled-down family that answers nothing in RULER's wording, and as ``accuracies`` says in one of the mix."""
    answers_nothing = lambda architecture, length: lambda *_: 0.0  # noqa: E731
    results = hybrids(root, "scaled", seeds=seeds, accuracies=answers_nothing, names=ALLOCATIONS)
    grid = NiahGrid(variant="single_2", wording="trained")
    niah = results.preset.evaluation.niah.model_copy(update={"additional": [grid]})
    evaluation = results.preset.evaluation.model_copy(update={"niah": niah})
    preset = results.preset.model_copy(update={"evaluation": evaluation})
    scale = preset.hwh.scales[0]
    for model in scale.models:
        folder = root / "hwh" / scale.name / model.name
        nothing = (folder / "niah.csv").read_bytes(), (folder / "niah_cells.csv").read_bytes()
        tree.write_niah(folder, scale, model, preset, accuracies(model.architecture, scale.length))
        (folder / "niah_cells.csv").rename(folder / requirements.additional_cells_file(grid))
        (folder / "niah.csv").write_bytes(nothing[0])
        (folder / "niah_cells.csv").write_bytes(nothing[1])
    return Results(root, preset)


def test_needles_in_a_trained_wording_have_rows_of_their_own(tmp_path):
    """They rest on these needles alone, those in RULER's wording on theirs, and evidence names the file."""
    levels = {"transformer": 0.0, "gdn": 0.3, "inter": 0.0, "hwh_std_r": 0.3, "hwh_uniform13": 0.1, "hwh_outer13": 0.5}
    results = in_trained_wording(tmp_path, constant(**levels))
    for name in ("M3", "M4", "M6", "B1", "B2", "B4"):
        entry = outcome_of(results, f"{name}-trained")
        assert entry.verdict == "reproduced", entry
        assert "SWDE" not in entry.note
        assert entry.evidence.endswith("/niah_single_2_trained_cells.csv")
        assert "needles in a wording of the retrieval mix" in entry.note
        # M6 rests on real-world retrieval there, on which all are alike.
        assert (outcome_of(results, f"{name}-scaled").verdict == "reproduced") is (name == "M6")
    assert [part.label[:13] for part in outcome_of(results, "M3-trained").parts] == ["needles at 2L"]


def test_a_model_that_holds_in_a_trained_wording_speaks_against_its_fall(tmp_path):
    results = in_trained_wording(tmp_path, constant(inter=0.95))
    assert outcome_of(results, "B4-trained").verdict == "not_reproduced"
    assert outcome_of(results, "B4-scaled").verdict == "inconclusive"


def answering(results: Results, answers: dict[str, set[int]]) -> Results:
    """Rewritten needles in the trained wording: of an architecture that is named all with these seeds, else none.

    HwH-std has seeds 0, 1 and 2, all others 0 and 1.
    """
    preset, grid = results.preset, results.preset.evaluation.niah.additional[0]
    scale = preset.hwh.scales[0]
    models = [model for model in scale.models if model.seed < 2 or model.architecture == "hwh_std"]
    scale = scale.model_copy(update={"models": models})
    preset = preset.model_copy(update={"hwh": preset.hwh.model_copy(update={"scales": [scale]})})
    for model in models:
        share = float(model.seed in answers.get(model.architecture, ()))
        aside = results.root / "aside"
        tree.write_niah(aside, scale, model, preset, lambda n, depth, distance, share=share: share)
        folder = results.root / "hwh" / scale.name / model.name
        (aside / "niah_cells.csv").replace(folder / requirements.additional_cells_file(grid))
    return Results(results.root, preset)


def test_a_seed_without_partner_does_not_let_those_decide_that_cannot_retrieve(tmp_path):
    """HwH-std answers with seed 2 alone: of prompts beyond 2L its pairs with Inter, which answers, say nothing."""
    results = in_trained_wording(tmp_path, constant())
    alone = outcome_of(answering(results, {"hwh_std": {2}, "inter": {0, 1}}), "B2-trained")
    parts = {part.label: part for part in alone.parts}
    against = parts["beyond 2L: HwH-std - Inter"]
    assert (against.verdict, against.interval.estimate) == ("inconclusive", -100.0)
    assert against.note == NOT_ABLE
    assert parts["HwH-std at 512 >= 95%"].note == "", "of its own accuracy all seeds count"
    assert alone.verdict == "inconclusive"
    paired = outcome_of(answering(results, {"hwh_std": {1, 2}, "inter": {0, 1}}), "B2-trained")
    assert {part.label: part.note for part in paired.parts}["beyond 2L: HwH-std - Inter"] == ""
    for name, beside in (("M3-trained", "hwh_std_r"), ("M4-trained", "hwh_outer13")):
        lone = outcome_of(answering(results, {"hwh_std": {2}, beside: {0, 1}, "hwh_uniform13": {0, 1}}), name)
        assert NOT_ABLE in lone.note, name


def test_without_such_needles_there_are_no_such_rows(tmp_path):
    results = hybrids(tmp_path, "scaled")
    assert not any(claim.id.endswith("-trained") for claim in ledger.claims_of(results.preset))
    assert not any("trained_cells" in path for path in requirements.claims_inputs(results.preset))
    asked = in_trained_wording(tmp_path / "asked", constant())
    assert ledger.claims_of(asked.preset) == ledger.CLAIMS
    files = [path for path in requirements.claims_inputs(asked.preset) if "trained_cells" in path]
    assert len(files) == len(asked.preset.hwh.scales[0].models)
