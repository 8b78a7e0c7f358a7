"""Extraction of the Global Positional Band from per-sample RFIS and RPD maps, with confidence intervals.

Rules 1 to 4 (search range, candidates, position, edge) are in :mod:`hwh_core.gpband.detection`. Here: the value of a
model over its layers (rule 5), bootstrap over samples and jackknife over layers (rule 6). One function measures the
original maps and all resamples, so interval and estimate cannot differ in method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hwh_core import rope
from hwh_core.config import BandConfig
from hwh_core.statistics import percentile_interval, resample_weights

from . import curves
from .detection import EDGE, NONE, PEAK, VERDICTS, Detection, SearchRange, detect, search_range
from .maps import Maps, check_maps

# Groups within this distance of the band are not yet "below the band" (claim C7), and RFIS and RPD agree (C8) up to:
BELOW_BAND_GAP = 2.0
AGREEMENT = 1.0
HALF_HEIGHT = 0.5


@dataclass(frozen=True)
class Measurement:
    """Everything measured on B sets of layer-mean maps; model values [B], layer values [B, L], NaN where undefined."""

    rpd: Detection
    rfis: Detection
    kind: np.ndarray
    peak: np.ndarray
    ratio_peak: np.ndarray
    centroid: np.ndarray
    edge: np.ndarray
    rfis_peak: np.ndarray
    prominence: np.ndarray
    height_over_reference: np.ndarray
    below: np.ndarray
    below_initial: np.ndarray
    layer_below: np.ndarray
    layer_below_initial: np.ndarray
    layer_boundary: np.ndarray
    boundary: np.ndarray
    layer_agreement: np.ndarray
    agreement: np.ndarray
    counted: np.ndarray


def _masked_mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the last axis of the entries under ``mask``; NaN where there are none."""
    number = mask.sum(axis=-1)
    total = np.where(mask, values, 0.0).sum(axis=-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def measure(
    rpd: np.ndarray,
    rfis: np.ndarray,
    rpd_initial: np.ndarray | None,
    rfis_initial: np.ndarray | None,
    null: np.ndarray,
    area: SearchRange,
    settings: BandConfig,
) -> Measurement:
    """Rules 2 to 5 on layer-mean maps [B, L, F]; ``null`` [L, F]."""
    found = detect(rpd, null, rpd_initial, area, settings)
    # The null of RFIS is flat. Where no initial model is known, its prominence alone is the comparison with it.
    flat = np.ones_like(null)
    found_rfis = detect(rfis, flat, np.zeros_like(rfis) if rfis_initial is None else rfis_initial, area, settings)

    is_peak, is_edge = found.kind == PEAK, found.kind == EDGE
    kind = np.where(is_peak.any(axis=-1), PEAK, np.where(is_edge.any(axis=-1), EDGE, NONE))
    counted = (found.kind == kind[:, None]) & (kind != NONE)[:, None]
    weight = np.where(counted, np.nan_to_num(found.prominence), 0.0)

    groups = np.arange(rpd.shape[-1])
    low = groups > (np.nan_to_num(found.position, nan=np.inf) + BELOW_BAND_GAP)[..., None]
    low &= groups < area.rotated

    def below_band(values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Mean below the band over the value at the band: per layer [B, L], and over all counted layers [B]."""
        if values is None:
            return np.full(found.kind.shape, np.nan), np.full(len(kind), np.nan)
        mean_low = _masked_mean(values, low)
        at_band = np.where(found.kind != NONE, curves.take(values, found.index), np.nan)
        whole = _ratio(_masked_mean(mean_low, counted), _masked_mean(at_band, counted))
        return _ratio(mean_low, at_band), whole

    layer_below, below = below_band(rpd)
    layer_below_initial, below_initial = below_band(rpd_initial)
    height = _masked_mean(found.height, counted)
    reference = _masked_mean(found.reference, counted)
    boundary = curves.crossing_below(rpd, np.maximum(found.index, 0), HALF_HEIGHT)
    boundary = np.where(np.isfinite(boundary), boundary, found.position + 1.0)
    boundary = np.where(found.kind != NONE, boundary, np.nan)
    agreement = np.where(
        is_peak, (found_rfis.kind == PEAK) & (np.abs(found_rfis.position - found.position) <= AGREEMENT), np.nan
    )
    rfis_weight = np.where(found_rfis.kind == PEAK, np.nan_to_num(found_rfis.prominence), 0.0)
    return Measurement(
        rpd=found,
        rfis=found_rfis,
        kind=kind,
        peak=curves.weighted_median(found.position, weight),
        ratio_peak=curves.weighted_median(found.ratio_position, weight),
        centroid=curves.weighted_median(found.centroid, weight),
        edge=curves.weighted_median(found.edge, weight),
        rfis_peak=curves.weighted_median(found_rfis.position, rfis_weight),
        prominence=curves.weighted_median(found.prominence, counted.astype(float)),
        height_over_reference=_ratio(height, reference),
        below=below,
        below_initial=below_initial,
        layer_below=layer_below,
        layer_below_initial=layer_below_initial,
        layer_boundary=boundary,
        boundary=curves.weighted_median(boundary, weight),
        layer_agreement=agreement,
        agreement=_masked_mean(np.nan_to_num(agreement), is_peak),
        counted=counted,
    )


def chance_agreement(position: np.ndarray, area: SearchRange) -> float:
    """Share of the search range within one group of each position, averaged: the rate of C8 for blind RFIS peaks."""
    position = position[np.isfinite(position)]
    if len(position) == 0 or area.empty or area.last == area.first:
        return float("nan")
    near = np.minimum(position + AGREEMENT, area.last) - np.maximum(position - AGREEMENT, area.first)
    return float(np.clip(near / (area.last - area.first), 0.0, 1.0).mean())


def jackknife_over_layers(position: np.ndarray, weight: np.ndarray) -> dict[str, float] | None:
    """Range and standard error of the model value with each contributing layer left out; None under 2 layers."""
    keep = np.flatnonzero(weight > 0)
    if len(keep) < 2:
        return None
    weights = np.where(np.eye(len(weight), dtype=bool)[keep], 0.0, weight)
    values = curves.weighted_median(np.broadcast_to(position, weights.shape), weights)
    error = np.sqrt((len(keep) - 1) / len(keep) * ((values - values.mean()) ** 2).sum())
    return {"low": float(values.min()), "high": float(values.max()), "standard_error": float(error)}


@dataclass(frozen=True)
class BandResult:
    """The band of one model at one evaluation length.

    ``point`` are the measurements on the mean maps (B = 1), ``draws`` those on the bootstrap resamples of samples.
    """

    eval_length: int
    area: SearchRange
    maps: Maps
    point: Measurement
    draws: Measurement
    mean_initial: np.ndarray | None
    settings: BandConfig

    @property
    def verdict(self) -> str:
        """ "peak", "edge" (only a shoulder) or "none"."""
        return VERDICTS[int(self.point.kind[0])]

    @property
    def peak(self) -> float:
        """Position of the band in groups; NaN if none."""
        return float(self.point.peak[0])

    def model_draws(self, name: str) -> np.ndarray:
        """Resampled values [B] of a model-level field, NaN where the resample gives another verdict than the maps."""
        return np.where(self.draws.kind == self.point.kind[0], getattr(self.draws, name), np.nan)

    def interval(self, name: str) -> tuple[float, float]:
        """95% percentile interval over samples of a model-level field."""
        return percentile_interval(self.model_draws(name))

    @property
    def same_verdict_rate(self) -> float:
        """Share of the resamples that give the same verdict."""
        return float((self.draws.kind == self.point.kind[0]).mean())


def analyse(maps: Maps, eval_length: int, settings: BandConfig, seed: int) -> BandResult:
    """Extract the band from checked maps; ``eval_length`` in tokens; ``seed`` fixes the bootstrap."""
    area = search_range(maps.inv_freq, eval_length, settings)
    samples, layers, _, groups = maps.shape
    weights = resample_weights(samples, settings.bootstrap_resamples, np.random.default_rng(seed)) * maps.sample_weight
    weights /= weights.sum(axis=1, keepdims=True)
    overall = (maps.sample_weight / maps.sample_weight.sum())[None, :]

    def means(per_sample: np.ndarray | None, weight: np.ndarray) -> np.ndarray | None:
        """Weighted means over samples of head means: [B, L, F]."""
        if per_sample is None:
            return None
        return (weight @ per_sample.reshape(samples, -1)).reshape(len(weight), layers, groups)

    rpd_initial = None if maps.rpd_initial is None else maps.mean_over_heads(maps.rpd_initial)
    rfis_initial = None if maps.rfis_initial is None else maps.mean_over_heads(maps.rfis_initial)

    def measured(weight: np.ndarray) -> Measurement:
        # The initial model is resampled with the same draw: both were probed on the same samples.
        parts = (maps.layer_rpd, maps.layer_rfis, rpd_initial, rfis_initial)
        return measure(*(means(part, weight) for part in parts), maps.null, area, settings)

    initial = means(rpd_initial, overall)
    return BandResult(
        eval_length=eval_length,
        area=area,
        maps=maps,
        point=measured(overall),
        draws=measured(weights),
        mean_initial=None if initial is None else initial[0],
        settings=settings,
    )


def extract_band(
    rfis: Any,
    rpd: Any,
    inv_freq: Any,
    null: Any,
    rpd_initial: Any,
    rfis_initial: Any,
    eval_length: int,
    settings: BandConfig,
    seed: int,
    *,
    sample_weight: Any = None,
    layer_index: Any = None,
) -> BandResult:
    """Extract the band from per-sample maps.

    Args:
        rfis, rpd: [n, L, H, F], divergences over ln 2.
        inv_freq: [F], radians a position, as read from the model.
        null: closed-form g(r), [F] or [L, F].
        rpd_initial, rfis_initial: the same maps of the model at initialisation, or None for both.
        eval_length: probed length in tokens.
        settings: thresholds and number of resamples.
        seed: seed of the bootstrap over samples.

    Raises :class:`BandError` naming the array that is wrong.
    """
    maps = check_maps(
        rfis,
        rpd,
        inv_freq,
        null,
        rfis_initial=rfis_initial,
        rpd_initial=rpd_initial,
        sample_weight=sample_weight,
        layer_index=layer_index,
    )
    return analyse(maps, eval_length, settings, seed)


def period_of(inv_freq: np.ndarray, position: float) -> float:
    """Period in tokens at a sub-group position; NaN stays NaN."""
    return rope.period_at(inv_freq, position) if np.isfinite(position) else float("nan")
