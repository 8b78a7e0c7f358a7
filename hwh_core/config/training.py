"""How a model is trained and which sizes it has; used by the controlled Transformers and by the HwH family."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .base import Name, PositiveInt, Strict


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
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="with several processes: weights whole in each of them, or spread over them"
    )
    checkpoint_every_steps: PositiveInt
    keep_checkpoints: PositiveInt = 2

    def refuse_unfit(self, length: int, whose: str) -> None:
        """Raise ValueError where no training on sequences of ``length`` tokens can follow these sizes.

        ``whose`` length it is stands in the message. Else the training itself would tell, after texts were fetched and
        tokenized.
        """
        for key in ("tokens_per_step", "micro_batch_tokens"):
            tokens = getattr(self, key)
            if tokens is not None and tokens % length:
                raise ValueError(
                    f"training.{key} = {tokens} is no multiple of the length {length} {whose}; choose a multiple, "
                    "since a step takes whole sequences"
                )
        if self.micro_batch_tokens is not None and self.tokens_per_step % self.micro_batch_tokens:
            raise ValueError(
                f"training.micro_batch_tokens = {self.micro_batch_tokens} does not divide tokens_per_step = "
                f"{self.tokens_per_step}"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"training.warmup_steps = {self.warmup_steps} must be smaller than training.steps = {self.steps}"
            )


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
    initializer_range: Annotated[float, Field(ge=0)] = 0.02


def _is_none(value: object) -> bool:
    return value is None


class ArchitectureVariant(Strict):
    """An architecture of one's own: one of ``hwh_core.architectures`` with other head groups."""

    name: Name
    base: Name = Field(description="architecture of hwh_core.architectures that it is made from")
    recurrence: Literal["gated_deltanet", "deltanet"] = "gated_deltanet"
    full_attention_fractions: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        default=None,
        min_length=1,
        description="full-attention share of Q, K and V dimensions of every layer, from the first on",
    )
    full_attention_queries_per_key: PositiveInt = 1
    sliding_window_queries_per_key: PositiveInt = 1
    # Sizes of the scale that the variant sets otherwise; not written where it does not, so that nothing that was made
    # before these keys is made anew.
    attention_output_norm: bool | None = Field(
        default=None, exclude_if=_is_none, description="norm behind attention; None: as in the shape of the scale"
    )
    nope_qk_norm: bool | None = Field(
        default=None, exclude_if=_is_none, description="QK-norm of heads without RoPE; None: as in that shape"
    )

    def applied(self, shape: ModelShape) -> VariedShape:
        """The sizes of a scale for this variant."""
        sizes = self.model_dump(include={"attention_output_norm", "nope_qk_norm"})
        return VariedShape(**shape.model_dump() | sizes, variant=self.model_copy(update=dict.fromkeys(sizes)))


class VariedShape(ModelShape):
    """The sizes of a family for one of its variants; made by the project, never written in a preset."""

    variant: ArchitectureVariant
