"""Rows of the ledger about needles in a wording of the retrieval mix (``-trained``)."""

from __future__ import annotations

import report_preset as presets
import report_tree as tree
from report_claims import constant, hybrids, outcome_of

from hwh_core.config import NiahGrid
from hwh_core.reporting import ledger, requirements
from hwh_core.reporting.hybrid_readings import NOT_ABLE
from hwh_core.reporting.results import Results

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
