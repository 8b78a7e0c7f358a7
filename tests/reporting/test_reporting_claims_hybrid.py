"""Claims about the hybrid family (M, B): every rule with constructed numbers, in both directions."""

from __future__ import annotations

import pytest
import report_preset as presets
import report_tree as tree
from report_claims import SINGLE_GPU, constant, hybrids, outcome_of

from hwh_core.config import load_preset
from hwh_core.reporting.results import Results

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


def test_architectures_of_single_gpu_that_claims_compare_have_two_seeds():
    family = load_preset(SINGLE_GPU).hwh
    variants = {variant.name for variant in family.architectures}
    seeds = {}
    for model in family.scales[0].models:
        if model.retrieval_mix and model.architecture not in variants:
            seeds.setdefault(model.architecture, set()).add(model.seed)
    assert set(seeds) == set(presets.ALL)
    assert all({0, 1} <= found for found in seeds.values())
