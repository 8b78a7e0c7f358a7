"""Device memory of a probe at its peak, by arithmetic from a model's sizes: weights, and one layer of one sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hwh_kernels.rfis_rpd import CUDA_TILE_ELEMENTS
from hwh_kernels.rfis_rpd_eager import TILE_ELEMENTS

from ..memory_estimate import Card
from .capture import SUMMED_ROWS
from .errors import ProbeError
from .observers import QUERY_ROWS

FLOAT32 = 4
GIB = 2**30
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class ProbeMemory:
    """Bytes of the weights, of the forward pass of one layer, and of measuring it while q, k and v are alive."""

    weights: int
    forward: int
    measuring: int

    @property
    def total(self) -> int:
        """Peak: a layer is either computed or measured, and no other layer's q and k are alive."""
        return self.weights + max(self.forward, self.measuring)

    def __str__(self) -> str:
        return (
            f"about {self.total / GIB:.1f} GiB (weights {self.weights / GIB:.1f}, one layer of one sample "
            f"{(self.total - self.weights) / GIB:.1f})"
        )


def probe_memory(model: Any, length: int, num_queries: int) -> ProbeMemory | None:
    """What probing one sample of ``length`` tokens takes; None where a config does not tell. Also on the meta device.

    The largest part of measuring is the check of a few rows against the sum of single contributions: three arrays
    [heads, frequencies, rows, length] in float32. Logits [heads, queries, length] and keys are in float32 too.
    """
    config = model.config.get_text_config()
    if not all(isinstance(getattr(config, name, None), int) for name in SIZES):
        return None
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    size = next(model.parameters()).element_size()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    stream = length * config.hidden_size * size
    queries, keys = length * heads * head_dim, length * kv_heads * head_dim
    # Cosines and sines, the mean attention of every layer that QRscore keeps of both prompts, tokens and positions.
    kept = 2 * length * (FLOAT32 * (head_dim + config.num_hidden_layers * heads) + 8)
    # The residual and the normed stream; k before rotation; q, k and v; the mask, and its form that is added.
    alive = kept + 2 * stream + size * (queries + 3 * keys) + length * length * (1 + size)
    # Rotation or QK-norm in float32, or the output of attention; a soft cap repeats keys and values and holds logits.
    attention = 3 * FLOAT32 * queries
    softcapped = getattr(config, "attn_logit_softcapping", None) is not None
    if softcapped:
        attention += 2 * size * queries + (FLOAT32 + 3 * size) * heads * QUERY_ROWS * length
    feed_forward = kept + 4 * stream + 3 * size * length * config.intermediate_size
    # Keys in float32 are repeated for all heads, here and there once more, and rotated.
    logits = heads * num_queries * length
    rows = 3 * heads * (head_dim // 2) * SUMMED_ROWS * length
    # RFIS and RPD without Triton: 4 numbers for each dimension of a key, three times over, and tiles of one head.
    largest = TILE_ELEMENTS if model.device.type == "cpu" else CUDA_TILE_ELEMENTS
    tile = min(largest, head_dim * num_queries * length)
    factors = 12 * keys + 2 * logits + (10 if softcapped else 5) * tile
    measuring = FLOAT32 * (keys + max(3 * queries + logits + rows, 2 * queries + 6 * logits, factors))
    return ProbeMemory(weights, max(alive + attention, feed_forward), alive + measuring)


def require_memory(model: Any, length: int, num_queries: int, card: Card | None) -> None:
    """Raise :class:`ProbeError` where a probe does not fit on ``card``; None: a CPU."""
    need = probe_memory(model, length, num_queries)
    if card is not None and need is not None and need.total > card.free:
        raise ProbeError(
            f"--length: {length} tokens need {need}, {card.name} has {card.free / GIB:.1f} GiB free; lower it, or give "
            "--dtype bfloat16"
        )
