"""Device memory that a training needs at its peak, by arithmetic from its sizes. Needs no torch.

Bytes a token of each part of a block are counted from what autograd keeps between forward and backward. In a compiled
block the partitioner keeps less than eager autograd: it computes norms, gates and SiLU again. The counts are compared
with the peaks in benchmarks/results/train.json by a test, which states the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .architectures import layers_of_shape, parameter_breakdown
from .config import ModelShape, OptimizerConfig, TrainingConfig
from .heads import SLIDING_WINDOW, HeadGroup, LayerSpec

GIB = 2**30
# As in hwh_core.training.compilation, which imports torch; a test compares.
CUDA_MINIMUM_TOKENS = 20_000_000
# As CHUNK_ROWS of kernels/cross_entropy.py, and the chunk and alignment of the other kernels; a test compares.
LOSS_ROWS, DELTA_RULE_CHUNK, ALIGNMENT = 8192, 64, 64
# Workspaces of the matrix library on the streams of a training.
WORKSPACE_BYTES = 96 * 2**20
# What CUDA itself takes of a card before the first tensor.
CONTEXT_BYTES = 768 * 2**20
FLOAT32 = 4
# Blocks of a model spread over processes that are whole at a time.
WHOLE_BLOCKS = 3
# Bytes a parameter of a process that H200 cards needed beside what is counted: for a step recorded as CUDA graphs (7.6 and
# 8.4 in two trainings that had gone on from a checkpoint), with DDP (20.9), with FSDP2 on two cards (12.8).
RECORDED_BESIDE, DDP_BESIDE, FSDP_BESIDE = 8, 20, 12


@dataclass(frozen=True)
class Card:
    """Memory of one GPU in bytes; ``free``: what tensors can have of it."""

    name: str
    total: int
    free: int


@dataclass(frozen=True)
class Training:
    """A training as far as its memory goes. ``processes`` share a step; ``vocab_size`` entries of the vocabulary."""

    architecture: str
    shape: ModelShape
    length: int
    vocab_size: int
    training: TrainingConfig
    processes: int = 1

    @property
    def step_tokens(self) -> int:
        """Tokens of a step that one process takes."""
        return self.training.tokens_per_step // self.processes

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens that are in memory at a time."""
        return min(self.training.micro_batch_tokens or self.step_tokens, self.step_tokens)

    @property
    def shards(self) -> int:
        """Processes over which weights, gradients and moments are spread."""
        return self.processes if self.training.parallel == "fsdp" else 1

    @property
    def compiled(self) -> bool:
        """Whether blocks are compiled on a GPU, given the kernels that Gated DeltaNet needs for it."""
        total = self.training.steps * self.training.tokens_per_step
        return self.training.compile != "never" and total >= CUDA_MINIMUM_TOKENS

    @property
    def recorded(self) -> bool:
        """Whether a step is recorded as CUDA graphs, as the trainer does where one process has the card."""
        return self.processes == 1 and self.training.compile != "never"

    @property
    def bytes_beside(self) -> int:
        """Bytes a parameter beside what is counted, by measurement."""
        if self.processes == 1:
            return RECORDED_BESIDE * self.recorded
        return FSDP_BESIDE if self.training.parallel == "fsdp" else DDP_BESIDE

    @property
    def layers(self) -> list[LayerSpec]:
        """Layers from the first to the last; QK-norm is counted where it could be."""
        return layers_of_shape(self.shape.model_dump(), self.architecture)

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part."""
        return parameter_breakdown(
            self.layers,
            hidden_size=self.shape.hidden_size,
            intermediate_size=self.shape.intermediate_size,
            vocab_size=self.vocab_size,
            tie_embeddings=self.shape.tie_embeddings,
        )

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(self.parts.values())


def stream_bytes_per_token(hidden_size: int, element: int, compiled: bool) -> int:
    """Kept of a block's residual stream: its input in float32, the normalised inputs of mixer and feed-forward part.

    Compiled also the mixer's output, from which the stream between both is computed again; eager that stream itself
    and both norms in float32.
    """
    if compiled:
        return (FLOAT32 + 3 * element) * hidden_size + 2 * FLOAT32
    return (4 * FLOAT32 + 2 * element) * hidden_size + 2 * FLOAT32


def projected_columns(layer: LayerSpec) -> int:
    """Columns of the joint product of a layer's input projections, filled up to the alignment."""
    columns = 0
    for group in layer:
        columns += group.width * (1 + group.gate) + 2 * group.key_value_heads * group.head_dim
        # Write strength of each head, and decay where there is one.
        columns += group.is_recurrent * (1 + group.decays) * group.heads
    return -(-columns // ALIGNMENT) * ALIGNMENT


def group_bytes_per_token(group: HeadGroup, length: int, element: int, compiled: bool) -> int:
    """Kept of a head group behind its projections.

    Attention: q and k rotated, the output, a float32 of each head for softmax and for each norm. A sliding window in
    blocks: q, and keys and values twice, since blocks overlap; three widths more are calibrated, not counted. Gated
    DeltaNet: q and k normalised, v, the output, two tensors of the same size and the states between chunks, a row of
    the system of a chunk, five float32 a head. Eager: float32 copies in norms that no rotation follows, SiLU of the
    gate and the gated output.
    """
    width, keys = group.width, group.key_value_heads * group.head_dim
    if group.is_recurrent:
        states = width * group.head_dim // DELTA_RULE_CHUNK
        kept = element * (6 * width + states + DELTA_RULE_CHUNK * group.heads) + 5 * FLOAT32 * group.heads
        norms = 2 * FLOAT32 * width
    else:
        blocks = group.kind == SLIDING_WINDOW and length > 2 * (group.window or length)
        kept = element * (5 * width + 4 * keys if blocks else 2 * width + keys) + 3 * FLOAT32 * group.heads
        alone = group.qk_norm and group.rope_theta is None
        norms = 2 * FLOAT32 * ((width + keys) * alone + width * group.output_norm)
    return kept if compiled else kept + norms + element * (1 + 2 * group.gate) * width


def activation_bytes_per_token(
    layers: Sequence[LayerSpec], shape: ModelShape, length: int, element: int, compiled: bool
) -> int:
    """Kept of all blocks between forward and backward; SwiGLU keeps gate and up."""
    each = stream_bytes_per_token(shape.hidden_size, element, compiled) + 2 * element * shape.intermediate_size
    mixers = sum(
        element * projected_columns(layer)
        + sum(group_bytes_per_token(group, length, element, compiled) for group in layer)
        for layer in layers
    )
    return len(layers) * each + mixers


def optimizer_bytes(optimizer: OptimizerConfig, blocks: int, others: int) -> int:
    """States of AdamW (two moments), or of Muon (one) on the ``blocks``' parameters with AdamW on the ``others``."""
    moments = 1 if optimizer.kind == "muon_adamw" else 2
    return FLOAT32 * (moments * blocks + 2 * others)


def peak_bytes(training: Training, micro_batch_tokens: int | None = None) -> int:
    """Peak of a training on one card; ``micro_batch_tokens`` in place of its own.

    Weights and moments in float32 stand all the time; gradients too where a step has several micro-batches, and the
    buckets of data parallelism, and what was measured beside all that (:attr:`Training.bytes_beside`). On top comes the larger of three moments: the loss, when all activations are there,
    with logits of two chunks and the gradients of its input and weight; the backward pass of the last feed-forward
    part; and the update, with all gradients and, for Muon, copies of the matrices.

    Weights, moments and gradients may be spread over processes. Embeddings are whole then during both passes, and so
    are some blocks with their gradients: the present one, the next one and the one whose gradients are under way.
    """
    shape, config = training.shape, training.training
    tokens = training.micro_batch_tokens if micro_batch_tokens is None else micro_batch_tokens
    layers, hidden, vocabulary = training.layers, shape.hidden_size, training.vocab_size
    element = 2 if config.precision == "bfloat16" else FLOAT32
    parts = training.parts
    parameters, blocks = sum(parts.values()), parts["mixers"] + parts["mlp"]
    weights = FLOAT32 * parameters // training.shards
    moments = optimizer_bytes(config.optimizer, blocks, parameters - blocks) // training.shards
    standing = weights + moments + WORKSPACE_BYTES + training.bytes_beside * parameters // training.shards
    if training.shards > 1:
        standing += 2 * FLOAT32 * (parameters - blocks) + WHOLE_BLOCKS * 2 * FLOAT32 * blocks // len(layers)
    elif training.processes > 1:
        standing += weights
    several = tokens < training.step_tokens
    activations = tokens * activation_bytes_per_token(layers, shape, training.length, element, training.compiled)
    # Stacked and rounded weights are kept for the backward pass; the stream behind the last block, and its norm.
    activations += element * blocks + 2 * FLOAT32 * tokens * hidden
    output = vocabulary * hidden
    rows = min(LOSS_ROWS, tokens)
    chunks = 1 if tokens <= rows else 2
    loss = 2 * element * tokens * hidden + (element + chunks * FLOAT32) * output + chunks * element * rows * vocabulary
    backward = element * tokens * (hidden + 4 * shape.intermediate_size) + 2 * FLOAT32 * output
    forward_and_backward = (weights if several else 0) + activations + max(loss, backward)
    update = weights + (3 * element * blocks if config.optimizer.kind == "muon_adamw" else 0)
    return standing + max(forward_and_backward, update)


def largest_micro_batch(training: Training, available: int) -> int | None:
    """Largest ``training.micro_batch_tokens`` below the present one whose peak fits into ``available`` bytes, or None.

    Only whole sequences that divide a process's share of a step count.
    """
    sequences = training.step_tokens // training.length
    for rows in range(training.micro_batch_tokens // training.length - 1, 0, -1):
        if sequences % rows == 0 and peak_bytes(training, rows * training.length) <= available:
            return rows * training.length
    return None


def refusal(what: str, training: Training, key: str, card: Card) -> str | None:
    """Why ``training`` cannot run on ``card``, in one sentence; None if it can.

    ``what`` names the model, and ``key`` is the full name of micro_batch_tokens in the configuration.
    """
    needed = peak_bytes(training)
    if needed <= card.free:
        return None
    fitting = largest_micro_batch(training, card.free)
    if fitting is not None:
        mend = f"lower {key} from {training.micro_batch_tokens} to {fitting}, the largest value that fits"
    else:
        mend = f"no value of {key} fits; take a card with more memory free, or a smaller model"
    return (
        f"{what}: this training needs about {needed / GIB:.1f} GiB of GPU memory, and {card.name} has "
        f"{card.total / GIB:.1f} GiB, {max(card.free, 0) / GIB:.1f} GiB of it free; {mend}"
    )


def training_of(settings: Any, vocab_size: int, processes: int = 1) -> Training:
    """The training of parsed settings (:class:`~hwh_core.training.settings.TrainSettings`)."""
    model = settings.model
    return Training(model.architecture, model.shape, model.length, vocab_size, settings.training, processes)
