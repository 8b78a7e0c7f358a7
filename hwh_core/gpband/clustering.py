"""Several bands in one model: one-dimensional clustering of layer peaks (pretrained models, rule 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwh_core.statistics import percentile_interval

from . import curves
from .detection import PEAK, detect
from .extraction import BandResult
from .record import interval, number


def cluster_positions(positions: np.ndarray, layers: np.ndarray, gap: float, minimum_layers: int) -> list[np.ndarray]:
    """Indices into ``positions`` of each cluster, from the lowest position on.

    Sorted positions are split where neighbours lie more than ``gap`` groups apart; a cluster must hold at least
    ``minimum_layers`` different ``layers``.
    """
    order = np.argsort(positions, kind="stable")
    breaks = np.flatnonzero(np.diff(positions[order]) > gap) + 1
    return [part for part in np.split(order, breaks) if len(set(layers[part].tolist())) >= minimum_layers]


def _centre(positions: np.ndarray, weights: np.ndarray) -> float:
    return float(curves.weighted_median(positions, weights))


def _clusters(positions: np.ndarray, weights: np.ndarray, layers: np.ndarray, result: BandResult) -> list[np.ndarray]:
    settings = result.settings
    keep = np.flatnonzero(np.isfinite(positions) & (weights > 0))
    parts = cluster_positions(positions[keep], layers[keep], settings.cluster_gap, settings.cluster_min_layers)
    return [keep[part] for part in parts]


def band_clusters(result: BandResult) -> dict[str, Any]:
    """Clusters of the layers' representative peaks, with intervals over samples.

    ``clusters``: rows {centre, centre_ci (members fixed), low, high, num_layers, layers}; ``num_clusters_ci`` and
    ``largest_gap`` (between neighbouring centres, None under two clusters) come from clustering every resample anew.
    """
    layers = result.maps.layer_index
    point, draws = result.point.rpd, result.draws.rpd

    def only_peaks(found: Any) -> tuple[np.ndarray, np.ndarray]:
        is_peak = found.kind == PEAK
        return np.where(is_peak, found.position, np.nan), np.where(is_peak, np.nan_to_num(found.prominence), 0.0)

    positions, weights = only_peaks(point)
    all_positions, all_weights = only_peaks(draws)
    positions, weights = positions[0], weights[0]
    rows, centres = [], []
    for members in _clusters(positions, weights, layers, result):
        member_draws = curves.weighted_median(all_positions[:, members], all_weights[:, members])
        centres.append(_centre(positions[members], weights[members]))
        rows.append(
            {
                "centre": centres[-1],
                "centre_ci": interval(percentile_interval(member_draws)),
                "low": float(positions[members].min()),
                "high": float(positions[members].max()),
                "num_layers": len(members),
                "layers": sorted(int(layer) for layer in layers[members]),
            }
        )
    counts, gaps = [], []
    for drawn, weight in zip(all_positions, all_weights, strict=True):
        found = [_centre(drawn[m], weight[m]) for m in _clusters(drawn, weight, layers, result)]
        counts.append(len(found))
        gaps.append(max(np.diff(found)) if len(found) > 1 else 0.0)
    return {
        "clusters": rows,
        "num_clusters_ci": interval(percentile_interval(np.array(counts, dtype=float))),
        "largest_gap": number(max(np.diff(centres))) if len(centres) > 1 else None,
        "largest_gap_ci": interval(percentile_interval(np.array(gaps))),
    }


def all_candidate_clusters(result: BandResult) -> list[dict[str, Any]]:
    """Clusters when every candidate of a layer counts, not only the highest: rows {centre, num_layers}."""
    point = result.point.rpd
    if result.area.empty:
        return []
    layer, group = np.nonzero(point.candidates[0])
    mean = result.maps.sample_weight @ result.maps.layer_rpd.reshape(result.maps.shape[0], -1)
    mean = mean.reshape(result.maps.layer_rpd.shape[1:])[:, : result.area.rotated]
    positions = curves.parabola_position(curves.log_with_floor(mean)[layer], group)
    weights = point.candidate_prominence[0, layer, group]
    layers = result.maps.layer_index[layer]
    return [
        {"centre": _centre(positions[m], weights[m]), "num_layers": len(set(layers[m].tolist()))}
        for m in _clusters(positions, weights, layers, result)
    ]


def layer_mean_peaks(result: BandResult) -> list[dict[str, float | None]]:
    """Peaks of the map averaged over all layers (Fig 9), highest first: prominence over the null and height only."""
    if result.area.empty:
        return []
    weight = result.maps.sample_weight / result.maps.sample_weight.sum()
    curve = np.tensordot(weight, result.maps.layer_rpd, axes=1).mean(axis=0)
    found = detect(curve[None], result.maps.null.mean(axis=0), np.zeros((1, len(curve))), result.area, result.settings)
    log_curve = curves.log_with_floor(curve[: result.area.rotated])
    rows = [
        {
            "peak": number(curves.parabola_position(log_curve, r)),
            "height": number(curve[r]),
            "prominence": number(found.candidate_prominence[0, r]),
        }
        for r in np.flatnonzero(found.candidates[0])
    ]
    return sorted(rows, key=lambda row: -row["height"])


def layers_by_prominence_only(result: BandResult) -> int:
    """How many layers have a peak when neither an initial model nor the scaled null is asked for its height."""
    maps = result.maps
    mean = np.tensordot(maps.sample_weight / maps.sample_weight.sum(), maps.layer_rpd, axes=1)
    found = detect(mean[None], maps.null, np.zeros_like(mean[None]), result.area, result.settings)
    return int((found.kind == PEAK).sum())
