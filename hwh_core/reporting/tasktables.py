"""Rows of the task-level tables (1, 2 and 5 to 8)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..config import HwHScale
from . import task_scores
from .paper_values import SUMMARY, TABLE_1_VALUES
from .published import ABLATION_NOTE, HYBRID_NOTE, LANGUAGE_NEAR_380M, RETRIEVAL_LARGE, add_published
from .results import Results
from .selection import ARCHITECTURE_TITLES, architectures_of, mix_note, models_of, scale_for
from .tables import Cell, Table, seeds_cell

AVERAGES = ("Avg (8)", "Avg (7)")
LANGUAGE_COLUMNS = [
    *(c.title for c in task_scores.LANGUAGE),
    task_scores.LAMBADA_ACC.title,
    *(c.title for c in task_scores.COMMONSENSE),
    *AVERAGES,
]
RETRIEVAL_COLUMNS = [*(c.title for c in task_scores.RETRIEVAL), "Avg retrieval"]
SHARES = "An interval over rows reaches as far as Wilson's on either side: 0 right of 60 is 0.00 [0.00, 6.02]."
PAPER_AVERAGE = "The paper's 42.78 does not say which tasks it covers, so it stands beside both."


def language_notes(table: Table) -> list[str]:
    """How the columns of language modelling are read; of the paper's average only where the table shows it."""
    shown = any(cells[title].paper is not None for _, cells in table.rows for title in AVERAGES)
    return [
        "Wiki ppl is lm-eval's wikitext; Held-out ppl is word perplexity on held-out articles of the preset's own text "
        "and is not WikiText. Means over seeds and intervals of perplexities are taken of their logarithms.",
        "Avg (8): LAMBADA accuracy and the seven tasks, as papers on Gated DeltaNet average; Avg (7): without LAMBADA."
        f"{f' {PAPER_AVERAGE}' if shown else ''}",
        f"Accuracies in percent; intervals 95% over rows, and over seeds where there are several. {SHARES}",
    ]


def language_cells(scores: pd.DataFrame, architecture: str, claim_scale: str) -> dict[str, Cell]:
    """Perplexities, accuracies and both averages of one architecture."""
    cells = {}
    for column in (*task_scores.LANGUAGE, task_scores.LAMBADA_ACC, *task_scores.COMMONSENSE):
        values = task_scores.column_values(scores, architecture, column)
        cells[column.title] = _known(values, column.title, architecture, claim_scale, column.percent)
    for title, with_lambada in zip(AVERAGES, (True, False), strict=True):
        values = task_scores.commonsense(scores, architecture, with_lambada)
        cells[title] = _known(values, title, architecture, claim_scale)
    return cells


def _known(
    values: task_scores.SeedValues, title: str, architecture: str, claim_scale: str, percent: bool = True
) -> Cell:
    paper = TABLE_1_VALUES.get((claim_scale, architecture, title))
    source = f"{SUMMARY} of Table 1" if paper is not None else ""
    return seeds_cell(values, paper=paper, source=source, percent=percent)


def retrieval_columns(scores: pd.DataFrame) -> list[str]:
    """The six tasks and their mean, then those that were run with documents cut from the left."""
    return [*RETRIEVAL_COLUMNS, *(column.title for column in _run_from_the_left(scores))]


def _run_from_the_left(scores: pd.DataFrame) -> list[task_scores.Column]:
    return task_scores.columns_run(scores, task_scores.RETRIEVAL_LEFT)


def retrieval_notes(scores: pd.DataFrame) -> list[str]:
    """How the retrieval tasks are scored, and which of them were not run."""
    notes = [
        "Retrieval: the answer is contained in the continuation, percent; documents are cut around the answer.",
        f"Intervals 95% over rows or prompts, and over seeds where there are several. {SHARES}",
    ]
    if _run_from_the_left(scores):
        notes.append("Left: documents cut from the left, as lm-eval does, which can take the answer away.")
    run = task_scores.columns_run(scores, task_scores.RETRIEVAL)
    filled = {column.title: column.filled_by(scores["task"]) for column in run if len(column.tasks) > 1}
    notes += [f"{title} is the task {task}." for title, task in filled.items()]
    missing = [column.title for column in task_scores.RETRIEVAL if column not in run]
    if missing:
        notes.append(
            f"Not run: {', '.join(missing)}. Their rows (HazyResearch's sets on the hub) are not among this preset's; "
            "nothing stands in for them."
        )
    return notes


def retrieval_cells(scores: pd.DataFrame, architecture: str) -> dict[str, Cell]:
    """Real-world retrieval tasks and their mean (only when all six were run)."""
    cells = {
        column.title: seeds_cell(task_scores.column_values(scores, architecture, column))
        for column in (*task_scores.RETRIEVAL, *_run_from_the_left(scores))
    }
    complete = task_scores.average_values(scores, architecture, task_scores.RETRIEVAL)
    return {**cells, "Avg retrieval": seeds_cell(complete)}


def seeds_note(scale: HwHScale, architectures: Sequence[str] | None = None) -> str:
    """What a scale is, and how many seeds ``architectures`` (all) have in it, for the notes below a table."""
    names = [name for name in architectures_of(scale) if architectures is None or name in architectures]
    seeds = ", ".join(f"{len(models_of(scale, [name]))} of {ARCHITECTURE_TITLES.get(name, name)}" for name in names)
    tokens = scale.training.steps * scale.training.tokens_per_step
    mix = mix_note(scale)
    return (
        f"Scale {scale.name}: width {scale.shape.hidden_size}, {scale.shape.num_layers} layers, context "
        f"{scale.length}, {tokens:,} training tokens; claim scale: {scale.claim_scale}. "
        f"Seeds: {seeds} (intervals of one seed are too narrow: they leave out how seeds differ)."
        f"{f' {mix}.' if mix else ''}"
    )


def ablation_language(results: Results, number: int, architectures: tuple[str, ...], title: str) -> Table:
    """Tables 5 and 7: language modelling and commonsense of ablations."""
    scale = scale_for(results.preset, "380M", architectures)
    scores = results.scores(scale, models_of(scale, architectures))
    table = Table(number, title, ["scale", "architecture"], LANGUAGE_COLUMNS)
    for name in architectures:
        cells = language_cells(scores, name, scale.claim_scale)
        table.add((scale.name, ARCHITECTURE_TITLES.get(name, name)), cells)
    table.notes = [*language_notes(table), seeds_note(scale, architectures)]
    add_published(table, LANGUAGE_NEAR_380M)
    table.notes += [ABLATION_NOTE, HYBRID_NOTE]
    table.settings = {"scale": scale.name}
    return table


def ablation_retrieval(results: Results, number: int, architectures: tuple[str, ...], title: str) -> Table:
    """Tables 6 and 8: real-world retrieval of ablations."""
    scale = scale_for(results.preset, "380M", architectures)
    scores = results.scores(scale, models_of(scale, architectures))
    table = Table(number, title, ["scale", "architecture"], retrieval_columns(scores))
    for name in architectures:
        table.add((scale.name, ARCHITECTURE_TITLES.get(name, name)), retrieval_cells(scores, name))
    table.notes = [*retrieval_notes(scores), seeds_note(scale, architectures)]
    add_published(table, RETRIEVAL_LARGE)
    table.settings = {"scale": scale.name}
    return table
