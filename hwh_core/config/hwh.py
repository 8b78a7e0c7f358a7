"""Section ``hwh``: the head-wise hybrid, its baselines and its ablations, scale by scale."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from ..architectures import ARCHITECTURES, ArchitectureError, layers_of_shape
from .base import Distinct, Name, PositiveInt, Seed, Strict, trained_once
from .training import ArchitectureVariant, ModelShape, TrainingConfig
from .variants import checked_variant


class HwHModel(Strict):
    """One member of the family: an architecture of ``hwh_core.architectures`` with a seed."""

    name: Name
    architecture: Name
    seed: Seed
    rope_theta: Annotated[float, Field(gt=1)] = 10000.0
    retrieval_mix: bool = Field(default=True, description="false: a control, trained without the mix of its scale")


class RetrievalMixConfig(Strict):
    """Facts and questions in a share of the training sequences (a deviation from the paper that reports name)."""

    sequence_share: Annotated[float, Field(gt=0, le=1)]
    pairs_per_sequence: PositiveInt
    repeat_share: Annotated[float, Field(ge=0, le=1)] = Field(
        description="share of the questions that are replaced by a plain repeat of the fact"
    )
    value_digits: Distinct[Annotated[int, Field(ge=3, le=12)]] = Field(
        description="numbers of digits of the values, drawn from with equal chances"
    )


class HwHScale(Strict):
    """All models that are compared with one another: same data order, sizes, schedule."""

    name: Name
    claim_scale: Literal["none", "scaled", "380M", "1.4B"]
    tokenizer: Name
    length: PositiveInt
    qk_norm: bool
    shape: ModelShape
    training: TrainingConfig
    retrieval_mix: RetrievalMixConfig | None = Field(default=None, description="None: training on prose alone")
    models: Annotated[list[HwHModel], Field(min_length=1), AfterValidator(trained_once)]

    @model_validator(mode="after")
    def _controls_need_a_mix(self) -> HwHScale:
        for model in self.models:
            if not model.retrieval_mix and self.retrieval_mix is None:
                raise ValueError(
                    f"model {model.name!r} has retrieval_mix: false, but the scale {self.name!r} has no retrieval_mix "
                    "that it could do without; remove the key or give the scale a mix"
                )
        return self

    @model_validator(mode="after")
    def _training_is_possible(self) -> HwHScale:
        self.training.refuse_unfit(self.length, f"of the scale {self.name!r}")
        return self

    def mix_of(self, model: HwHModel) -> RetrievalMixConfig | None:
        """The retrieval mix that a model of this scale is trained with."""
        return self.retrieval_mix if model.retrieval_mix else None


class HybridProbeConfig(Strict):
    """What every head of a trained model reads, near or far, at the training length of its scale (ours)."""

    num_samples: Annotated[int, Field(ge=2)] = Field(description="windows of held-out prose")
    num_queries: PositiveInt = Field(description="last positions of a window whose reading is measured")
    num_contexts: Annotated[int, Field(ge=2)] = Field(description="prompts with one planted fact")


class HwHConfig(Strict):
    """Section 4: the head-wise hybrid, its baselines and its ablations."""

    probe: HybridProbeConfig | None = Field(default=None, description="None: heads of these models are not probed")
    architectures: list[Annotated[ArchitectureVariant, AfterValidator(checked_variant)]] = Field(
        default=[], description="variants that models may name"
    )
    scales: list[HwHScale]

    @field_validator("architectures")
    @classmethod
    def _variants_have_names_of_their_own(cls, variants: list[ArchitectureVariant]) -> list[ArchitectureVariant]:
        names = [variant.name for variant in variants]
        for name in names:
            if name in ARCHITECTURES or names.count(name) > 1:
                raise ValueError(
                    f"the name {name!r} is taken; every variant needs one of its own, since claims and tables are "
                    "about architectures by name"
                )
        for number, variant in enumerate(variants):
            alike = variant.model_copy(update={"name": variant.base})
            if alike == ArchitectureVariant(name=variant.base, base=variant.base):
                raise ValueError(
                    f"{variant.name!r} changes nothing of {variant.base!r}; give it a key, or name {variant.base!r} in "
                    "the models"
                )
            for other in variants[:number]:
                if other.model_copy(update={"name": variant.name}) == variant:
                    raise ValueError(
                        f"{other.name!r} and {variant.name!r} are one architecture under two names, which would stand "
                        "in tables as two; remove one of them"
                    )
        return variants

    @model_validator(mode="after")
    def _architectures_are_known(self) -> HwHConfig:
        known = [*ARCHITECTURES, *(variant.name for variant in self.architectures)]
        for scale in self.scales:
            for model in scale.models:
                if model.architecture not in known:
                    raise ValueError(
                        f"scales: model {model.name!r} of scale {scale.name!r} has the architecture "
                        f"{model.architecture!r}; expected one of {', '.join(known)}"
                    )
        return self

    @model_validator(mode="after")
    def _sizes_fit_the_architectures(self) -> HwHConfig:
        # Else the first training would tell, after texts were fetched and tokenized.
        for scale in self.scales:
            for model in scale.models:
                try:
                    layers_of_shape(self.shape_of(scale, model.architecture).model_dump(), model.architecture)
                except ArchitectureError as error:
                    raise ValueError(
                        f"scales: model {model.name!r} of scale {scale.name!r} with the architecture "
                        f"{model.architecture!r} cannot be built: {error}"
                    ) from None
        return self

    def shape_of(self, scale: HwHScale, architecture: str) -> ModelShape:
        """Sizes of the models of ``scale`` with this architecture, its variant with them where it is one."""
        for variant in self.architectures:
            if variant.name == architecture:
                return variant.applied(scale.shape)
        return scale.shape
