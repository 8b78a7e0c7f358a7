"""Section ``controlled``: Transformers that differ in RoPE base, length and QK-norm, their probe and curves."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from ..architectures import ArchitectureError, layers_of_shape
from .base import Distinct, Name, PositiveInt, Seed, Strict, trained_once
from .training import ModelShape, TrainingConfig


class ControlledModel(Strict):
    """One controlled RoPE Transformer."""

    name: Name
    rope_theta: Annotated[float, Field(gt=1)]
    length: PositiveInt
    qk_norm: bool
    seed: Seed


class ControlledProbe(Strict):
    """How a controlled model is probed; lengths are multiples of its training length."""

    num_samples: PositiveInt
    num_queries: PositiveInt
    eval_length_factors: Distinct[Annotated[float, Field(gt=0, allow_inf_nan=False)]]

    @field_validator("eval_length_factors")
    @classmethod
    def _training_length_is_probed(cls, factors: list[float]) -> list[float]:
        # Figures, tables and claims read the band at the training length, and hold the others against it.
        if 1 not in factors:
            raise ValueError("the training length itself, factor 1.0, is not among them; add it")
        return factors


class CurveConfig(Strict):
    """The band of some controlled models against the tokens that they have seen (ours: when does it appear?)."""

    models: Distinct[Name]
    steps: list[Annotated[int, Field(ge=0)]] = Field(
        min_length=3, description="from 0, the model at initialisation, to the last step of the training, ascending"
    )

    @field_validator("steps")
    @classmethod
    def _steps_ascend_from_0(cls, steps: list[int]) -> list[int]:
        if steps[0] != 0 or any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError("expected steps that start at 0 and ascend, none of them twice")
        return steps

    @property
    def snapshot_steps(self) -> list[int]:
        """Steps after which a training keeps its weights; those of the first and the last it writes anyway."""
        return self.steps[1:-1]


class ControlledConfig(Strict):
    """Section 3.4 and appendix B.4: Transformers that differ in RoPE base, length and QK-norm only."""

    tokenizer: Name
    shape: ModelShape
    training: TrainingConfig
    models: Annotated[list[ControlledModel], AfterValidator(trained_once)]
    probe: ControlledProbe
    curve: CurveConfig | None = Field(default=None, description="None: only trained models are probed")

    @field_validator("curve")
    @classmethod
    def _curve_belongs_to_the_trainings(cls, curve: CurveConfig | None, info: ValidationInfo) -> CurveConfig | None:
        # A section that was refused is not among the data, and its own error says so.
        if curve is None or not {"models", "training"} <= set(info.data):
            return curve
        names, steps = [model.name for model in info.data["models"]], info.data["training"].steps
        unknown = [name for name in curve.models if name not in names]
        if unknown:
            raise ValueError(f"models: {unknown[0]!r} is not among controlled.models {names}")
        if curve.steps[-1] != steps:
            raise ValueError(f"steps: the last is {curve.steps[-1]}, expected controlled.training.steps = {steps}")
        return curve

    @model_validator(mode="after")
    def _models_can_be_built_and_probed(self) -> ControlledConfig:
        # Else a training would tell, and of the probe only when the training is through.
        if self.models:
            try:
                layers_of_shape(self.shape.model_dump(), "transformer")
            except ArchitectureError as error:
                raise ValueError(f"shape: {error}") from None
        for model in self.models:
            self.training.refuse_unfit(model.length, f"of {model.name!r}")
            for factor in self.probe.eval_length_factors:
                length, queries = factor * model.length, self.probe.num_queries
                if length != int(length) or length < queries:
                    raise ValueError(
                        f"probe.eval_length_factors: {factor:g} times the {model.length} tokens of {model.name!r} are "
                        f"{length:g}, expected a whole number of at least probe.num_queries = {queries} tokens"
                    )
        return self

    @property
    def curve_models(self) -> list[ControlledModel]:
        """Models with a curve, in the order of ``models``."""
        return [model for model in self.models if self.curve is not None and model.name in self.curve.models]
