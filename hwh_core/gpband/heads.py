"""Classes of attention heads by where their RFIS lies relative to the band of their layer.

Per layer the boundary b is the half-height point on the low-frequency side of its band (the band's position + 1 where
the map never falls to half). With S_ret = sum_{r > b} RFIS / sum_r RFIS a head is ``retrieval`` if S_ret >= 0.5 and
``positional`` otherwise; ``mixed`` if the bootstrap interval of S_ret crosses 0.5. A layer without a band takes the
model's boundary (prominence-weighted median over layers); without any band the heads are ``unclassified``.

The bootstrap draws samples; the boundary stays where the original maps put it, its own interval is in the layer
records. Maps are averaged over samples before the ratio is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hwh_core.statistics import percentile_interval, resample_weights

from .detection import NONE, VERDICTS
from .errors import BandError
from .extraction import BandResult
from .maps import Maps
from .record import interval, number

RETRIEVAL, POSITIONAL, MIXED, UNCLASSIFIED = "retrieval", "positional", "mixed", "unclassified"
CLASSES = (RETRIEVAL, POSITIONAL, MIXED, UNCLASSIFIED)
THRESHOLD = 0.5


@dataclass(frozen=True)
class HeadClasses:
    """Arrays [L, H] (draws [B, L, H]); ``boundary`` and ``boundary_source`` [L]. Shares and ratios have no unit."""

    layer_index: np.ndarray
    boundary: np.ndarray
    boundary_source: list[str]
    s_ret: np.ndarray
    s_ret_draws: np.ndarray
    s_ret_low: np.ndarray
    s_ret_high: np.ndarray
    d_ratio: np.ndarray
    rfis_total: np.ndarray
    rpd_total: np.ndarray
    head_class: np.ndarray


def layer_boundaries(result: BandResult) -> tuple[np.ndarray, list[str]]:
    """Boundary of every layer [L] in groups, and where it comes from: "peak", "edge", "model" or "none" (NaN)."""
    own, kind = result.point.layer_boundary[0], result.point.rpd.kind[0]
    shared = float(result.point.boundary[0])
    boundary = np.where(kind != NONE, own, shared)
    rest = "model" if np.isfinite(shared) else "none"
    return boundary, [VERDICTS[int(k)] if k != NONE else rest for k in kind]


def _divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def classify_heads(
    maps: Maps, boundary: np.ndarray, boundary_source: list[str], *, resamples: int, seed: int
) -> HeadClasses:
    """Classify all heads of ``maps`` given one ``boundary`` a layer [L] (NaN: unclassified)."""
    samples, layers, _, groups = maps.shape
    if not maps.present.all():
        layer = int(maps.layer_index[np.flatnonzero(~maps.present.all(axis=1))[0]])
        raise BandError(
            f"rfis: layer {layer} has fewer heads than others; head classes need the same heads in all layers"
        )
    boundary = np.asarray(boundary, dtype=np.float64)
    if boundary.shape != (layers,) or len(boundary_source) != layers:
        raise BandError(f"boundary: expected one value for each of {layers} layers, got shape {boundary.shape}")
    # Unrotated groups have frequency 0, so they lie below any band.
    beyond = np.arange(groups)[None, :] > np.nan_to_num(boundary, nan=np.inf)[:, None]
    low = np.einsum("nlhf,lf->nlh", maps.rfis, beyond.astype(np.float64))
    total = maps.rfis.sum(axis=-1)
    weight = maps.sample_weight / maps.sample_weight.sum()
    mean_low, mean_total = np.tensordot(weight, low, axes=1), np.tensordot(weight, total, axes=1)
    rpd_total = np.tensordot(weight, maps.rpd.sum(axis=-1), axes=1)

    drawn = resample_weights(samples, resamples, np.random.default_rng(seed)) * maps.sample_weight
    drawn /= drawn.sum(axis=1, keepdims=True)
    draws = _divide(np.tensordot(drawn, low, axes=1), np.tensordot(drawn, total, axes=1))
    known = np.isfinite(boundary)[:, None] & (mean_total > 0)
    s_ret = np.where(known, _divide(mean_low, mean_total), np.nan)
    draws = np.where(known, draws, np.nan)
    low_end, high_end = np.full(s_ret.shape, np.nan), np.full(s_ret.shape, np.nan)
    for place in zip(*np.nonzero(known), strict=True):
        low_end[place], high_end[place] = percentile_interval(draws[(slice(None), *place)])
    head_class = np.where(s_ret >= THRESHOLD, RETRIEVAL, POSITIONAL).astype(object)
    head_class[(low_end < THRESHOLD) & (high_end >= THRESHOLD)] = MIXED
    head_class[~known] = UNCLASSIFIED
    return HeadClasses(
        layer_index=maps.layer_index,
        boundary=boundary,
        boundary_source=boundary_source,
        s_ret=s_ret,
        s_ret_draws=draws,
        s_ret_low=low_end,
        s_ret_high=high_end,
        d_ratio=_divide(rpd_total, mean_total),
        rfis_total=mean_total,
        rpd_total=rpd_total,
        head_class=head_class,
    )


def kv_groups(num_heads: int, num_kv_heads: int) -> np.ndarray:
    """Key-value head read by each query head, int [H]: floor(h / (H / G)). Raises BandError if G does not divide H."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise BandError(f"num_kv_heads: {num_kv_heads} does not divide the {num_heads} query heads")
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def gqa_entanglement(classes: HeadClasses, num_kv_heads: int) -> dict[str, Any]:
    """How alike S_ret is among query heads that share keys, against all heads of the layer.

    ``within_group_std``: standard deviation of S_ret inside a key-value group, averaged over groups; ``layer_std``:
    inside a layer; ``within_over_layer``: their ratio (1: sharing keys tells nothing, 0: it decides S_ret). None where
    groups hold one head or no head is classified. Intervals over samples.
    """
    heads = classes.s_ret.shape[1]
    size = heads // num_kv_heads
    known = np.isfinite(classes.s_ret).all(axis=1)
    record: dict[str, Any] = {"num_kv_heads": num_kv_heads, "heads_per_group": size}
    names = ("within_group_std", "layer_std", "within_over_layer")
    if size < 2 or not known.any():
        return record | dict.fromkeys(names) | {f"{name}_ci": None for name in names}

    def spreads(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values = values[:, known]
        grouped = values.reshape(*values.shape[:-1], num_kv_heads, size)
        # Unbiased variances, since groups are small; averaged before the root.
        within = np.sqrt(grouped.var(axis=-1, ddof=1).mean(axis=(1, 2)))
        layer = np.sqrt(values.var(axis=-1, ddof=1).mean(axis=1))
        return within, layer, _divide(within, layer)

    point, draws = spreads(classes.s_ret[None]), spreads(classes.s_ret_draws)
    for name, value, drawn in zip(names, point, draws, strict=True):
        record[name] = number(value[0])
        record[f"{name}_ci"] = interval(percentile_interval(drawn))
    return record


def head_rows(
    classes: HeadClasses, num_kv_heads: int, qr: np.ndarray, qr_calibrated: np.ndarray, ld: np.ndarray
) -> list[dict[str, Any]]:
    """Rows of heads.csv; ``qr``, ``qr_calibrated`` and ``ld`` are means over samples, [L, H]."""
    layers, heads = classes.s_ret.shape
    group = kv_groups(heads, num_kv_heads)
    return [
        {
            "layer": int(classes.layer_index[layer]),
            "head": head,
            "kv_group": int(group[head]),
            "s_ret": classes.s_ret[layer, head],
            "s_ret_lo": classes.s_ret_low[layer, head],
            "s_ret_hi": classes.s_ret_high[layer, head],
            "d_ratio": classes.d_ratio[layer, head],
            "boundary": classes.boundary[layer],
            "boundary_source": classes.boundary_source[layer],
            "head_class": classes.head_class[layer, head],
            "qr": qr[layer, head],
            "qr_calibrated": qr_calibrated[layer, head],
            "ld": ld[layer, head],
            "rfis_total": classes.rfis_total[layer, head],
            "rpd_total": classes.rpd_total[layer, head],
        }
        for layer in range(layers)
        for head in range(heads)
    ]
