"""A complete preset: all sections, and what must agree between them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .band import BandConfig, SyntheticConfig
from .base import DistinctOrEmpty, Name, Seed, Strict
from .controlled import ControlledConfig
from .data import DataConfig, Tokenizer
from .evaluation import EvaluationConfig
from .hwh import HwHConfig
from .pretrained import PretrainedConfig


class TargetsConfig(Strict):
    """Which of the paper's figures and tables this preset can draw, and of ours; the ledger names the others."""

    figures: DistinctOrEmpty[
        Literal[
            2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "band_curve", "head_influence", "needle_wordings", "qk_norm"
        ]
    ]
    tables: DistinctOrEmpty[Literal[1, 2, 3, 4, 5, 6, 7, 8, "heads"]]
    # Not written where there are none, so that nothing that was made before this key is made anew.
    comparisons: DistinctOrEmpty[Literal["variants"]] = Field(
        default=[], exclude_if=lambda value: not value, description="tables of ours that set models side by side"
    )


class PresetConfig(Strict):
    """A complete preset."""

    preset: Name
    description: str
    seed: Seed
    keep_weights: bool = Field(default=True, description="false: weights go once their model is measured")
    data: DataConfig
    tokenizers: list[Tokenizer] = Field(min_length=1)
    controlled: ControlledConfig
    band: BandConfig
    synthetic: SyntheticConfig
    pretrained: PretrainedConfig
    hwh: HwHConfig
    evaluation: EvaluationConfig
    targets: TargetsConfig

    @model_validator(mode="after")
    def _names_are_unique_and_known(self) -> PresetConfig:
        tokenizers = [t.name for t in self.tokenizers]
        groups = {
            "data.sources": [s.name for s in self.data.sources],
            "tokenizers": tokenizers,
            "controlled.models": [m.name for m in self.controlled.models],
            "pretrained.models": [m.name for m in self.pretrained.models],
            "hwh.scales": [s.name for s in self.hwh.scales],
            "evaluation.niah.additional": [g.name for g in self.evaluation.niah.additional],
            **{f"hwh.scales.{s.name}.models": [m.name for m in s.models] for s in self.hwh.scales},
        }
        for key, names in groups.items():
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{key}: name {twice[0]!r} stands there twice; names must be unique")
        wanted = {"controlled.tokenizer": self.controlled.tokenizer}
        wanted |= {f"hwh.scales.{s.name}.tokenizer": s.tokenizer for s in self.hwh.scales}
        wanted |= {
            f"pretrained.models.{m.name}.source.tokenizer": m.source.tokenizer
            for m in self.pretrained.models
            if m.source.kind == "random"
        }
        for key, name in wanted.items():
            if name not in tokenizers:
                raise ValueError(f"{key}: tokenizer {name!r} is not among tokenizers {tokenizers}")
        if self.data.held_out_prose_source not in groups["data.sources"]:
            raise ValueError(
                f"data.held_out_prose_source: {self.data.held_out_prose_source!r} is not among the sources "
                f"{groups['data.sources']}"
            )
        return self


def json_schema() -> dict:
    """JSON schema of a preset, as stored in workflow/schemas/config.schema.json."""
    return PresetConfig.model_json_schema()
