"""What the kinds of needle prompts are called in tables and figures, and which of them rests on a trained wording."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import NiahGrid, PresetConfig

GRID_TITLES = {
    "single_1": "NIAH-S1", "single_2": "NIAH-S2", "single_3": "NIAH-S3", "multikey_1": "NIAH-MK1",
    "multikey_2": "NIAH-MK2", "multikey_3": "NIAH-MK3", "multivalue": "NIAH-MV", "multiquery": "NIAH-MQ",
}  # fmt: skip
WORDINGS = {"ruler": "RULER wording", "second": "second wording", "trained": "trained wording"}
# What the notes say of a kind of needle task, of a wording and of lm-eval's prompts, where the table has such columns.
KIND_NOTES = {
    "single": "S: one needle",
    "multikey": "MK: needles with other keys beside it",
    "multivalue": "MV: four values of one key",
    "multiquery": "MQ: four keys",
}
WORDING_NOTES = {
    "second": "second wording: one that stands in no training text",
    "trained": "trained wording: one of the retrieval mix, the exception to its disjoint wordings, with keys, numbers "
    "and prose that no model saw",
}
LM_EVAL_NOTE = "lm-eval's samples: its own prompts, shorter than the length they are named by"


def grid_title(grid: NiahGrid) -> str:
    """How a column names an additional grid."""
    how = "lm-eval's samples" if grid.fill == "lm_eval" else WORDINGS[grid.wording]
    return f"{GRID_TITLES[grid.variant]}, {how}"


def additional_note(grids: Sequence[NiahGrid]) -> str:
    """What the columns of the additional grids are, each kind that there is."""
    kinds = [note for kind, note in KIND_NOTES.items() if any(grid.variant.startswith(kind) for grid in grids)]
    notes = [f"Other needle tasks are RULER's ({', '.join(kinds)})"]
    notes += [note for wording, note in WORDING_NOTES.items() if any(grid.wording == wording for grid in grids)]
    if any(grid.fill == "lm_eval" for grid in grids):
        notes.append(LM_EVAL_NOTE)
    return f"{'; '.join(notes)}. All lengths are in niah_*_cells.csv of each model."


def trained_grid(preset: PresetConfig) -> NiahGrid | None:
    """The additional grid with the needle of Figures 4 and 15 in a wording of the retrieval mix, if there is one."""
    grids = preset.evaluation.niah.additional
    return next((grid for grid in grids if (grid.variant, grid.wording) == ("single_2", "trained")), None)
