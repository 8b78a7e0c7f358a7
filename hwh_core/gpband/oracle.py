"""Checks S1 and S2: is a planted band recovered, are planted heads classified? Every case is kept, misses included.

S1 plants one frequency group r0 in all heads of a layer and asks whether the extractor puts the band within half a
group of it. It counts the groups of the search range that turn by at least one radian over the probed length: a slower
group shows hardly any RPD (it falls as the square of the angle) and drowns in the null of the other groups, which is
what "below the band" means. The rate over all groups of the range stands beside it.

S2 plants positional heads at the predicted band and retrieval heads whose content lies beyond it, lets the extractor
find the boundary, and asks whether each gets its class. Mixed and local heads are reported without a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hwh_core import rope
from hwh_core.config import BandConfig

from .extraction import BandResult, analyse
from .heads import POSITIONAL, RETRIEVAL, classify_heads, layer_boundaries
from .record import number
from .synthetic import (
    HeadSizes,
    MapFunction,
    UntrainedLayer,
    Vectors,
    local_head,
    plant,
    positional_head,
    retrieval_head,
    single_group,
    untrained_layer,
)

TOLERANCE = 0.5
MINIMUM_ANGLE = 1.0
BAND_HEADS = 2
AMPLITUDES = (2.0, 6.0)
RETRIEVAL_STRENGTH = 10.0
PLANTED_CLASSES = (POSITIONAL,) * 3 + (RETRIEVAL,) * 3 + ("mixed", "local")


def _estimate_only(settings: BandConfig) -> BandConfig:
    """S1 uses estimates alone: a handful of resamples saves most of the time."""
    return settings.model_copy(update={"bootstrap_resamples": 2})


def _case(result: BandResult, theta: float, seed: int, centre: float) -> dict[str, Any]:
    error = result.peak - centre
    return {
        "rope_theta": theta,
        "seed": seed,
        "planted": centre,
        "angle": float(2 * np.pi * result.eval_length / rope.period_at(result.maps.inv_freq, centre)),
        "verdict": result.verdict,
        "peak": number(result.peak),
        "error": number(error),
        "ratio_peak": number(result.point.ratio_peak[0]),
        "recovered": bool(result.verdict == "peak" and abs(error) <= TOLERANCE),
    }


def _rates(cases: Iterable[dict[str, Any]]) -> dict[str, Any]:
    cases = list(cases)
    errors = [abs(case["error"]) for case in cases if case["error"] is not None]
    return {
        "n": len(cases),
        "recovered": sum(case["recovered"] for case in cases),
        "rate": sum(case["recovered"] for case in cases) / len(cases) if cases else None,
        "max_abs_error": max(errors, default=None),
    }


def recover_single_groups(
    layer: UntrainedLayer, theta: float, settings: BandConfig, measure: MapFunction
) -> list[dict[str, Any]]:
    """S1 on one noise layer: every group of the search range in turn, with random amplitude and phases."""
    cases = []
    settings = _estimate_only(settings)
    empty = analyse(plant(layer, lambda _: _no_structure(layer), measure), layer.sizes.length, settings, layer.seed)
    for group in range(empty.area.first, empty.area.last + 1):
        draw = np.random.default_rng([layer.seed, group])
        amplitude, phases = draw.uniform(*AMPLITUDES), draw.uniform(0, 2 * np.pi, len(layer.noise[0]))
        heads = [single_group(layer.sizes, group, amplitude, phase) for phase in phases]
        maps = plant(layer, lambda _, heads=heads: heads, measure)
        result = analyse(maps, layer.sizes.length, settings, layer.seed)
        cases.append(_case(result, theta, layer.seed, float(group)) | {"amplitude": amplitude})
    return cases


def recover_spread_bands(
    layer: UntrainedLayer,
    theta: float,
    settings: BandConfig,
    measure: MapFunction,
    widths: tuple[float, ...] = (0.7, 1.5),
) -> list[dict[str, Any]]:
    """Bands of several groups: Gaussian amplitude around a fractional centre near the predicted one, random phases."""
    cases = []
    settings = _estimate_only(settings)
    predicted = rope.predicted_index(layer.sizes.head_dim, theta, layer.sizes.length)
    for width in widths:
        for offset in (-1.5, -0.5, 0.3, 1.2):
            draw = np.random.default_rng([layer.seed, int(10 * width), int(10 * (offset + 5))])
            centre = predicted + offset
            amplitudes = 3.0 * np.exp(-0.5 * ((np.arange(layer.sizes.groups) - centre) / width) ** 2)
            heads = [
                positional_head(layer.sizes, amplitudes, draw.uniform(0, 2 * np.pi, layer.sizes.groups))
                for _ in layer.noise[0]
            ]
            maps = plant(layer, lambda _, heads=heads: heads, measure)
            result = analyse(maps, layer.sizes.length, settings, layer.seed)
            cases.append(_case(result, theta, layer.seed, float(centre)) | {"width": width})
    return cases


def _no_structure(layer: UntrainedLayer) -> list[Vectors]:
    zero = Vectors(np.zeros_like(layer.noise[0][0].q), np.zeros_like(layer.noise[0][0].k))
    return [zero] * len(layer.noise[0])


def null_cases(layer: UntrainedLayer, theta: float, settings: BandConfig, measure: MapFunction) -> list[dict[str, Any]]:
    """Heads that must show no band: untrained ones, and positional structure in a model without rotation."""
    sizes, heads = layer.sizes, len(layer.noise[0])
    group = round(rope.predicted_index(sizes.head_dim, theta, sizes.length))
    flat = untrained_layer(sizes, np.zeros_like(layer.inv_freq), heads, len(layer.noise), layer.seed, measure)
    planted = [single_group(sizes, group, 4.0, 0.0)] * heads
    maps = {
        "untrained": plant(layer, lambda _: _no_structure(layer), measure),
        "no_rotation": plant(flat, lambda _: planted, measure, grid=layer.inv_freq),
    }
    return [
        {
            "kind": kind,
            "rope_theta": theta,
            "seed": layer.seed,
            "verdict": analyse(value, sizes.length, settings, layer.seed).verdict,
        }
        for kind, value in maps.items()
    ]


def classify_planted_heads(
    sizes: HeadSizes, theta: float, num_samples: int, settings: BandConfig, seed: int, measure: MapFunction
) -> list[dict[str, Any]]:
    """S2 on one layer of positional, retrieval, mixed and local heads: one row a head."""
    inv_freq = rope.inverse_frequencies(sizes.head_dim, theta)
    group = round(rope.predicted_index(sizes.head_dim, theta, sizes.length))
    layer = untrained_layer(sizes, inv_freq, len(PLANTED_CLASSES), num_samples, seed, measure)
    draw = np.random.default_rng([seed, 2])
    amplitudes = draw.uniform(*AMPLITUDES, len(PLANTED_CLASSES))
    phases = draw.uniform(0, 2 * np.pi, len(PLANTED_CLASSES))

    def make(rng: np.random.Generator) -> list[Vectors]:
        heads = []
        for kind, amplitude, phase in zip(PLANTED_CLASSES, amplitudes, phases, strict=True):
            if kind == "local":
                heads.append(local_head(sizes, 2 * amplitude))
                continue
            positional = single_group(sizes, group, amplitude, phase)
            if kind == POSITIONAL:
                heads.append(positional)
                continue
            retrieval = retrieval_head(sizes, group + 1, RETRIEVAL_STRENGTH, rng)
            heads.append(retrieval if kind == RETRIEVAL else positional + retrieval)
        return heads

    maps = plant(layer, make, measure)
    result = analyse(maps, sizes.length, settings, seed)
    boundary, source = layer_boundaries(result)
    classes = classify_heads(maps, boundary, source, resamples=settings.bootstrap_resamples, seed=seed)
    return [
        {
            "rope_theta": theta,
            "seed": seed,
            "planted": kind,
            "found": str(classes.head_class[0, head]),
            "s_ret": number(classes.s_ret[0, head]),
            "s_ret_ci": [number(classes.s_ret_low[0, head]), number(classes.s_ret_high[0, head])],
            "d_ratio": number(classes.d_ratio[0, head]),
            "band": number(result.peak),
            "boundary": number(boundary[0]),
        }
        for head, kind in enumerate(PLANTED_CLASSES)
    ]


def summarise(
    single: list[dict[str, Any]],
    spread: list[dict[str, Any]],
    nulls: list[dict[str, Any]],
    heads: list[dict[str, Any]],
) -> dict[str, Any]:
    """Rates of S1 and S2 with all cases: the content of synthetic.json."""
    turning = [case for case in single if case["angle"] >= MINIMUM_ANGLE]
    decided = [row for row in heads if row["planted"] in (POSITIONAL, RETRIEVAL)]
    right = sum(row["found"] == row["planted"] for row in decided)
    found = sorted({row["found"] for row in heads})
    return {
        "S1": _rates(turning)
        | {
            "tolerance": TOLERANCE,
            "minimum_angle": MINIMUM_ANGLE,
            "largest_missed_angle": max((case["angle"] for case in single if not case["recovered"]), default=None),
            "misses": [case for case in turning if not case["recovered"]],
            "all_groups_of_the_range": _rates(single),
        },
        "S1_spread_bands": {
            f"width {width:g}": _rates(case for case in spread if case["width"] == width)
            for width in sorted({case["width"] for case in spread})
        },
        "null": {
            "n": len(nulls),
            "none": sum(case["verdict"] == "none" for case in nulls),
            "failures": [case for case in nulls if case["verdict"] != "none"],
        },
        "S2": {
            "n": len(decided),
            "right": right,
            "rate": right / len(decided) if decided else None,
            "misses": [row for row in decided if row["found"] != row["planted"]],
            "confusion": {
                kind: {name: sum(r["planted"] == kind and r["found"] == name for r in heads) for name in found}
                for kind in dict.fromkeys(PLANTED_CLASSES)
            },
        },
        "cases": {"single_group": single, "spread": spread, "null": nulls, "heads": heads},
    }
