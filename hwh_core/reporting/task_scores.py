"""Task scores by column of the paper's tables: which task and metric, averages, values per seed with their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from .intervals import proportion_stderr
from .selection import ReportError


@dataclass(frozen=True)
class Column:
    """One column: tasks that may fill it (the first one present counts), metric, and how it is read."""

    title: str
    tasks: tuple[str, ...]
    metric: str
    percent: bool = True
    lower_is_better: bool = False

    def filled_by(self, run: Iterable[str]) -> str | None:
        """Which of the tasks that were run fills the column; None if none does."""
        there = set(run)
        return next((task for task in self.tasks if task in there), None)


WIKI = Column("Wiki ppl", ("wikitext",), "word_perplexity", percent=False, lower_is_better=True)
HELD_OUT = Column("Held-out ppl", ("held_out_articles",), "word_perplexity", percent=False, lower_is_better=True)
LAMBADA_PPL = Column("LMB ppl", ("lambada_openai",), "perplexity", percent=False, lower_is_better=True)
LAMBADA_ACC = Column("LMB acc", ("lambada_openai",), "acc")
LANGUAGE = (WIKI, HELD_OUT, LAMBADA_PPL)
COMMONSENSE = (
    Column("PIQA", ("piqa",), "acc"),
    Column("Hella.", ("hellaswag",), "acc_norm"),
    Column("Wino.", ("winogrande",), "acc"),
    Column("ARC-e", ("arc_easy",), "acc"),
    Column("ARC-c", ("arc_challenge",), "acc_norm"),
    Column("SIQA", ("social_iqa",), "acc"),
    Column("BoolQ", ("boolq",), "acc"),
)
RETRIEVAL = (
    Column("SWDE", ("swde",), "contains"),
    Column("SQuAD", ("squad_completion",), "contains"),
    Column("FDA", ("fda",), "contains"),
    Column("TriviaQA", ("based_triviaqa",), "contains"),
    Column("NQ", ("based_nq_2048", "based_nq_1024", "based_nq_512"), "contains"),
    Column("DROP", ("based_drop",), "contains"),
)
RETRIEVAL_LEFT = tuple(replace(column, title=f"{column.title} left", metric="contains_left") for column in RETRIEVAL)


@dataclass(frozen=True)
class SeedValue:
    """A score of one trained model: value, its standard error over rows, and how many rows."""

    value: float
    stderr: float
    n: int

    def logarithm(self) -> SeedValue:
        """Natural logarithm of a positive score, with its error to first order."""
        return SeedValue(math.log(self.value), self.stderr / self.value, self.n)


SeedValues = dict[int, SeedValue]


def share_of(share: float, n: int) -> SeedValue:
    """A share (0 to 1) of ``n`` rows or prompts that were answered, in percent, with the error of a proportion.

    All percentages of right answers come through here. The standard errors in scores.csv and niah_cells.csv are those
    of a mean, which are zero where all rows agree.
    """
    return SeedValue(100 * share, 100 * proportion_stderr(share * n, n), n)


def column_values(scores: pd.DataFrame, architecture: str, column: Column) -> SeedValues:
    """Values of one column by seed; percent columns come as 0 to 100. Empty when the task was not run.

    Raises :class:`ReportError` when a model has the same task and metric twice.
    """
    for task in column.tasks:
        mask = (scores["architecture"] == architecture) & (scores["task"] == task)
        rows = scores[mask & (scores["metric"] == column.metric)]
        if len(rows) == 0:
            continue
        twice = rows[rows.duplicated("seed", keep=False)]
        if len(twice):
            raise ReportError(
                f"scores of {architecture} hold task {task!r}, metric {column.metric!r} {len(twice)} times for seed "
                f"{twice['seed'].iloc[0]}; keep one model per architecture and seed in a scale"
            )
        if column.percent:
            return {int(row.seed): share_of(float(row.value), int(row.n)) for row in rows.itertuples()}
        return {int(row.seed): SeedValue(float(row.value), float(row.stderr), int(row.n)) for row in rows.itertuples()}
    return {}


def average_values(scores: pd.DataFrame, architecture: str, columns: Iterable[Column]) -> SeedValues:
    """Mean over columns by seed; only seeds that have every column. Rows of different tasks are independent."""
    parts = [column_values(scores, architecture, column) for column in columns]
    if not parts or not all(parts):
        return {}
    seeds = set.intersection(*(set(part) for part in parts))
    averages: SeedValues = {}
    for seed in sorted(seeds):
        members = [part[seed] for part in parts]
        averages[seed] = SeedValue(
            value=float(np.mean([m.value for m in members])),
            stderr=float(np.sqrt(np.sum([m.stderr**2 for m in members])) / len(members)),
            n=sum(m.n for m in members),
        )
    return averages


def commonsense(scores: pd.DataFrame, architecture: str, with_lambada: bool) -> SeedValues:
    """Mean accuracy: the seven multiple-choice tasks, or these and LAMBADA accuracy (GDN papers average eight)."""
    columns = (LAMBADA_ACC, *COMMONSENSE) if with_lambada else COMMONSENSE
    return average_values(scores, architecture, columns)


def columns_run(scores: pd.DataFrame, columns: Iterable[Column]) -> list[Column]:
    """The columns that at least one model of ``scores`` has."""
    pairs = set(zip(scores["task"], scores["metric"], strict=True))
    return [column for column in columns if any((task, column.metric) in pairs for task in column.tasks)]


def retrieval(scores: pd.DataFrame, architecture: str) -> SeedValues:
    """Mean over the real-world retrieval tasks that were run for this table."""
    return average_values(scores, architecture, columns_run(scores, RETRIEVAL))


def needle_values(cells: pd.DataFrame, architecture: str, keep: Callable[[int], bool]) -> SeedValues:
    """Needle accuracy in percent, mean over depths and over the lengths that ``keep`` accepts, by seed."""
    rows = cells[(cells["architecture"] == architecture) & cells["length"].map(keep)]
    values: SeedValues = {}
    for seed, group in rows.groupby("seed"):
        values[int(seed)] = share_of(float(group["mean"].mean()), int(group["n"].sum()))
    return values
