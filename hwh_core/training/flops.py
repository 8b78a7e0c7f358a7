"""Model FLOPs a token and the share of a card's peak that a training reaches. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from ..architectures import parameter_breakdown
from ..heads import FULL_ATTENTION, HeadGroup, LayerSpec

# Dense bfloat16 FLOP/s, sums in float32, by words of the device's name, from the vendors' data sheets (half of what
# they state with sparsity; of Ada cards their architecture's white paper). The first whose words are all there counts.
PEAK_FLOPS = {
    "GB200": 2500e12,
    "B300": 2250e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "RTX 6000 Ada": 364e12,
    "L40S": 362e12,
    "L40": 181e12,
    "RTX 4090": 165e12,
    "L4": 121e12,
    "RTX A6000": 155e12,
    "A40": 150e12,
    "A10": 125e12,
    "A10G": 70e12,
}


def mixing_flops_per_token(group: HeadGroup, length: int, chunk_size: int = 64) -> float:
    """Forward and backward FLOPs a token of what mixes tokens, beyond the products with parameters.

    Causal attention: 6 w T for width w and length T (12 w times the mean of T / 2 visible keys); a window W < T sees
    W - W^2 / (2 T) keys on average. Gated DeltaNet by its chunked form with chunk C and head size d, forward a token
    and head: five products with C rows or columns (K K^T, Q K^T, two solves' right sides, the output) 10 C d, the
    triangular inverse C^2 / 3, three products with the state 6 d^2; backward twice that.
    """
    if group.is_recurrent:
        d = group.head_dim
        return 3 * group.heads * (10 * chunk_size * d + chunk_size**2 / 3 + 6 * d * d)
    if group.kind == FULL_ATTENTION or group.window is None or group.window >= length:
        visible = length / 2
    else:
        visible = group.window - group.window**2 / (2 * length)
    return 12 * group.width * visible


def model_flops_per_token(
    layers: Sequence[LayerSpec],
    *,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    length: int,
    chunk_size: int = 64,
) -> float:
    """Training FLOPs a token: 6 x (parameters without the input embedding) plus the mixing of tokens.

    The output embedding counts whether or not it is tied, since its product is computed.
    """
    parts = parameter_breakdown(
        layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        tie_embeddings=False,
    )
    weights = sum(parts.values()) - parts["embedding"]
    return 6 * weights + sum(mixing_flops_per_token(group, length, chunk_size) for layer in layers for group in layer)


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a card, or None where it is not known."""
    words = set(device_name.lower().replace("-", " ").split())
    return next((value for name, value in PEAK_FLOPS.items() if words.issuperset(name.lower().split())), None)


def model_flops_utilization(
    flops_per_token: float, tokens_per_second: float, device_name: str | None, devices: int
) -> float | None:
    """Share of the peak of ``devices`` cards, or None on a CPU or an unknown card."""
    peak = None if device_name is None else peak_flops(device_name)
    return None if peak is None else flops_per_token * tokens_per_second / (peak * devices)
