"""Claims N1 to N7: arithmetic of the predicted band, widths of HwH-std, and properties of RFIS and RPD.

All are computed when the ledger is written. N7 uses a small NumPy implementation of its own (float64 and float32,
softmax form) on random heads, so it does not rest on the kernels that it is meant to check.
"""

from __future__ import annotations

import math

import numpy as np

from ..architectures import architecture, full_attention_fraction
from ..rope import X_STAR_COVARIANCE, inverse_frequencies, period_at, predicted_index, predicted_period
from .claim_model import Claim, Outcome, Part, from_parts
from .intervals import exact, verdict
from .results import Results
from .texts import theta_text

ROPE = "hwh_core/rope.py"
LAYERS = "hwh_core/architectures.py"


def _part(label: str, value: float, expected: float, tolerance: float) -> Part:
    interval = exact(value)
    return Part(label, interval, verdict(interval, expected - tolerance, expected + tolerance, trained=False))


def n1(results: Results) -> Outcome:
    """Predicted indices of the three controlled models."""
    wanted = {(64, 1e4, 2048): 21.27, (64, 1e6, 2048): 14.18, (64, 1e4, 4096): 23.68}
    parts = [_part(f"{theta_text(k[1])}, L={k[2]}", predicted_index(*k), value, 0.005) for k, value in wanted.items()]
    return from_parts(parts, evidence=ROPE)


def n2(results: Results) -> Outcome:
    """Predicted periods, and that the period at the predicted index does not depend on the base."""
    parts = [
        _part(f"L={length}", predicted_period(length), value, 0.5) for length, value in ((2048, 2864), (4096, 5727))
    ]
    for theta in (1e4, 1e6):
        at_index = period_at(inverse_frequencies(64, theta), predicted_index(64, theta, 2048))
        parts.append(_part(f"T(r*) at {theta_text(theta)}, L=2048", at_index, 2864, 0.5))
    return from_parts(parts, evidence=ROPE)


def n3(results: Results) -> Outcome:
    """Period of group 24."""
    return from_parts([_part("T(24)", period_at(inverse_frequencies(64, 1e4), 24), 6283, 0.5)], evidence=ROPE)


def n4(results: Results) -> Outcome:
    """Predicted index of Gemma-7B."""
    return from_parts([_part("r*(256, 1e4, 8192)", predicted_index(256, 1e4, 8192), 104.35, 0.01)], evidence=ROPE)


def n5(results: Results) -> Outcome:
    """Shift of the predicted index when the training length doubles."""
    parts = []
    for theta, stated in ((1e4, 2.408), (1e6, 1.605)):
        shift = predicted_index(64, theta, 4096) - predicted_index(64, theta, 2048)
        parts.append(_part(f"closed form, {theta_text(theta)}", shift, 32 * math.log(2) / math.log(theta), 1e-9))
        parts.append(_part(theta_text(theta), shift, stated, 5e-4))
    return from_parts(parts, evidence=ROPE)


def n6(results: Results) -> Outcome:
    """Full-attention share of HwH-std at 24 layers, its ratio, and the largest share in one layer."""
    layers = architecture(
        "hwh_std", num_layers=24, hidden_size=1024, attention_head_dim=64, gdn_head_dim=128, qk_norm=True, gate=True,
        conv_size=4, rope_theta=1e4, attention_output_norm=False,
    )  # fmt: skip
    share = full_attention_fraction(layers)
    largest = max(full_attention_fraction([layer]) for layer in layers)
    parts = [
        _part("share of Q/K/V dimensions", share, 17 / 96, 1e-12),
        _part("LA per FA dimension", (1 - share) / share, 79 / 17, 1e-9),
        _part("largest share in a layer", largest, 0.25, 1e-12),
    ]
    ratio = exact((1 - share) / share)
    parts.append(Part("LA per FA above 3", ratio, verdict(ratio, 3.0, trained=False)))
    return from_parts(parts, evidence=LAYERS, note="share 0.1771 = 17/96, FA:LA = 1:4.65")


# --------------------------------------------------------------------------- N7


def _contributions(dtype: type, seed: int = 0, queries: int = 16, keys: int = 96, groups: int = 16) -> tuple:
    """Random head: contributions [Q, T, F] with RoPE, without, their logits from whole vectors [Q, T], visibility."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((queries, 2, groups)).astype(dtype)
    k = rng.standard_normal((keys, 2, groups)).astype(dtype)
    positions, at = np.arange(keys), np.arange(keys - queries, keys)
    scale = dtype(1 / math.sqrt(2 * groups))
    angle = (positions[None, :] - at[:, None])[..., None] * inverse_frequencies(2 * groups, 1e4)
    cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
    same = q[:, None, 0] * k[None, :, 0] + q[:, None, 1] * k[None, :, 1]
    cross = q[:, None, 1] * k[None, :, 0] - q[:, None, 0] * k[None, :, 1]
    rope = scale * (cos * same + sin * cross)

    def rotate(x: np.ndarray, where: np.ndarray) -> np.ndarray:
        phase = where[:, None] * inverse_frequencies(2 * groups, 1e4)
        c, s = np.cos(phase), np.sin(phase)
        return np.concatenate([x[:, 0] * c - x[:, 1] * s, x[:, 0] * s + x[:, 1] * c], axis=-1)

    logits = scale * (rotate(q, at) @ rotate(k, positions).T)
    return rope, scale * same, logits, positions[None, :] <= at[:, None]


def jensen_shannon(z: np.ndarray, changed: np.ndarray, visible: np.ndarray, base: float = math.e) -> np.ndarray:
    """JS(softmax z, softmax changed) / JS's largest value, per query [Q], with logarithms to ``base``."""

    def softmax(x: np.ndarray) -> np.ndarray:
        x = np.where(visible, x, -np.inf)
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    p, q = softmax(z), softmax(changed)
    middle = (p + q) / 2
    unit = math.log(base)

    def divergence(a: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(a > 0, a * np.log(a / middle) / unit, 0.0)
        return terms.sum(axis=-1)

    return (divergence(p) + divergence(q)) / 2 / (math.log(2) / unit)


def measure(dtype: type, base: float = math.e) -> tuple[np.ndarray, np.ndarray]:
    """RFIS and RPD [Q, F] of the random head in softmax form."""
    rope, plain, _, visible = _contributions(dtype)
    z = rope.sum(axis=-1)
    groups = range(rope.shape[-1])
    rfis = np.stack([jensen_shannon(z, z - rope[..., r], visible, base) for r in groups], axis=-1)
    rpd = np.stack([jensen_shannon(z, z - rope[..., r] + plain[..., r], visible, base) for r in groups], axis=-1)
    return rfis, rpd


def n7(results: Results) -> Outcome:
    """Bounds, sum of contributions, log base, invariances and single precision of the two readouts."""
    rope, _, logits, visible = _contributions(np.float64)
    z = rope.sum(axis=-1)
    rfis, rpd = measure(np.float64)
    both = np.concatenate([rfis, rpd])
    single = np.concatenate(measure(np.float32))
    other_base = np.concatenate(measure(np.float64, base=2.0))
    row_constant = jensen_shannon(z, z - rope[..., 3] + 7.0, visible)
    extreme = jensen_shannon(np.where(np.arange(96) == 0, 30.0, 0.0) * np.ones((16, 1)), z, visible)
    checks = {
        "smallest value >= 0": (min(0.0, float(both.min())), 1e-12),
        "excess over 1": (max(0.0, float(max(both.max(), extreme.max())) - 1.0), 1e-12),
        "sum of contributions minus logits": (float(np.abs(z - logits).max()), 1e-10),
        "change with the log base": (float(np.abs(both - other_base).max()), 1e-12),
        "value of no change": (float(np.abs(jensen_shannon(z, z, visible)).max()), 1e-12),
        "change with a row constant": (float(np.abs(row_constant - rfis[:, 3]).max()), 1e-12),
        "float32 minus float64": (float(np.abs(single - both).max()), 1e-6),
    }
    parts = [_part(label, value, 0.0, tolerance) for label, (value, tolerance) in checks.items()]
    note = "independent NumPy implementation on random heads, run with the ledger; the kernels have tests of their own"
    return from_parts(parts, evidence="hwh_core/reporting/claims_numeric.py", note=note)


def _claim(number: int, statement: str, paper: str | None, tolerance: str, metric: str, evaluate) -> Claim:
    return Claim(f"N{number}", statement, paper, tolerance, metric, "N", "none", evaluate)


CLAIMS = [
    _claim(1, "Predicted band index r*(64, 1e4, 2048)=21.27, (64, 1e6, 2048)=14.18, (64, 1e4, 4096)=23.68",
           "21.27 / 14.18 / 23.68", "±0.005", "predicted index (frequency group)", n1),
    _claim(2, f"Predicted period T*=2πL/x* (x*={X_STAR_COVARIANCE:.4f}) is 2864 / 5727 tokens, independent of θ",
           "2864 / 5727", "±0.5 token", "period (tokens)", n2),
    _claim(3, "Period of frequency group 24 at θ=1e4, d_h=64 is 6283 tokens", "6283", "±0.5 token",
           "period (tokens)", n3),
    _claim(4, "Gemma-7B: predicted index r*(256, 1e4, 8192)=104.35", "near 104", "±0.01",
           "predicted index (frequency group)", n4),
    _claim(5, "Doubling L moves r* by (d_h/2) ln2/ln θ: 2.408 (1e4), 1.605 (1e6)", None, "exact",
           "shift of the predicted index (groups)", n5),
    _claim(6, "HwH-std at 24 layers: full-attention share 0.1771 of Q/K/V dimensions (1:4.65 < 1:3), <= 1/4 a layer",
           "below 1:3; at most one quarter of a layer", "exact", "share of Q/K/V dimensions", n6),
    _claim(7, "RFIS and RPD lie in [0, 1), do not depend on the log base; contributions sum to the logits",
           "bounded in [0, 1]; unchanged by the log base", "1e-6 in float32, 1e-10 in float64",
           "largest deviation", n7),
]  # fmt: skip
