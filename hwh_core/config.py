"""The configuration of a preset: one strict schema, used by Snakemake, the scripts and the tests.

Every preset under ``config/`` is one complete file that is validated against :class:`PresetConfig`. Unknown keys are
refused at every level. ``workflow/schemas/config.schema.json`` is generated from these models (``python -m
hwh_core.config``) and a test checks that both agree. ``config/README.md`` explains every key and tags its origin.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from typing_extensions import TypedDict

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PositiveInt = Annotated[int, Field(gt=0)]


class ConfigError(ValueError):
    """A preset cannot be used; the message names the file, the key, the value and what was expected."""


class Strict(BaseModel):
    """Base of all configuration models: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --------------------------------------------------------------------------- data


class PypiSource(Strict):
    """Files taken from one named wheel or sdist; the archive is read, never installed."""

    kind: Literal["pypi"]
    name: Name
    package: str
    version: str
    filename: str
    sha256: Sha256
    members: list[str] = Field(min_length=1, description="glob patterns of archive members")
    format: Literal["text", "mediawiki_xml", "python_docstrings", "jsonl", "parquet"] = "text"
    text_column: str = "text"
    license: str


class HubSource(Strict):
    """One split of a data set on a Hugging Face hub, pinned to a revision."""

    kind: Literal["hub"]
    name: Name
    repository: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    subset: str | None = None
    split: str = "train"
    text_column: str = "text"
    max_bytes: PositiveInt | None = None
    license: str


class GitSource(Strict):
    """Text files of one commit of a git repository, each pinned by sha256 in a manifest file."""

    kind: Literal["git"]
    name: Name
    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    pattern: str
    manifest: str = Field(
        description="text file of '<sha256>  <path>' lines, relative to the repository root; files that it does not "
        "name are left out"
    )
    license: str


class FilesSource(Strict):
    """Local files: .txt (one document each), .jsonl, .jsonl.zst, .jsonl.gz or .parquet."""

    kind: Literal["files"]
    name: Name
    paths: list[str] = Field(min_length=1, description="paths or globs, relative to the repository root or absolute")
    text_column: str = "text"
    license: str


Source = Annotated[PypiSource | HubSource | GitSource | FilesSource, Field(discriminator="kind")]


class DataConfig(Strict):
    """Which text is used and how it is split by document."""

    sources: list[Source] = Field(min_length=1)
    minimum_bytes: PositiveInt
    held_out_fraction: Annotated[float, Field(gt=0, lt=0.5)]
    held_out_prose_source: Name = Field(description="source whose held-out documents are haystack and probe text")


class TrainedTokenizer(Strict):
    """Byte-level BPE trained on the training documents; digits are split one by one."""

    kind: Literal["bpe"]
    name: Name
    vocab_size: PositiveInt
    training_bytes: PositiveInt


class HubTokenizer(Strict):
    """A tokenizer of a hub repository, pinned to a revision."""

    kind: Literal["hub"]
    name: Name
    repository: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


Tokenizer = Annotated[TrainedTokenizer | HubTokenizer, Field(discriminator="kind")]


# --------------------------------------------------------------------------- training


class OptimizerConfig(Strict):
    """AdamW on everything, or Muon on the matrices of the blocks with AdamW on the rest."""

    kind: Literal["adamw", "muon_adamw"]
    learning_rate: Annotated[float, Field(gt=0)]
    matrix_learning_rate: Annotated[float, Field(gt=0)] | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1

    @model_validator(mode="after")
    def _muon_needs_a_matrix_rate(self) -> OptimizerConfig:
        if (self.kind == "muon_adamw") != (self.matrix_learning_rate is not None):
            raise ValueError("matrix_learning_rate is needed by kind muon_adamw and refused by kind adamw")
        return self


class TrainingConfig(Strict):
    """One training run: how many steps of how many tokens, and with which optimizer and schedule."""

    steps: PositiveInt
    tokens_per_step: PositiveInt
    warmup_steps: Annotated[int, Field(ge=0)]
    final_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    optimizer: OptimizerConfig
    precision: Literal["float32", "bfloat16"]
    compile: Literal["auto", "never"] = "auto"
    micro_batch_tokens: PositiveInt | None = None
    checkpoint_every_steps: PositiveInt
    keep_checkpoints: PositiveInt = 2


class ModelShape(Strict):
    """The sizes shared by all models of a family; attention may be wider than the stream."""

    num_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    attention_head_dim: PositiveInt
    num_attention_heads: PositiveInt | None = Field(default=None, description="None: hidden_size / attention_head_dim")
    gdn_head_dim: PositiveInt | None = None
    conv_size: PositiveInt = 4
    gate: bool = Field(description="output gate in every mixer (keeps parameters equal across the family)")
    attention_output_norm: bool = False
    nope_qk_norm: bool | None = Field(default=None, description="QK-norm of heads without RoPE; None: as qk_norm")
    sliding_window: PositiveInt = Field(default=128, description="keys that a sliding-window head sees")
    tie_embeddings: bool = False
    initializer_range: float = 0.02


# --------------------------------------------------------------------------- controlled Transformers


class ControlledModel(Strict):
    """One controlled RoPE Transformer."""

    name: Name
    rope_theta: Annotated[float, Field(gt=1)]
    length: PositiveInt
    qk_norm: bool
    seed: int


class ControlledProbe(Strict):
    """How a controlled model is probed; lengths are multiples of its training length."""

    num_samples: PositiveInt
    num_queries: PositiveInt
    eval_length_factors: list[float] = Field(min_length=1)


class CurveConfig(Strict):
    """The band of some controlled models against the tokens that they have seen (ours: when does it appear?)."""

    models: list[Name] = Field(min_length=1)
    steps: list[Annotated[int, Field(ge=0)]] = Field(
        min_length=3, description="from 0, the model at initialisation, to the last step of the training, ascending"
    )

    @field_validator("models")
    @classmethod
    def _models_are_unique(cls, models: list[str]) -> list[str]:
        twice = sorted({name for name in models if models.count(name) > 1})
        if twice:
            raise ValueError(f"name {twice[0]!r} stands there twice; names must be unique")
        return models

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
    models: list[ControlledModel]
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

    @property
    def curve_models(self) -> list[ControlledModel]:
        """Models with a curve, in the order of ``models``."""
        return [model for model in self.models if self.curve is not None and model.name in self.curve.models]


class BandConfig(Strict):
    """Extraction of the Global Positional Band (the rules are ours, section 4 of the method notes)."""

    prominence: float = 0.15
    relative_height: float = 0.25
    null_height_ratio: float = 2.0
    search_period_divisor: float = 8.0
    edge_fraction: float = 0.1
    bootstrap_resamples: PositiveInt = 1000
    cluster_gap: float = 2.0
    cluster_min_layers: PositiveInt = 3


class SyntheticConfig(Strict):
    """Heads with a planted band, on which the extractor and the classification are checked (claims S1 and S2)."""

    num_seeds: PositiveInt
    rope_thetas: list[Annotated[float, Field(gt=1)]] = Field(min_length=1)


# --------------------------------------------------------------------------- pretrained models


class GgufWheelModel(Strict):
    """A GGUF file inside a wheel, dequantised once into a Hugging Face folder."""

    kind: Literal["gguf_wheel"]
    package: str
    version: str
    filename: str
    sha256: Sha256
    member: str
    license: str


class HubModel(Strict):
    """A model repository on a hub, pinned to a revision."""

    kind: Literal["hub"]
    repository: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | Literal["main"]
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
    rope_theta: float
    seed: int


ModelSource = Annotated[GgufWheelModel | HubModel | FolderModel | RandomModel, Field(discriminator="kind")]


class CandidateBand(TypedDict):
    """One prediction to draw beside a model's maps; without ``rope_theta`` on the model's own frequencies."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    label: str
    rope_theta: NotRequired[Annotated[float, Field(gt=1)]]
    length: PositiveInt


class PretrainedModel(Strict):
    """One pretrained model, the claims that it stands for, and the figures in which it appears."""

    name: Name
    title: str
    source: ModelSource
    candidate_bands: list[CandidateBand] = Field(default_factory=list, description="predictions drawn beside the maps")


class PretrainedProbe(Strict):
    """RFIS and RPD of pretrained models: appendix B.1 uses 100 samples and the final 128 query positions."""

    length: PositiveInt
    num_samples: PositiveInt
    num_queries: PositiveInt
    backend: Literal["auto", "torch"] = "auto"


class BehaviorConfig(Strict):
    """QRscore and LDscore (appendix A.1); window and sink sizes are ours."""

    length: PositiveInt
    num_samples: PositiveInt
    num_queries: PositiveInt
    windows: list[PositiveInt]
    sinks: list[PositiveInt]
    default_window: PositiveInt
    default_sinks: PositiveInt
    samples: Literal["synthetic", "local_qa"]
    questions: str | None = Field(default=None, description="for local_qa: .jsonl of questions, contexts, answers")
    calibrate: bool = True

    @model_validator(mode="after")
    def _local_questions_need_a_file(self) -> BehaviorConfig:
        if (self.samples == "local_qa") != (self.questions is not None):
            raise ValueError("questions is needed by samples: local_qa and refused by samples: synthetic")
        return self


class PretrainedConfig(Strict):
    """Sections 3.1 to 3.3: behaviour scores and interventions on pretrained models."""

    models: list[PretrainedModel]
    probe: PretrainedProbe
    behavior: BehaviorConfig


# --------------------------------------------------------------------------- HwH family


class HwHModel(Strict):
    """One member of the family: an architecture of ``hwh_core.architectures`` with a seed."""

    name: Name
    architecture: Name
    seed: int
    rope_theta: float = 10000.0
    retrieval_mix: bool = Field(default=True, description="false: a control, trained without the mix of its scale")


class RetrievalMixConfig(Strict):
    """Facts and questions in a share of the training sequences (a deviation from the paper that reports name)."""

    sequence_share: Annotated[float, Field(gt=0, le=1)]
    pairs_per_sequence: PositiveInt
    repeat_share: Annotated[float, Field(ge=0, le=1)] = Field(
        description="share of the questions that are replaced by a plain repeat of the fact"
    )
    value_digits: list[Annotated[int, Field(ge=3, le=12)]] = Field(
        min_length=1, description="numbers of digits of the values, drawn from with equal chances"
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
    models: list[HwHModel]

    @model_validator(mode="after")
    def _controls_need_a_mix(self) -> HwHScale:
        for model in self.models:
            if not model.retrieval_mix and self.retrieval_mix is None:
                raise ValueError(
                    f"model {model.name!r} has retrieval_mix: false, but the scale {self.name!r} has no retrieval_mix "
                    "that it could do without; remove the key or give the scale a mix"
                )
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
    scales: list[HwHScale]


# --------------------------------------------------------------------------- evaluation


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


class TargetsConfig(Strict):
    """Which of the paper's figures and tables this preset can draw, and of ours; the ledger names the others."""

    figures: list[Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "band_curve", "head_influence"]]
    tables: list[Literal[1, 2, 3, 4, 5, 6, 7, 8]]


class PresetConfig(Strict):
    """A complete preset."""

    preset: Name
    description: str
    seed: int
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
        for key, name in wanted.items():
            if name not in tokenizers:
                raise ValueError(f"{key}: tokenizer {name!r} is not among tokenizers {tokenizers}")
        if self.data.held_out_prose_source not in groups["data.sources"]:
            raise ValueError(
                f"data.held_out_prose_source: {self.data.held_out_prose_source!r} is not among the sources "
                f"{groups['data.sources']}"
            )
        return self


def _describe(error: ValidationError, origin: str) -> str:
    # A misspelt key is unknown, and the one that was meant is missing: the misspelt one is what the user must find.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{origin}: unknown key {key!r}; remove it or mend its spelling (config/README.md lists all keys){more}"
    if first["type"] == "missing":
        return f"{origin}: key {key!r} is missing; config/README.md says what it holds{more}"
    return f"{origin}: key {key!r} = {first.get('input')!r}: {first['msg']}{more}"


def validate_preset(data: dict, origin: str) -> PresetConfig:
    """Check a loaded preset; ``origin`` names the file in the error. Raises :class:`ConfigError`."""
    try:
        return PresetConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_describe(error, origin)) from None


def load_preset(path: str | Path) -> PresetConfig:
    """Read and check one preset file (YAML). Raises :class:`ConfigError` with one clear sentence."""
    import yaml

    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"preset file {path} does not exist; presets lie in config/ (config.yaml, smoke.yaml, ...)")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"preset file {path} is not valid YAML in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"preset file {path} holds no mapping of keys; see config/README.md")
    return validate_preset(data, str(path))


def json_schema() -> dict:
    """JSON schema of a preset, as stored in workflow/schemas/config.schema.json."""
    return PresetConfig.model_json_schema()


def main() -> None:
    """Write workflow/schemas/config.schema.json anew."""
    target = Path(__file__).resolve().parent.parent / "workflow" / "schemas" / "config.schema.json"
    target.write_text(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
