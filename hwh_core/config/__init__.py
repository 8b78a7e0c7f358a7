"""The configuration of a preset: one strict schema, used by Snakemake, the scripts and the tests.

Every preset under ``config/`` is one complete file that is validated against :class:`PresetConfig`. Unknown keys are
refused at every level. ``workflow/schemas/config.schema.json`` is generated from these models (``python -m
hwh_core.config``) and a test checks that both agree. ``config/README.md`` explains every key and tags its origin.

One module holds the models of one part of a preset; others import them from here.
"""

from .band import BandConfig, SyntheticConfig
from .base import Name, PositiveInt, Sha256, Strict
from .controlled import ControlledConfig, ControlledModel, ControlledProbe, CurveConfig
from .data import (
    DataConfig,
    FilesSource,
    GitSource,
    HubSource,
    HubTokenizer,
    PypiSource,
    Source,
    Tokenizer,
    TrainedTokenizer,
)
from .evaluation import (
    EvaluationConfig,
    FilesRows,
    HubRows,
    NiahConfig,
    NiahGrid,
    PerplexityConfig,
    PypiRows,
    RetrievalConfig,
    Rows,
    TaskConfig,
)
from .hwh import HwHConfig, HwHModel, HwHScale, HybridProbeConfig, RetrievalMixConfig
from .loading import ConfigError, load_preset, read_preset, validate_preset
from .preset import PresetConfig, TargetsConfig, json_schema
from .pretrained import (
    BehaviorConfig,
    CandidateBand,
    CausalConfig,
    FolderModel,
    GgufWheelModel,
    HubModel,
    ModelSource,
    PretrainedConfig,
    PretrainedModel,
    PretrainedProbe,
    RandomModel,
)
from .training import ArchitectureVariant, ModelShape, OptimizerConfig, TrainingConfig, VariedShape

__all__ = [
    "ArchitectureVariant",
    "BandConfig",
    "BehaviorConfig",
    "CandidateBand",
    "CausalConfig",
    "ConfigError",
    "ControlledConfig",
    "ControlledModel",
    "ControlledProbe",
    "CurveConfig",
    "DataConfig",
    "EvaluationConfig",
    "FilesRows",
    "FilesSource",
    "FolderModel",
    "GgufWheelModel",
    "GitSource",
    "HubModel",
    "HubRows",
    "HubSource",
    "HubTokenizer",
    "HwHConfig",
    "HwHModel",
    "HwHScale",
    "HybridProbeConfig",
    "ModelShape",
    "ModelSource",
    "Name",
    "NiahConfig",
    "NiahGrid",
    "OptimizerConfig",
    "PerplexityConfig",
    "PositiveInt",
    "PresetConfig",
    "PretrainedConfig",
    "PretrainedModel",
    "PretrainedProbe",
    "PypiRows",
    "PypiSource",
    "RandomModel",
    "RetrievalConfig",
    "RetrievalMixConfig",
    "Rows",
    "Sha256",
    "Source",
    "Strict",
    "SyntheticConfig",
    "TargetsConfig",
    "TaskConfig",
    "Tokenizer",
    "TrainedTokenizer",
    "TrainingConfig",
    "VariedShape",
    "json_schema",
    "load_preset",
    "read_preset",
    "validate_preset",
]
