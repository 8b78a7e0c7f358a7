"""Settings of one training run, and the fingerprint by which a checkpoint is recognised."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field, SerializeAsAny, ValidationError, field_validator

from ..architectures import layers_of_shape
from ..config import ModelShape, Name, PositiveInt, RetrievalMixConfig, Strict, TrainingConfig, VariedShape
from ..scripting import UserError


class TrainingError(UserError):
    """A training cannot start, go on or be resumed; the message says why and how to mend it."""


class ModelSettings(Strict):
    """Which model is trained. ``seed`` decides the initial weights and the order of the data."""

    architecture: Name
    shape: SerializeAsAny[ModelShape]
    rope_theta: float
    qk_norm: bool
    length: PositiveInt
    seed: int

    @field_validator("shape", mode="before")
    @classmethod
    def _of_a_variant(cls, value: Any) -> Any:
        return VariedShape.model_validate(value) if isinstance(value, dict) and "variant" in value else value


class TrainSettings(Strict):
    """Everything that decides a run besides the token store; ``retrieval_mix`` None: prose alone.

    ``snapshot_steps`` are steps after which the weights are kept; they decide nothing of the training itself.
    """

    model: ModelSettings
    training: TrainingConfig
    retrieval_mix: RetrievalMixConfig | None = None
    snapshot_steps: list[PositiveInt] | None = Field(default=None, min_length=1)

    def written(self) -> dict[str, Any]:
        """As JSON data, in the form that the workflow gives: a mix or snapshots that are not there are no key."""
        values = self.model_dump(mode="json")
        for key in ("retrieval_mix", "snapshot_steps"):
            if values[key] is None:
                del values[key]
        return values


# These change how often a run is saved, and how the work of a step is shared out: in which order its gradients are
# added, not what they are. A run may go on from a checkpoint on another number of processes.
_NOT_IN_FINGERPRINT = ("checkpoint_every_steps", "keep_checkpoints", "parallel", "micro_batch_tokens", "compile")


def parse_settings(values: dict[str, Any]) -> TrainSettings:
    """Check settings; raises :class:`TrainingError`, or ``ArchitectureError`` for sizes, naming the key."""
    try:
        settings = TrainSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TrainingError(f"--settings: key {key!r} = {first.get('input')!r}: {first['msg']}") from None
    model, training = settings.model, settings.training
    layers_of_shape(model.shape.model_dump(), model.architecture, rope_theta=model.rope_theta, qk_norm=model.qk_norm)
    try:
        training.refuse_unfit(model.length, "of the model")
    except ValueError as error:
        raise TrainingError(str(error)) from None
    kept = settings.snapshot_steps or []
    if kept != sorted(set(kept)) or (kept and kept[-1] > training.steps):
        raise TrainingError(
            f"snapshot_steps = {kept}: expected ascending steps up to training.steps = {training.steps}, none twice"
        )
    return settings


def run_fingerprint(settings: TrainSettings, data_fingerprint: str, vocab_size: int) -> dict[str, str]:
    """Named hashes of what a checkpoint depends on: ``config`` and ``data``."""
    training = settings.training.model_dump(mode="json")
    for key in _NOT_IN_FINGERPRINT:
        del training[key]
    config = {
        "model": settings.model.model_dump(mode="json"),
        "training": training,
        "vocab_size": vocab_size,
    }
    text = json.dumps(config, sort_keys=True)
    return {"config": hashlib.sha256(text.encode()).hexdigest(), "data": data_fingerprint}
