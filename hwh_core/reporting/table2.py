"""Table 2: real-world retrieval and needle tasks (1.4B in the paper)."""

from __future__ import annotations

import pandas as pd

from . import task_scores
from .paper_values import SUMMARY
from .results import Results
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES, architectures_of, models_of, scale_for
from .tables import Cell, Table, seeds_cell
from .tasktables import RETRIEVAL_COLUMNS, retrieval_cells, seeds_note


def ruler_columns(scores: pd.DataFrame) -> dict[str, task_scores.Column]:
    """Columns of RULER's needle tasks that were run: one per task and length (the metric names the length)."""
    rows = scores[scores["task"].str.startswith("niah_")]
    pairs = sorted(set(zip(rows["task"], rows["metric"], strict=True)), key=lambda p: (p[0], len(p[1]), p[1]))
    return {f"{task} @{metric}": task_scores.Column(f"{task} @{metric}", (task,), metric) for task, metric in pairs}


def make(results: Results) -> Table:
    """Retrieval tasks, RULER tasks where they were run, and the mean over depth of the needle grid by length."""
    preset = results.preset
    scale = scale_for(preset, "1.4B")
    models = models_of(scale, MAIN_ARCHITECTURES)
    scores, cells = results.scores(scale, models), results.cells(scale, models)
    ruler = ruler_columns(scores)
    grid = {f"NIAH-S2 grid @{length}": length for length in sorted(preset.evaluation.niah.lengths)}
    table = Table(
        2,
        "Real-world retrieval and needle in a haystack",
        ["scale", "architecture"],
        [*RETRIEVAL_COLUMNS, *ruler, *grid],
    )
    for name in [a for a in MAIN_ARCHITECTURES if a in architectures_of(scale)]:
        row = retrieval_cells(scores, name)
        row |= {title: seeds_cell(task_scores.column_values(scores, name, column)) for title, column in ruler.items()}
        for title, length in grid.items():
            values = task_scores.needle_values(cells, name, lambda n, wanted=length: n == wanted)
            row[title] = _grid_cell(values, scale.claim_scale, name, length)
        table.add((scale.name, ARCHITECTURE_TITLES[name]), row)
    niah = preset.evaluation.niah
    table.notes = [
        "Retrieval: the answer is contained in the continuation, percent.",
        f"NIAH-S2 grid: {niah.metric}, haystack {niah.haystack}, mean over depths {niah.depths}.",
        seeds_note(scale),
    ]
    table.settings = {"scale": scale.name}
    return table


def _grid_cell(values: task_scores.SeedValues, claim_scale: str, architecture: str, length: int) -> Cell:
    if (claim_scale, architecture, length) == ("1.4B", "transformer", 4096):
        return seeds_cell(values, paper=0.0, source=f"{SUMMARY} of Table 2", digits=1)
    return seeds_cell(values, digits=1)
