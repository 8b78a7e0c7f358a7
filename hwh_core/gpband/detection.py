"""Finding the band in layer-mean maps: rules 1 to 4 of the extraction, for any number of resamples at once.

1. Search range: groups whose period is at least ``eval_length / search_period_divisor`` (this leaves out the
   high-frequency block of previous-token heads), up to the last but one rotated group.
2. Candidates: local maxima of P/g whose log prominence is at least ``prominence`` nat, where P is at least
   ``relative_height`` of its maximum on the range and at least ``null_height_ratio`` times the same layer of the model
   at initialisation. The highest P represents the layer. Without a candidate the shoulder is taken: the group that
   meets both height conditions with the largest drop of log P over two groups, if that drop exceeds the null's own
   drop there by ``prominence`` nat; it is an ``edge``, not a peak.
3. Position: parabola through log P, offset clipped to half a group; the linear centroid beside it. A shoulder has no
   vertex and keeps its group as position. Since candidates are maxima of P/g while the parabola is of P, the clip binds
   where g is steep (beyond the null's own peak); such a layer is marked ``clipped``, and ``ratio_position``, the
   parabola through log P/g, stands beside it.
4. Lower edge: where P falls below ``edge_fraction`` of its value at the peak.

Without a model at initialisation (published weights) the comparison is with the closed-form null scaled to the layer:
P/g must reach ``null_height_ratio`` times its own median over the search range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwh_core.config import BandConfig

from . import curves

NONE, EDGE, PEAK = 0, 1, 2
VERDICTS = {NONE: "none", EDGE: "edge", PEAK: "peak"}


@dataclass(frozen=True)
class SearchRange:
    """Groups ``first`` to ``last`` (both included) of ``rotated`` groups with a frequency above 0."""

    first: int
    last: int
    rotated: int

    @property
    def empty(self) -> bool:
        """True where no group can be searched (no rotation, or too few groups)."""
        return self.last < self.first

    def mask(self) -> np.ndarray:
        """bool [rotated], True inside the range."""
        groups = np.arange(self.rotated)
        return (groups >= self.first) & (groups <= self.last)


def search_range(inv_freq: np.ndarray, eval_length: int, settings: BandConfig) -> SearchRange:
    """The search range for ``inv_freq`` [F] (radians a position, falling; zeros at the end: no rotation)."""
    rotated = int((inv_freq > 0).sum())
    periods = 2.0 * np.pi / inv_freq[:rotated]
    long_enough = periods >= eval_length / settings.search_period_divisor
    first = int(long_enough.argmax()) if long_enough.any() else rotated
    return SearchRange(first=max(first, 1), last=rotated - 2, rotated=rotated)


@dataclass(frozen=True)
class Detection:
    """What was found in each curve; all arrays have the leading shape of the curves, ``candidates`` one axis more.

    Positions are groups, ``prominence`` nat (for an edge: the drop in excess of the null's), ``height`` and
    ``reference`` the values of the curve and of what it is compared with at ``index``. Where ``kind`` is NONE the
    floats are NaN and ``index`` is -1.
    """

    kind: np.ndarray
    index: np.ndarray
    position: np.ndarray
    clipped: np.ndarray
    ratio_position: np.ndarray
    centroid: np.ndarray
    prominence: np.ndarray
    height: np.ndarray
    reference: np.ndarray
    edge: np.ndarray
    candidates: np.ndarray
    candidate_prominence: np.ndarray


def _nothing(shape: tuple[int, ...]) -> Detection:
    nan = np.full(shape[:-1], np.nan)
    return Detection(
        kind=np.full(shape[:-1], NONE),
        index=np.full(shape[:-1], -1),
        position=nan,
        clipped=np.zeros(shape[:-1], dtype=bool),
        ratio_position=nan,
        centroid=nan,
        prominence=nan,
        height=nan,
        reference=nan,
        edge=nan,
        candidates=np.zeros(shape, dtype=bool),
        candidate_prominence=np.zeros(shape),
    )


def scaled_null(curve: np.ndarray, null: np.ndarray, area: SearchRange) -> np.ndarray:
    """g scaled so that P/g has median 1 over the search range: the reference of a model without initial weights."""
    inside = slice(area.first, area.last + 1)
    scale = np.median(curve[..., inside] / null[..., inside], axis=-1, keepdims=True)
    return scale * null


def detect(
    curve: np.ndarray,
    null: np.ndarray,
    reference: np.ndarray | None,
    area: SearchRange,
    settings: BandConfig,
) -> Detection:
    """Find the band in curves [..., F].

    ``null`` broadcasts against the curves (ones for RFIS, whose null is flat); ``reference`` is the same map of the
    model at initialisation, or None (then :func:`scaled_null` stands in).
    """
    if area.empty:
        return _nothing(curve.shape)
    full_shape = curve.shape
    curve = curve[..., : area.rotated]
    null = np.broadcast_to(null[..., : area.rotated], curve.shape)
    reference = scaled_null(curve, null, area) if reference is None else reference[..., : area.rotated]
    log_curve = curves.log_with_floor(curve)
    log_ratio = log_curve - np.log(null)
    inside = area.mask()
    groups = np.flatnonzero(inside)

    top = curve[..., inside].max(axis=-1, keepdims=True)
    high = inside & (curve > 0) & (curve >= settings.relative_height * top)
    high &= curve >= settings.null_height_ratio * reference
    prominence = np.zeros(curve.shape)
    prominence[..., groups] = curves.prominence(log_ratio, groups)
    candidates = high & curves.is_local_maximum(log_ratio) & (prominence >= settings.prominence)
    peak = np.where(candidates, curve, -1.0).argmax(axis=-1)
    has_peak = candidates.any(axis=-1)

    # Shoulder: log P must fall over two groups, and by more than the null itself falls there.
    drop = np.full(curve.shape, -np.inf)
    drop[..., :-2] = log_curve[..., :-2] - log_curve[..., 2:]
    drop = np.where(high, drop, -np.inf)
    shoulder = drop.argmax(axis=-1)
    excess = curves.take(log_ratio, shoulder) - curves.take(log_ratio, shoulder + 2)
    has_edge = ~has_peak & np.isfinite(curves.take(drop, shoulder)) & (excess >= settings.prominence)

    kind = np.where(has_peak, PEAK, np.where(has_edge, EDGE, NONE))
    found = kind != NONE
    index = np.where(has_peak, peak, shoulder)
    position = np.where(has_peak, curves.parabola_position(log_curve, index), index)
    ratio_position = np.where(has_peak, curves.parabola_position(log_ratio, index), index)

    def only(values: np.ndarray) -> np.ndarray:
        return np.where(found, values, np.nan)

    padded = np.zeros(full_shape, dtype=bool)
    padded[..., : area.rotated] = candidates
    padded_prominence = np.zeros(full_shape)
    padded_prominence[..., : area.rotated] = np.where(candidates, prominence, 0.0)
    return Detection(
        kind=kind,
        index=np.where(found, index, -1),
        position=only(position),
        clipped=has_peak & (np.abs(position - index) >= 0.5),
        ratio_position=only(ratio_position),
        centroid=only(curves.centroid_position(curve, index)),
        prominence=only(np.where(has_peak, curves.take(prominence, index), excess)),
        height=only(curves.take(curve, index)),
        reference=only(curves.take(np.broadcast_to(reference, curve.shape), index)),
        edge=only(curves.crossing_below(curve, index, settings.edge_fraction)),
        candidates=padded,
        candidate_prominence=padded_prominence,
    )
