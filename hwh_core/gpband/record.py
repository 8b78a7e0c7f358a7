"""What is written to band.json: one model, its predictions, and the band at every evaluation length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwh_core import rope
from hwh_core.config import BandConfig
from hwh_core.statistics import percentile_interval

from . import curves
from .detection import PEAK, VERDICTS
from .errors import BandError
from .extraction import BandResult, Measurement, analyse, chance_agreement, jackknife_over_layers, period_of
from .maps import Maps


@dataclass(frozen=True)
class BandModel:
    """What the predictions need to know of a model; ``length`` is its training length in tokens."""

    name: str
    rope_theta: float
    length: int
    qk_norm: bool
    seed: int
    head_dim: int


def number(value: Any) -> float | None:
    """A float for JSON: NaN and infinities become None."""
    value = float(value)
    return value if math.isfinite(value) else None


def interval(pair: tuple[float, float]) -> list[float | None] | None:
    """[low, high] for JSON, or None where there is no interval."""
    return None if math.isnan(pair[0]) else [number(pair[0]), number(pair[1])]


def predictions(inv_freq: np.ndarray, length: int | None) -> dict[str, float | None]:
    """Predicted index by both constants and predicted period (covariance constant) for a training length.

    All None where the length is unknown or nothing is rotated.
    """
    if length is None or (inv_freq > 0).sum() < 2:
        return {"covariance": None, "oka": None, "period": None, "period_oka": None}
    return {
        "covariance": rope.predicted_index_on_grid(inv_freq, length, "covariance"),
        "oka": rope.predicted_index_on_grid(inv_freq, length, "oka"),
        "period": rope.predicted_period(length, "covariance"),
        "period_oka": rope.predicted_period(length, "oka"),
    }


def _layer_candidates(result: BandResult, layer: int) -> list[dict[str, Any]]:
    """All groups of one layer that pass rule 2, highest first."""
    curve = result.maps.sample_weight @ result.maps.layer_rpd[:, layer] / result.maps.sample_weight.sum()
    log_curve = curves.log_with_floor(curve[: max(result.area.rotated, 1)])
    rows = [
        {
            "group": int(r),
            "peak": number(curves.parabola_position(log_curve, np.array(r))),
            "height": number(curve[r]),
            "prominence": number(result.point.rpd.candidate_prominence[0, layer, r]),
        }
        for r in np.flatnonzero(result.point.rpd.candidates[0, layer])
    ]
    return sorted(rows, key=lambda row: -row["height"])


def layer_records(result: BandResult) -> list[dict[str, Any]]:
    """One record a layer; intervals are over the resamples that give this layer the same verdict."""
    point, draws = result.point, result.draws
    rows = []
    for layer, index in enumerate(result.maps.layer_index):
        kind = point.rpd.kind[0, layer]
        same = draws.rpd.kind[:, layer] == kind
        peak = np.where(same, draws.rpd.position[:, layer], np.nan)
        boundary = np.where(same, draws.layer_boundary[:, layer], np.nan)
        height, reference = point.rpd.height[0, layer], point.rpd.reference[0, layer]
        rows.append(
            {
                "layer": int(index),
                "verdict": VERDICTS[int(kind)],
                "peak": number(point.rpd.position[0, layer]),
                "peak_ci": interval(percentile_interval(peak)),
                "clipped": bool(point.rpd.clipped[0, layer]),
                "ratio_peak": number(point.rpd.ratio_position[0, layer]),
                "centroid": number(point.rpd.centroid[0, layer]),
                "edge": number(point.rpd.edge[0, layer]),
                "prominence": number(point.rpd.prominence[0, layer]),
                "height": number(height),
                "height_over_reference": number(height / reference) if reference > 0 else None,
                "boundary": number(point.layer_boundary[0, layer]),
                "boundary_ci": interval(percentile_interval(boundary)),
                "below_band_ratio": number(point.layer_below[0, layer]),
                "below_band_ratio_initial": number(point.layer_below_initial[0, layer]),
                "rfis_verdict": VERDICTS[int(point.rfis.kind[0, layer])],
                "rfis_peak": number(point.rfis.position[0, layer]),
                "rfis_minus_rpd": number(point.rfis.position[0, layer] - point.rpd.position[0, layer]),
                "same_verdict_rate": float(same.mean()),
                "candidates": _layer_candidates(result, layer),
            }
        )
    return rows


def initial_record(result: BandResult) -> dict[str, float | None] | None:
    """The weak peak that the same model shows at initialisation: its place, height and prominence; None if unknown."""
    if result.mean_initial is None or result.area.empty:
        return None
    curve = result.mean_initial.mean(axis=0)[: result.area.rotated]
    null = result.maps.null.mean(axis=0)[: result.area.rotated]
    log_curve, log_null = curves.log_with_floor(curve), np.log(null)
    inside = result.area.mask()

    def top(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(inside, values, -np.inf).argmax())

    index, null_index = top(curve), top(null)
    return {
        "peak": number(curves.parabola_position(log_curve, index)),
        "height": number(curve[index]),
        "prominence": number(curves.prominence(log_curve, index[None])[0]),
        "null_peak": number(curves.parabola_position(log_null, null_index)),
        "null_prominence": number(curves.prominence(log_null, null_index[None])[0]),
    }


def _below_over_initial(measured: Measurement) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(measured.below_initial > 0, measured.below / measured.below_initial, np.nan)


def factor_record(result: BandResult, predicted: dict[str, float | None]) -> dict[str, Any]:
    """The band at one evaluation length; ``predicted`` as of :func:`predictions` for the training length."""
    point = result.point
    inv_freq = result.maps.inv_freq
    peaks = point.rpd.position[0][point.counted[0]]
    ci = result.interval("peak")
    period_ci = tuple(period_of(inv_freq, end) for end in ci)
    is_peak = point.rpd.kind[0] == PEAK
    same = result.draws.kind == point.kind[0]
    below_over = np.where(same, _below_over_initial(result.draws), np.nan)
    residual = {
        name: None
        if predicted[name] is None or not math.isfinite(result.peak)
        else {
            "value": result.peak - predicted[name],
            "ci": interval((ci[0] - predicted[name], ci[1] - predicted[name])),
        }
        for name in ("covariance", "oka")
    }
    period = period_of(inv_freq, result.peak)
    return {
        "eval_length": result.eval_length,
        "verdict": result.verdict,
        "same_verdict_rate": result.same_verdict_rate,
        "num_samples": result.maps.shape[0],
        "search_range": None if result.area.empty else [result.area.first, result.area.last],
        "no_initial_model": result.mean_initial is None,
        "peak": number(result.peak),
        "peak_ci": interval(ci),
        "jackknife": jackknife_over_layers(
            point.rpd.position[0], np.where(point.counted[0], np.nan_to_num(point.rpd.prominence[0]), 0.0)
        ),
        "ratio_peak": number(point.ratio_peak[0]),
        "ratio_peak_ci": interval(result.interval("ratio_peak")),
        "centroid": number(point.centroid[0]),
        "centroid_ci": interval(result.interval("centroid")),
        "rfis_peak": number(point.rfis_peak[0]),
        "rfis_peak_ci": interval(percentile_interval(result.draws.rfis_peak)),
        "edge": number(point.edge[0]),
        "edge_ci": interval(result.interval("edge")),
        "boundary": number(point.boundary[0]),
        "period": number(period),
        "period_ci": interval(period_ci),
        "period_ratio": number(period / predicted["period"]) if predicted["period"] else None,
        "residual": residual,
        "prominence": number(point.prominence[0]),
        "height_over_initial": None if result.mean_initial is None else number(point.height_over_reference[0]),
        "height_over_initial_ci": None
        if result.mean_initial is None
        else interval(result.interval("height_over_reference")),
        "height_over_scaled_null": number(point.height_over_reference[0]) if result.mean_initial is None else None,
        "below_band_ratio": number(point.below[0]),
        "below_band_ratio_ci": interval(result.interval("below")),
        "below_band_ratio_initial": number(point.below_initial[0]),
        "below_band_over_initial": number(_below_over_initial(point)[0]),
        "below_band_over_initial_ci": interval(percentile_interval(below_over)),
        "num_layers": len(is_peak),
        "num_layers_with_peak": int(is_peak.sum()),
        "layer_iqr": number(np.subtract(*np.percentile(peaks, [75, 25]))) if len(peaks) >= 2 else None,
        "c8_rate": number(point.agreement[0]),
        "c8_rate_ci": interval(percentile_interval(result.draws.agreement)),
        "c8_chance": number(chance_agreement(point.rpd.position[0][is_peak], result.area)),
        "initial": initial_record(result),
        "layers": layer_records(result),
    }


def drift_record(results: dict[float, BandResult], length: int) -> dict[str, Any] | None:
    """How far the peak moves when the model is probed at other lengths (claim C10); None without factor 1.

    ``artifact_shift`` is how far the null of an untrained model moves. Resamples of different lengths are independent:
    they are different token sequences.
    """
    if 1.0 not in results:
        return None
    base = results[1.0]
    shifts, largest = {}, []
    for factor, result in sorted(results.items()):
        if factor == 1.0:
            continue
        draws = result.model_draws("peak") - base.model_draws("peak")
        same_kind = result.verdict == base.verdict
        value = result.peak - base.peak if same_kind else math.nan
        inv_freq = base.maps.inv_freq
        expected = math.nan
        if not base.area.empty:
            expected = rope.predicted_index_on_grid(inv_freq, length * factor) - rope.predicted_index_on_grid(
                inv_freq, length
            )
        shifts[f"{factor:g}"] = {
            "shift": number(value),
            "ci": interval(percentile_interval(draws)) if math.isfinite(value) else None,
            "artifact_shift": number(expected),
            "verdict": result.verdict,
        }
        largest.append((abs(value), np.abs(draws)))
    known = bool(largest) and all(math.isfinite(value) for value, _ in largest)
    return {
        "shifts": shifts,
        "max_abs_shift": max(value for value, _ in largest) if known else None,
        "max_abs_shift_ci": interval(percentile_interval(np.max([draws for _, draws in largest], axis=0)))
        if known
        else None,
    }


def band_record(
    model: BandModel, probes: dict[float, tuple[Maps, int]], settings: BandConfig, seed: int
) -> dict[str, Any]:
    """The content of band.json: ``probes`` maps each evaluation length factor to its maps and length in tokens.

    Each length gets its own bootstrap seed, derived from ``seed``. Raises :class:`BandError` if frequencies differ.
    """
    if not probes:
        raise BandError("probes: none was given; at least one probe_x<factor>.npz is needed")
    first = next(iter(probes.values()))[0]
    results = {}
    for factor, (maps, eval_length) in sorted(probes.items()):
        if maps.inv_freq.shape != first.inv_freq.shape or not np.allclose(maps.inv_freq, first.inv_freq, rtol=1e-6):
            raise BandError(
                f"probe x{factor:g}: inv_freq differs from that of the other probes of model {model.name!r}"
            )
        own_seed = int(np.random.SeedSequence([seed, round(1000 * factor)]).generate_state(1)[0])
        results[factor] = analyse(maps, eval_length, settings, own_seed)
    predicted = predictions(first.inv_freq, model.length)
    return {
        "model": model.name,
        "seed": model.seed,
        "rope_theta": model.rope_theta,
        "length": model.length,
        "qk_norm": model.qk_norm,
        "head_dim": model.head_dim,
        "predicted": predicted,
        "factors": {f"{factor:g}": factor_record(result, predicted) for factor, result in results.items()},
        "drift": drift_record(results, model.length),
    }
