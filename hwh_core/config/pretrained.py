"""Section ``pretrained``: where pretrained models come from, and what is measured on them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypedDict

from .base import (
    Commit,
    Distinct,
    Filename,
    Name,
    Package,
    PositiveInt,
    Repository,
    Seed,
    Sha256,
    Strict,
    Version,
    each_once,
)
from .samples import parse_samples

LD_WINDOWS, LD_SINKS = (64, 128, 256, 512), (1, 4, 16)
LD_WINDOW, LD_NUM_SINKS = 128, 4
"""Sizes of LDscore outside of presets, which state their own: all that are measured, and those that tables show."""
SYNTHETIC = "synthetic"


class GgufWheelModel(Strict):
    """A GGUF file inside a wheel, dequantised once into a Hugging Face folder."""

    kind: Literal["gguf_wheel"]
    package: Package
    version: Version
    filename: Filename
    sha256: Sha256
    member: str
    license: str


class HubModel(Strict):
    """A model repository on a hub, pinned to a commit."""

    kind: Literal["hub"]
    repository: Repository
    revision: Commit
    license: str


class FolderModel(Strict):
    """A local Hugging Face folder."""

    kind: Literal["folder"]
    path: str


class RandomModel(Strict):
    """A Llama-shaped model with random weights: for the smoke preset only, no claim is read from it."""

    kind: Literal["random"]
    tokenizer: Name
    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    rope_theta: Annotated[float, Field(gt=1)]
    seed: Seed

    @model_validator(mode="after")
    def _heads_divide_the_stream(self) -> RandomModel:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size = {self.hidden_size} gives no even size to each of num_heads = {self.num_heads} heads; "
                "choose a multiple of twice the heads"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads = {self.num_kv_heads} must divide num_heads = {self.num_heads}")
        return self


ModelSource = Annotated[GgufWheelModel | HubModel | FolderModel | RandomModel, Field(discriminator="kind")]


class CandidateBand(TypedDict):
    """One prediction to draw beside a model's maps; without ``rope_theta`` on the model's own frequencies."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    label: str
    rope_theta: NotRequired[Annotated[float, Field(gt=1)]]
    length: PositiveInt


class PretrainedModel(Strict):
    """One pretrained model, the claims that it stands for, and the figures in which it appears."""

    name: Name
    title: str
    source: ModelSource
    candidate_bands: list[CandidateBand] = Field(default_factory=list, description="predictions drawn beside the maps")

    @field_validator("candidate_bands")
    @classmethod
    def _labels_tell_predictions_apart(cls, bands: list[CandidateBand]) -> list[CandidateBand]:
        each_once([band["label"] for band in bands])
        return bands


class Measured(Strict):
    """Samples of one length, and how many of their last positions are measured."""

    length: PositiveInt
    num_samples: PositiveInt
    num_queries: PositiveInt

    @model_validator(mode="after")
    def _queries_fit_into_a_sample(self) -> Measured:
        if self.num_queries > self.length:
            raise ValueError(
                f"num_queries: {self.num_queries} are more than the length {self.length} of a sample; measure fewer "
                "queries or take longer samples"
            )
        return self


class PretrainedProbe(Measured):
    """RFIS and RPD of pretrained models: appendix B.1 uses 100 samples and the final 128 query positions."""

    backend: Literal["auto", "torch"] = "auto"


class BehaviorConfig(Measured):
    """QRscore and LDscore (appendix A.1); window and sink sizes are ours."""

    windows: Distinct[PositiveInt]
    sinks: Distinct[PositiveInt]
    default_window: PositiveInt
    default_sinks: PositiveInt
    samples: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="synthetic, or what hwh probe --samples takes: squad:FILE, nq, longmemeval, ruler, ..."
    )
    calibrate: bool = True

    @model_validator(mode="after")
    def _samples_have_evidence(self) -> BehaviorConfig:
        source = self.sample_source()
        if source is not None:
            kind, files = source
            if kind == "text":
                raise ValueError("samples: text has no evidence, which QRscore needs; expected another kind")
            if braces := [file for file in files if "{" in file or "}" in file]:
                raise ValueError(f"samples: Snakemake takes braces in {braces[0]!r} for wildcards; rename the file")
            try:
                each_once(files)
            except ValueError as error:
                raise ValueError(f"samples: {error}") from None
        return self

    @model_validator(mode="after")
    def _shown_sizes_are_measured(self) -> BehaviorConfig:
        for key, values in (("default_window", self.windows), ("default_sinks", self.sinks)):
            if getattr(self, key) not in values:
                raise ValueError(f"{key}: {getattr(self, key)} is not among {values}")
        return self

    def sample_source(self) -> tuple[str, tuple[str, ...]] | None:
        """Kind of the samples and the paths that are named for it; None: facts planted in held-out prose."""
        words = [self.samples] if isinstance(self.samples, str) else self.samples
        if list(words) == [SYNTHETIC]:
            return None
        try:
            return parse_samples(words)
        except ValueError as error:
            raise ValueError(f"samples: {error}, or {SYNTHETIC}") from None


class CausalConfig(Strict):
    """Causal checks of head classes and of the band: run on demand, ours."""

    length: PositiveInt = Field(default=512, description="tokens of a window of held-out prose, and of a needle prompt")
    num_windows: PositiveInt = Field(default=16, description="windows over which the loss is averaged")
    num_needles: PositiveInt = Field(default=20, description="needle prompts, spread evenly over depths")
    random_draws: PositiveInt = Field(default=5, description="random sets of the same size in every layer")
    batch_tokens: PositiveInt = Field(default=4096, description="tokens that go through the model together")


class PretrainedFigure(Strict):
    """Which models one figure of pretrained models draws, one below the other."""

    figure: Literal[2, 7, 8, 9, 10, 13, 14, "qk_norm", "causal"]
    models: Distinct[Name] = Field(description="names under pretrained.models")
    layers: Distinct[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="figures 10 and 14: layers drawn of these models"
    )

    @model_validator(mode="after")
    def _only_heads_of_chosen_layers_have_layers(self) -> PretrainedFigure:
        if self.layers is not None and self.figure not in (10, 14):
            raise ValueError(f"layers: figure {self.figure} draws all layers; only figures 10 and 14 draw chosen ones")
        return self


class PretrainedConfig(Strict):
    """Sections 3.1 to 3.3: behaviour scores and interventions on pretrained models."""

    models: list[PretrainedModel]
    figures: list[PretrainedFigure] = Field(
        default_factory=list, description="figures of other models than the default ones"
    )
    probe: PretrainedProbe
    behavior: BehaviorConfig
    causal: CausalConfig | None = Field(default=None, description="for figure causal; null: not run")

    @model_validator(mode="after")
    def _figures_are_of_known_models(self) -> PretrainedConfig:
        known = [model.name for model in self.models]
        # A figure may have several entries: one holds the models that share their layers.
        named = [(entry.figure, name) for entry in self.figures for name in entry.models]
        for figure, name in named:
            if name not in known:
                raise ValueError(f"figures: figure {figure} names {name!r}, which is not among the models {known}")
            if named.count((figure, name)) > 1:
                raise ValueError(f"figures: figure {figure} names {name!r} twice")
        return self
