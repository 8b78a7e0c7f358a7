"""What the claims read of one scale of the hybrid family: scores and needle accuracies by architecture and seed.

Lengths scale with the training length L, which is 2K in the paper: 1K is L/2, 4K is 2L, 5.5K is 2.75 L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from ..config import HwHScale, NiahGrid
from . import selection, task_scores
from .results import Results
from .task_scores import SeedValues

# What the paper compares HwH-std with.
BASELINES = ("transformer", "gdn", "inter")
# Percent; a model that answers fewer needles within its training length says nothing about longer prompts.
ABLE = 90.0
# Percent; what claim B4 counts as about nothing.
ABOUT_NOTHING = 10.0
# The metric of claims about needles alone.
NEEDLE_ACCURACY = "needle accuracy (%), mean over depth"


@dataclass(frozen=True)
class Family:
    """Scores and needle results of all models of one scale but the controls.

    ``grid``: needles of one of the additional grids in place of the main one. ``read`` counts rows and prompts by
    architecture and column or length, each once however often a test reads it. Reading raises
    :class:`hwh_core.reporting.selection.ReportError` when a file is missing or damaged, or models are not comparable.
    """

    results: Results
    scale: HwHScale
    grid: NiahGrid | None = None
    read: dict[tuple[str, str | int], int] = field(default_factory=dict)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Task scores, one row a model, task and metric."""
        return self.results.scores(self.scale, selection.compared(self.scale))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Needle accuracies of the grid, one row a model, length and depth."""
        models = selection.compared(self.scale)
        if self.grid is None:
            return self.results.cells(self.scale, models)
        return self.results.additional_cells(self.scale, models, self.grid)

    @property
    def length(self) -> int:
        """The training length L in tokens."""
        return self.scale.length

    def needles(self, architecture: str, keep: Callable[[int], bool]) -> SeedValues:
        """Needle accuracy in percent over the lengths kept."""
        rows = self.cells[(self.cells["architecture"] == architecture) & self.cells["length"].map(keep)]
        for length, group in rows.groupby("length"):
            self.read[architecture, int(length)] = int(group["n"].sum())
        return task_scores.needle_values(self.cells, architecture, keep)

    def at(self, architecture: str, multiple: float) -> SeedValues:
        """Needle accuracy at ``multiple`` times the training length; empty when that length is not in the grid."""
        return self.needles(architecture, lambda n: n == round(multiple * self.length))

    def near_and_far(self, architecture: str) -> tuple[SeedValues, SeedValues]:
        """Needle accuracy in percent in prompts of the main grid longer than L, by distance of needle and end.

        The first of the two is over needles within L tokens of the end, the second over those farther from it.
        """
        prompts = self.results.prompts(self.scale, selection.models_of(self.scale, (architecture,)))
        long = prompts[prompts["length"] > self.length]
        self.read[architecture, "prompts beyond the training length"] = len(long)
        by_nearness: dict[bool, SeedValues] = {}
        for near, rows in long.groupby(long["needle_distance"] <= self.length):
            by_nearness[bool(near)] = {
                int(seed): task_scores.share_of(float(group["correct"].mean()), len(group))
                for seed, group in rows.groupby("seed")
            }
        return by_nearness.get(True, {}), by_nearness.get(False, {})

    def able(self, architecture: str, beside: str | None = None) -> bool:
        """Whether the model reaches 90% at half its training length (1K in the paper) in any seed.

        ``beside``: the architecture that it is compared with, seed by seed; only seeds of both count then. A grid
        without that length answers with the shortest one that it has within the training length.
        """
        half, lengths = round(0.5 * self.length), set(self.cells["length"].unique())
        length = half if half in lengths else min(lengths)
        if length > self.length:
            return False
        values, partners = (
            task_scores.needle_values(self.cells, name, lambda n: n == length) for name in (architecture, beside or "")
        )
        return any(value.value >= ABLE for seed, value in values.items() if beside is None or seed in partners)

    def both_able(self, first: str, second: str) -> bool:
        """Whether each of two models that are compared is :meth:`able` in a seed that both have."""
        return self.able(first, second) and self.able(second, first)

    def column(self, architecture: str, column: task_scores.Column) -> SeedValues:
        """Values of one column of the tables by seed."""
        values = task_scores.column_values(self.scores, architecture, column)
        self._count(architecture, column.title, values)
        return values

    def commonsense(self, architecture: str, with_lambada: bool = False) -> SeedValues:
        """Mean accuracy in percent over the seven tasks, or these and LAMBADA."""
        values = task_scores.commonsense(self.scores, architecture, with_lambada)
        self._count(architecture, f"commonsense{' and LAMBADA' * with_lambada}", values)
        return values

    @property
    def retrieval_columns(self) -> list[task_scores.Column]:
        """The real-world retrieval tasks that :meth:`retrieval` averages; none in another grid than the main one."""
        return [] if self.grid is not None else task_scores.columns_run(self.scores, task_scores.RETRIEVAL)

    def retrieval(self, architecture: str) -> SeedValues:
        """Mean of the real-world retrieval tasks; where none was run, or in another grid, needles within L."""
        if self.retrieval_columns:
            values = task_scores.retrieval(self.scores, architecture)
            self._count(architecture, "retrieval", values)
            return values
        return self.needles(architecture, lambda n: n <= self.length)

    @property
    def retrieval_note(self) -> str:
        """Which tasks :meth:`retrieval` averages."""
        if self.retrieval_columns:
            return f"retrieval: mean of {', '.join(column.title for column in self.retrieval_columns)}"
        why = ", since no real-world retrieval task was run" if self.grid is None else ""
        return f"retrieval: needles within the training length{why}"

    @property
    def retrieval_file(self) -> str:
        """Result file of a model that :meth:`retrieval` reads."""
        return "scores.csv" if self.retrieval_columns else "niah_cells.csv"

    def log_perplexity(self, architecture: str, column: task_scores.Column) -> SeedValues:
        """Natural logarithm of a perplexity, with its error to first order."""
        return {seed: value.logarithm() for seed, value in self.column(architecture, column).items()}

    @property
    def perplexities(self) -> list[task_scores.Column]:
        """WikiText (or, without it, held-out articles) and LAMBADA, as far as they were run."""
        run = task_scores.columns_run(self.scores, (task_scores.WIKI, task_scores.HELD_OUT, task_scores.LAMBADA_PPL))
        return [c for c in run if c is not task_scores.HELD_OUT or task_scores.WIKI not in run]

    def _count(self, architecture: str, what: str, values: SeedValues) -> None:
        if values:
            self.read[architecture, what] = sum(value.n for value in values.values())
