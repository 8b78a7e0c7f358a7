"""Table 2: real-world retrieval and needle tasks (1.4B in the paper)."""

from __future__ import annotations

import pandas as pd

from ..config import NiahConfig
from . import task_scores
from .paper_values import SUMMARY
from .results import Results
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES, architectures_of, controls, models_of, scale_for
from .tables import Cell, Table, seeds_cell
from .tasktables import RETRIEVAL_COLUMNS, retrieval_cells, seeds_note

GRID_TITLES = {"single_2": "NIAH-S2", "multikey_1": "NIAH-MK1"}
ADDITIONAL_NOTE = (
    "NIAH-MK1: RULER's NIAH-MultiKey-1, three more needles with other keys; second wording: one that stands in no "
    "training text. Both over the lengths and depths of the grid; all lengths are in niah_*_cells.csv of each model."
)


def ruler_columns(scores: pd.DataFrame) -> dict[str, task_scores.Column]:
    """Columns of RULER's needle tasks that were run: one per task and length (the metric names the length)."""
    rows = scores[scores["task"].str.startswith("niah_")]
    pairs = sorted(set(zip(rows["task"], rows["metric"], strict=True)), key=lambda p: (p[0], len(p[1]), p[1]))
    return {f"{task} @{metric}": task_scores.Column(f"{task} @{metric}", (task,), metric) for task, metric in pairs}


def make(results: Results) -> Table:
    """Retrieval tasks, RULER tasks where they were run, and the mean over depth of the needle grids by length.

    Models without the retrieval mix of the scale follow in rows of their own.
    """
    preset = results.preset
    scale = scale_for(preset, "1.4B")
    niah = preset.evaluation.niah
    architectures = [a for a in MAIN_ARCHITECTURES if a in architectures_of(scale)]
    groups = [(name, ARCHITECTURE_TITLES[name], models_of(scale, [name])) for name in architectures]
    for name in dict.fromkeys(model.architecture for model in controls(scale)):
        title = f"{ARCHITECTURE_TITLES.get(name, name)}, no retrieval mix"
        groups.append((name, title, [model for model in controls(scale) if model.architecture == name]))
    members = [model for _, _, models in groups for model in models]
    # Checks, before anything is compared, that all models answered the same rows.
    ruler = ruler_columns(results.scores(scale, members))
    grids = {f"NIAH-S2 grid @{length}": (None, length) for length in sorted(niah.lengths)}
    for grid in niah.additional:
        for length in additional_lengths(niah, scale.length):
            grids[f"{GRID_TITLES[grid.variant]}, {grid.wording} wording @{length}"] = (grid, length)
    title = "Real-world retrieval and needle in a haystack"
    table = Table(2, title, ["scale", "architecture"], [*RETRIEVAL_COLUMNS, *ruler, *grids])
    for name, label, models in groups:
        scores = results.scores(scale, models)
        row = retrieval_cells(scores, name)
        row |= {text: seeds_cell(task_scores.column_values(scores, name, column)) for text, column in ruler.items()}
        cells = {grid: results.additional_cells(scale, models, grid) for grid in niah.additional}
        cells[None] = results.cells(scale, models)
        for text, (grid, length) in grids.items():
            values = task_scores.needle_values(cells[grid], name, lambda n, wanted=length: n == wanted)
            row[text] = _grid_cell(values, scale.claim_scale if grid is None else "none", name, length)
        table.add((scale.name, label), row)
    table.notes = [
        "Retrieval: the answer is contained in the continuation, percent.",
        f"NIAH-S2 grid: {niah.metric}, haystack {niah.haystack}, mean over depths {niah.depths}.",
        seeds_note(scale),
    ]
    if niah.additional:
        table.notes.insert(2, ADDITIONAL_NOTE)
    table.settings = {"scale": scale.name}
    return table


def additional_lengths(niah: NiahConfig, training_length: int) -> list[int]:
    """Lengths of the additional grids that the table shows: half, once, twice and four times the training length.

    All lengths where the grid has none of these.
    """
    shown = [n for n in sorted(niah.lengths) if 2 * n in {f * training_length for f in (1, 2, 4, 8)}]
    return shown or sorted(niah.lengths)


def _grid_cell(values: task_scores.SeedValues, claim_scale: str, architecture: str, length: int) -> Cell:
    if (claim_scale, architecture, length) == ("1.4B", "transformer", 4096):
        return seeds_cell(values, paper=0.0, source=f"{SUMMARY} of Table 2", digits=1)
    return seeds_cell(values, digits=1)
