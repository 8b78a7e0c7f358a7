"""At which scales a claim about the hybrid family is tested: the paper's own, and the one that was run.

A claim has a row in the ledger for each. What needles alone decide has one more (``-trained``), in a wording of the
retrieval mix, where a preset asks for such needles: a model that retrieves may know no other wording.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import HwHScale
from . import requirements, selection
from .claim_model import Claim, Outcome, Part, from_parts, not_testable
from .hybrid_family import Family
from .needle_grids import trained_grid
from .results import Results

OTHER_GRIDS = (
    "needles in RULER's wording; other prompts, on which models may rank otherwise, are in the figure of needle "
    "wordings and, of the paper's four models, in Table 2"
)
TRAINED = "-trained"
TRAINED_GRID = "needles in a wording of the retrieval mix, with keys, numbers and prose that no model saw"
# Parts of the claim, a note on them, and the result file of a model that is their evidence.
Test = Callable[[Family], tuple[list[Part], str, str]]


def other_grids(family: Family) -> str:
    """Which needles a claim read, and where those in other prompts stand, on which no verdict of it rests."""
    if family.grid is not None:
        return TRAINED_GRID
    read = any(isinstance(what, int) for _, what in family.read)
    return OTHER_GRIDS if read and family.results.preset.evaluation.niah.additional else ""


def _described(scale: HwHScale) -> list[str]:
    """Size and tokens of a scale, and what its text has that the paper's does not."""
    tokens = scale.training.steps * scale.training.tokens_per_step
    size = f"scale {scale.name}: width {scale.shape.hidden_size}, {scale.shape.num_layers} layers, {tokens:.3g} tokens"
    mix = "trained with a retrieval mix, which the paper does not have"
    return [size, mix] if scale.retrieval_mix else [size]


def at_scale(
    claim_scale: str, architectures: tuple[str, ...], test: Test, report_only: bool = False, trained: bool = False
) -> Callable[[Results], Outcome]:
    """Run ``test`` on the preset's scale of that kind; not testable without it or without the architectures.

    ``trained``: on needles of :func:`trained_grid`.
    """

    def evaluate(results: Results) -> Outcome:
        scales = [scale for scale in results.preset.hwh.scales if scale.claim_scale == claim_scale]
        if not scales:
            return not_testable(f"no scale of this preset has claim_scale {claim_scale}")
        complete = [scale for scale in scales if set(architectures) <= set(selection.architectures_of(scale))]
        if not complete:
            missing = sorted(set(architectures) - set(selection.architectures_of(scales[0])))
            return not_testable(f"not trained in scale {scales[0].name}: {', '.join(missing)}")
        scale = complete[0]
        grid = trained_grid(results.preset) if trained else None
        family = Family(results, scale, grid)
        parts, note, file = test(family)
        file = file if grid is None else requirements.additional_cells_file(grid)
        evidence = requirements.hwh_files(scale, selection.models_of(scale, architectures)[:1], file)[0]
        notes = "; ".join(text for text in (*_described(scale), note, other_grids(family)) if text)
        return from_parts(
            parts, evidence=evidence, n_samples=sum(family.read.values()), note=notes, report_only=report_only
        )

    return evaluate


def claim_rows(
    number: str, statement: str, paper: str | None, tolerance: str, metric: str, needs: tuple[str, ...], test: Test, *,
    report_only: bool = False, scaled: bool = True, trained: Test | None = None,
) -> list[Claim]:  # fmt: skip
    """The paper's row and, for ranking claims, rows at the scale that was run: as it is, and ``trained`` on needles in
    a wording of the retrieval mix. The letter of ``number`` says the paper's scale: M is 380M, B is 1.4B."""
    letter = number[0]
    size = {"M": "380M", "B": "1.4B"}[letter]
    rows = [Claim(number, statement, paper, tolerance, metric, letter, size, at_scale(size, needs, test, report_only))]
    if scaled:
        small = at_scale("scaled", needs, test, report_only)
        text = f"{statement} [at the scale that was run]"
        rows.append(Claim(f"{number}-scaled", text, paper, tolerance, metric, letter, "scaled", small))
    if trained:
        there = at_scale("scaled", needs, trained, report_only, trained=True)
        text = f"{statement} [at the scale that was run; needles alone, in a wording of the retrieval mix]"
        rows.append(Claim(f"{number}{TRAINED}", text, paper, tolerance, metric, letter, "scaled", there))
    return rows
