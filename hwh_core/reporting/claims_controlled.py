"""Claims C1 to C11 about controlled Transformers, at the paper's lengths and (``-scaled``) at shorter ones.

A band counts only where it passed the null at initialisation (verdict ``peak`` of the extraction). Where some seeds
have it and others not, the verdict is ``inconclusive``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..rope import inverse_frequencies, period_at, predicted_index, predicted_period
from . import selection
from .band_readings import (
    HEAD_DIM,
    Reading,
    band_part,
    bands_of,
    conditions_of,
    evidence_of,
    groups_of,
    paired_part,
    peak_of,
    peaks_by_seed,
    reading_of,
    samples_of,
    shifts_of,
    what_is_missing,
)
from .claim_model import Claim, Outcome, Part, from_parts, not_testable
from .intervals import NOT_NEGATIVE, Interval, Range, combine, paired, verdict, wilson
from .results import Results
from .selection import PAPER_LENGTH, Condition
from .texts import theta_text


def position(theta: float, length: int, low: float, high: float) -> Callable[[Results], Outcome]:
    """C1 to C3: the band of one condition lies in [low, high]."""
    condition = Condition(theta, length, True)

    def evaluate(results: Results) -> Outcome:
        missing = what_is_missing(results, [condition])
        if missing:
            return not_testable(missing)
        bands = bands_of(results, condition)
        part = band_part(condition.title, bands, peak_of, low, high, possible=groups_of(results))
        return from_parts([part], evidence=evidence_of(results, condition), n_samples=samples_of(bands))

    return evaluate


def _pair(results: Results, scaled: bool) -> tuple[Condition, Condition] | None:
    """The two bases (lowest and highest) at the length where both were trained."""
    for length in sorted({c.length for c in conditions_of(results, scaled)}):
        at = [c for c in conditions_of(results, scaled) if c.length == length]
        if len(at) >= 2:
            return at[0], at[-1]
    return None


def periods_agree(scaled: bool) -> Callable[[Results], Outcome]:
    """C4: periods of the two bands equal within the coarser group spacing, each within its own of T*."""

    def evaluate(results: Results) -> Outcome:
        pair = _pair(results, scaled)
        if pair is None:
            return not_testable("two RoPE bases at one such length were not trained in this preset")
        head_dim = results.preset.controlled.shape.attention_head_dim
        spacing = [c.rope_theta ** (2 / head_dim) for c in pair]
        target = predicted_period(pair[0].length)
        parts, logs = [], []
        for condition, step in zip(pair, spacing, strict=True):
            grid = inverse_frequencies(head_dim, condition.rope_theta)
            offset = predicted_index(head_dim, condition.rope_theta, condition.length)
            bands = bands_of(results, condition)
            part = band_part(condition.title, bands, peak_of, offset - 1, offset + 1, possible=groups_of(results))
            ratio = None if part.interval is None else part.interval.map(lambda r, g=grid: period_at(g, r) / target)
            parts.append(Part(f"T/T*, {condition.title} (within ×{step:.2f})", ratio, part.verdict, part.note))
            readings = peaks_by_seed(results, condition)
            logs.append({s: (v * math.log(step), e * math.log(step)) for s, (v, e) in readings.items()})
        limit = math.log(max(spacing))
        part = paired_part("ratio", results, pair, paired(logs[1], logs[0]), low=-limit, high=limit)
        ratio = None if part.interval is None else part.interval.map(math.exp)
        parts.append(Part(f"T(high base)/T(low base) (within ×{max(spacing):.2f})", ratio, part.verdict, part.note))
        samples = sum(samples_of(bands_of(results, condition)) for condition in pair)
        note = "about L means T*=1.40 L, the predicted period: one group spacing around L itself would not hold it"
        return from_parts(parts, evidence=evidence_of(results, pair[0]), n_samples=samples, note=note)

    return evaluate


PAPER_SHIFT = {1e4: 1.5, 1e6: 1.0}
PAPER_WITHOUT_NORM = {1e4: 23.0, 1e6: 15.5}


def norm_shift(scaled: bool) -> Callable[[Results], Outcome]:
    """C5: without QK-norm the band lies at a lower frequency."""

    def evaluate(results: Results) -> Outcome:
        trained = selection.conditions(results.preset)
        pairs = [
            (c, Condition(c.rope_theta, c.length, True))
            for c in conditions_of(results, scaled, qk_norm=False)
            if Condition(c.rope_theta, c.length, True) in trained and (scaled or c.length == PAPER_LENGTH)
        ]
        if not pairs:
            return not_testable("no pair of models with and without QK-norm at such a length in this preset")
        parts = []
        for without, with_norm in pairs:
            values = paired(peaks_by_seed(results, without), peaks_by_seed(results, with_norm))
            pair = (without, with_norm)
            label = f"shift, {with_norm.title}"
            shifts = shifts_of(groups_of(results))
            parts.append(paired_part(f"{label} > 0", results, pair, values, low=0.0, possible=shifts))
            expected = PAPER_SHIFT.get(without.rope_theta)
            if scaled and expected is not None:
                limits = {"low": expected - 1.5, "high": expected + 1.5}
                title = f"{label} ({expected:+g} ± 1.5)"
                parts.append(paired_part(title, results, pair, values, possible=shifts, **limits))
            elif expected is not None:
                centre = PAPER_WITHOUT_NORM[without.rope_theta]
                bands = bands_of(results, without)
                limits = {"low": centre - 1.5, "high": centre + 1.5, "possible": groups_of(results)}
                parts.append(band_part(f"position, {without.title}", bands, peak_of, **limits))
        if not scaled:
            tested = {pair[0].rope_theta for pair in pairs}
            absent = [theta for theta in PAPER_SHIFT if theta not in tested]
            parts += [Part(theta_text(theta), None, "not_testable", "not trained") for theta in absent]
        samples = sum(samples_of(bands_of(results, without)) for without, _ in pairs)
        return from_parts(parts, evidence=evidence_of(results, pairs[0][0]), n_samples=samples)

    return evaluate


def _each_condition(
    scaled: bool, make: Callable[[Condition, list[dict], Range], list[Part]], note: str = "", report_only: bool = False
) -> Callable[[Results], Outcome]:
    """Test every QK-norm condition of the wanted lengths; ``make`` also gets the range of frequency groups."""

    def evaluate(results: Results) -> Outcome:
        found = conditions_of(results, scaled)
        if not found:
            return not_testable("no controlled model with QK-norm at such a length in this preset")
        parts: list[Part] = []
        samples = 0
        for condition in found:
            bands = bands_of(results, condition)
            parts += make(condition, bands, groups_of(results))
            samples += samples_of(bands)
        evidence = evidence_of(results, found[0])
        return from_parts(parts, evidence=evidence, n_samples=samples, note=note, report_only=report_only)

    return evaluate


def _one_band(condition: Condition, bands: list[dict], groups: Range) -> list[Part]:
    layers = min(len(band["factors"]["1"]["layers"]) for band in bands)
    if layers < 4:
        return [Part(condition.title, None, "not_testable", f"{layers} layers, the claim needs at least 4")]

    def read(band: dict) -> Reading | None:
        value = band["factors"]["1"]["layer_iqr"]
        # The spread over layers has no interval over samples of its own: seeds carry it.
        return None if value is None else (float(value), 0.0)

    part = band_part(condition.title, bands, read, high=2.0, possible=groups)
    with_peak = sum(int(band["factors"]["1"]["num_layers_with_peak"]) for band in bands)
    total = sum(len(band["factors"]["1"]["layers"]) for band in bands)
    told = f"{with_peak} of {total} layers have an RPD peak"
    return [replace(part, note="; ".join(text for text in (told, part.note) if text))]


def _below_band(condition: Condition, bands: list[dict], groups: Range) -> list[Part]:
    def over_initial(band: dict) -> Reading | None:
        return reading_of(band["factors"]["1"], "below_band_over_initial")

    def ratio(band: dict) -> Reading | None:
        return reading_of(band["factors"]["1"], "below_band_ratio")

    return [
        band_part(f"below/at band, {condition.title}", bands, ratio, high=0.1, possible=NOT_NEGATIVE),
        band_part(
            f"the same over initialisation, {condition.title}", bands, over_initial, high=0.25, possible=NOT_NEGATIVE
        ),
    ]


def agreement(scaled: bool) -> Callable[[Results], Outcome]:
    """C8: share of layers with an RPD peak whose RFIS peak, found on its own, lies within one group."""

    def evaluate(results: Results) -> Outcome:
        found = conditions_of(results, scaled)
        if not found:
            return not_testable("no controlled model with QK-norm at such a length in this preset")
        rates, layers, chances, samples, seeds = [], 0, [], 0, []
        for condition in found:
            bands = bands_of(results, condition)
            samples += samples_of(bands)
            before = len(rates)
            for entry in (band["factors"]["1"] for band in bands):
                count = int(entry["num_layers_with_peak"])
                if count and entry["c8_rate"] is not None:
                    rates.append((float(entry["c8_rate"]), count))
                    layers += count
                    chances.append(entry["c8_chance"])
            seeds.append(len(rates) - before)
        evidence = evidence_of(results, found[0])
        if not rates:
            part = Part("rate", None, "inconclusive", "no layer has an RPD peak above the null at initialisation")
            return from_parts([part], evidence=evidence, n_samples=samples)
        chance = float(np.mean([c for c in chances if c is not None])) if any(c is not None for c in chances) else None
        pooled = sum(rate * count for rate, count in rates) / layers
        spread = combine([rate for rate, _ in rates], [0.0] * len(rates))
        over_layers = wilson(pooled * layers, layers)
        half = (spread.high - spread.low) / 2
        interval = Interval(
            pooled,
            max(0.0, min(over_layers[0], pooled - half)),
            min(1.0, max(over_layers[1], pooled + half)),
            # Models of other bases and lengths are no seeds: the condition with the fewest decides what is known.
            min(count for count in seeds if count),
        )
        decided = verdict(interval, low=0.8)
        shown = "unknown" if chance is None else f"{chance:.2f}"
        note = f"{layers} layers with an RPD peak in {len(rates)} models; chance rate {shown}"
        if interval.n_seeds < 2:
            note = f"{note}; a condition with one seed: the spread over seeds is unknown"
        if decided == "reproduced" and (chance is None or chance >= interval.low):
            decided, note = "inconclusive", f"{note}: no better than chance"
        return from_parts([Part("rate", interval, decided)], evidence=evidence, n_samples=samples, note=note)

    return evaluate


def _drift(condition: Condition, bands: list[dict], groups: Range) -> list[Part]:
    parts = []
    factors = sorted({key for band in bands for key in (band["drift"] or {}).get("shifts", {})}, key=float)
    for factor in factors:

        def read(band: dict, key: str = factor) -> Reading | None:
            entry = band["drift"]["shifts"][key]
            return reading_of({"shift": entry["shift"], "shift_ci": entry["ci"]}, "shift")

        title = f"probe ×{factor}, {condition.title}"
        parts.append(band_part(title, bands, read, -0.7, 0.7, possible=shifts_of(groups)))
    return parts or [Part(condition.title, None, "not_testable", "probed at the training length only")]


def _residuals(condition: Condition, bands: list[dict], groups: Range) -> list[Part]:
    parts = []
    for name, label in (("covariance", "x*=4.4934"), ("oka", "x*=3.6572")):

        def read(band: dict, key: str = name) -> Reading | None:
            reading = peak_of(band)
            return None if reading is None else (reading[0] - band["predicted"][key], reading[1])

        # The prediction follows from base and length, so it is the same for all seeds.
        possible = tuple(end - bands[0]["predicted"][name] for end in groups)
        parts.append(band_part(f"r - r* ({label}), {condition.title}", bands, read, possible=possible))
    return parts


REPLICAS = [(1e4, 256), (1e6, 256), (1e4, 512), (1e4, 1024), (1e6, 512), (1e6, 1024)]


def replicas(results: Results) -> Outcome:
    """C9: bands of the short replicas lie where they are predicted."""
    if results.preset.controlled.shape.attention_head_dim != HEAD_DIM:
        return not_testable(what_is_missing(results, []) or "")
    trained = selection.conditions(results.preset)
    wanted = [Condition(theta, length, True) for theta, length in REPLICAS]
    found = [condition for condition in wanted if condition in trained]
    if not found:
        return not_testable("none of the replicas was trained in this preset")
    parts, samples = [], 0
    for condition in found:
        bands = bands_of(results, condition)
        centre = predicted_index(HEAD_DIM, condition.rope_theta, condition.length)
        title, groups = f"{condition.title} (r*={centre:.2f})", groups_of(results)
        parts.append(band_part(title, bands, peak_of, centre - 1, centre + 1, possible=groups))
        samples += samples_of(bands)
    absent = [condition.title for condition in wanted if condition not in trained]
    note = f"replicas not run: {'; '.join(absent)}" if absent else ""
    return from_parts(parts, evidence=evidence_of(results, found[0]), n_samples=samples, note=note)


def _both(number: int, statement: str, paper: str | None, tolerance: str, metric: str, make) -> list[Claim]:
    """The paper's row (L >= 2048) and the row at shorter training lengths."""
    return [
        Claim(f"C{number}", statement, paper, tolerance, metric, "C", "controlled, L >= 2048", make(False)),
        Claim(
            f"C{number}-scaled", f"{statement} (scaled-down replicas, L < 2048)", paper, tolerance, metric, "C",
            "controlled, L < 2048", make(True),
        ),
    ]  # fmt: skip


def _position_claim(number: int, theta: float, length: int, shown: str, low: float, high: float) -> Claim:
    centre = (low + high) / 2
    return Claim(
        f"C{number}", f"{theta_text(theta)}, L={length}, QKNorm: band at {shown}", shown,
        f"{centre:g} ± 1.0 group", "RPD peak (frequency group)", "C", "controlled, L >= 2048",
        position(theta, length, low, high),
    )  # fmt: skip


CLAIMS = [
    _position_claim(1, 1e4, 2048, "21-22", 20.5, 22.5),
    _position_claim(2, 1e6, 2048, "14-15", 13.5, 15.5),
    _position_claim(3, 1e4, 4096, "about 24", 23.0, 25.0),
    *_both(4, "The periods of the bands at two bases are equal, about the training length",
           "periods at the 2048-token scale", "within one group spacing (×1.33 / ×1.54)", "period ratio",
           periods_agree),
    *_both(5, "Without QKNorm the band moves to lower frequency: about 23 (1e4), 15-16 (1e6)", "23 / 15-16",
           "sign of shift > 0; ±1.5 groups", "shift of the RPD peak (groups)", norm_shift),
    *_both(6, "Controlled models have one band, the same in all layers", "a single layer-invariant band",
           "IQR of layer peaks <= 2 groups; not testable under 4 layers", "IQR over layers (groups)",
           lambda scaled: _each_condition(scaled, _one_band)),
    *_both(7, "RPD below the band is about 0", "nearly zero",
           "<= 0.1 of the band value, and that ratio <= 0.25 of the ratio at initialisation",
           "mean RPD(r > r^+2) / RPD at the band", lambda scaled: _each_condition(scaled, _below_band)),
    *_both(8, "The band is seen in RFIS and in RPD at the same r", "RFIS recovers the band, RPD verifies it",
           "within 1 group in >= 80% of the layers with an RPD peak", "share of layers", agreement),
    Claim("C9", "Scaled-down replicas (d_h=64): the band lies at 14.05 (1e4, 256), 9.36 (1e6, 256), 16.45 (1e4, 512), "
          "18.86 (1e4, 1024), 10.97 (1e6, 512), 12.57 (1e6, 1024)", None, "±1.0 group", "RPD peak (frequency group)",
          "C", "controlled, L < 2048", replicas),
    *_both(10, "The band belongs to the training length: probed at L/2, L and 2L the peak stays", None,
           "within 0.7 group", "shift of the RPD peak (groups)", lambda scaled: _each_condition(scaled, _drift)),
    *_both(11, "Which constant fits the observed band, 4.4934 or 3.6572 (report only)", None,
           "none: residuals are reported", "residual (groups)",
           lambda scaled: _each_condition(scaled, _residuals, "report only: never a verdict", report_only=True)),
]  # fmt: skip
