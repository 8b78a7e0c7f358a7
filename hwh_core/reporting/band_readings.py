"""Readings of band.json by condition, with their errors, and parts of claims made of them.

A band counts only where it passed the null at initialisation (verdict ``peak`` of the extraction). Where some seeds
have it and others not, a part is ``inconclusive``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from . import requirements, selection
from .claim_model import Part
from .intervals import (
    CONTRADICTED,
    UNLIMITED,
    Interval,
    Pairs,
    Range,
    Reading,
    combine,
    contradicted,
    stderr_of,
    verdict,
)
from .results import Results
from .selection import PAPER_LENGTH, Condition

HEAD_DIM = 64


def conditions_of(results: Results, scaled: bool, qk_norm: bool = True) -> list[Condition]:
    """Conditions of the preset below (``scaled``) or from the paper's training length on, sorted."""
    found = sorted(selection.conditions(results.preset, qk_norm))
    return [c for c in found if (c.length < PAPER_LENGTH) == scaled]


def bands_of(results: Results, condition: Condition) -> list[dict]:
    """band.json of all seeds of a condition, by seed."""
    models = selection.conditions(results.preset)[condition]
    return [results.band(model) for model in sorted(models, key=lambda model: model.seed)]


def evidence_of(results: Results, condition: Condition) -> str:
    """The file that stands as evidence: band.json of the first seed."""
    return requirements.band_file(selection.conditions(results.preset)[condition][0])


def samples_of(bands: list[dict]) -> int:
    """Probe samples of all seeds together."""
    return sum(int(band["factors"]["1"].get("num_samples", 0)) for band in bands)


def reading_of(entry: dict, key: str) -> Reading | None:
    """Value and its standard error over samples; None where it is undefined, an infinite error without an interval."""
    value, ci = entry.get(key), entry.get(f"{key}_ci")
    if value is None:
        return None
    known = ci is not None and None not in ci
    return float(value), stderr_of(ci) if known else math.inf


def passed(bands: list[dict]) -> list[bool]:
    """Whether each seed has a band above the null at initialisation, probed at its training length."""
    return [band["factors"]["1"]["verdict"] == "peak" for band in bands]


def groups_of(results: Results) -> Range:
    """First and last frequency group of the controlled models: no index lies outside."""
    return 0.0, results.preset.controlled.shape.attention_head_dim / 2 - 1


def shifts_of(groups: Range) -> Range:
    """Least and greatest difference of two indices."""
    return groups[0] - groups[1], groups[1] - groups[0]


def band_part(
    label: str,
    bands: list[dict],
    read: Callable[[dict], Reading | None],
    low: float = -np.inf,
    high: float = np.inf,
    *,
    possible: Range = UNLIMITED,
) -> Part:
    """Test a reading of band.json over the seeds of a condition against [low, high].

    The interval of the part is cut to the ``possible`` values of the quantity after its verdict was found.
    """
    good = passed(bands)
    readings = [read(band) for band, ok in zip(bands, good, strict=True) if ok]
    values = [reading for reading in readings if reading is not None]
    if not any(good):
        return Part(label, None, "inconclusive", f"no band above the null at initialisation in {len(bands)} seed(s)")
    if not values:
        return Part(
            label, None, "inconclusive", "a band at the training length, but this value is missing in every seed"
        )
    interval = combined(values)
    if len(values) < len(bands):
        note = f"seeds disagree: a band above the null at initialisation in {len(values)} of {len(bands)}"
        return Part(label, interval.within(possible), "inconclusive", note)
    note = "one seed: the spread over seeds is unknown" if len(values) == 1 else ""
    return Part(label, interval.within(possible), verdict(interval, low, high), note)


def combined(values: list[Reading]) -> Interval:
    """Mean over seeds; unbounded where a seed has no interval over samples."""
    errors = [error for _, error in values]
    if not np.isfinite(errors).all():
        mean = float(np.mean([value for value, _ in values]))
        return Interval(mean, -math.inf, math.inf, len(values))
    return combine([value for value, _ in values], errors)


def peak_of(band: dict) -> Reading | None:
    """RPD peak at the training length."""
    return reading_of(band["factors"]["1"], "peak")


def what_is_missing(results: Results, wanted: list[Condition]) -> str | None:
    """What the preset lacks of these conditions, or None."""
    if results.preset.controlled.shape.attention_head_dim != HEAD_DIM:
        head_dim = results.preset.controlled.shape.attention_head_dim
        return f"controlled models have head_dim {head_dim}, the claim is about {HEAD_DIM}"
    present = selection.conditions(results.preset)
    missing = [c.title for c in wanted if c not in present]
    return f"not trained in this preset: {'; '.join(missing)}" if missing else None


def peaks_by_seed(results: Results, condition: Condition) -> dict[int, Reading]:
    """RPD peaks of the seeds that have a band."""
    found = {}
    bands = bands_of(results, condition)
    for band, ok in zip(bands, passed(bands), strict=True):
        reading = peak_of(band) if ok else None
        if reading is not None:
            found[int(band["seed"])] = reading
    return found


def paired_part(
    label: str,
    results: Results,
    pair: tuple[Condition, Condition],
    pairs: Pairs,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    possible: Range = UNLIMITED,
) -> Part:
    """A part about differences between two conditions, paired by seed; ``possible`` as in :func:`band_part`."""
    complete = all(all(passed(bands_of(results, condition))) for condition in pair)
    if not pairs.values:
        return Part(label, None, "inconclusive", "no seed has a band above the null in both conditions")
    interval = combined(pairs.values)
    if not complete:
        note = "not every seed has a band above the null at initialisation"
        return Part(label, interval.within(possible), "inconclusive", note)
    shown, decided = interval.within(possible), verdict(interval, low, high)
    if contradicted(decided, pairs.left_out, low, high):
        return Part(label, shown, "inconclusive", CONTRADICTED)
    note = "one pair of seeds: the spread over seeds is unknown" if len(pairs.values) == 1 else ""
    return Part(label, shown, decided, note)
