"""Claims C1 to C11 about controlled Transformers, at the paper's lengths and (``-scaled``) at shorter ones.

A band counts only where it passed the null at initialisation (verdict ``peak`` of the extraction). Where some seeds
have it and others not, the verdict is ``inconclusive``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..rope import inverse_frequencies, period_at, predicted_index, predicted_period
from . import requirements, selection
from .claim_model import Claim, Outcome, Part, from_parts, not_testable
from .intervals import Interval, combine, stderr_of, verdict, wilson
from .results import Results
from .selection import PAPER_LENGTH, Condition

HEAD_DIM = 64
Reading = tuple[float, float]


def _conditions(results: Results, scaled: bool, qk_norm: bool = True) -> list[Condition]:
    found = sorted(selection.conditions(results.preset, qk_norm))
    return [c for c in found if (c.length < PAPER_LENGTH) == scaled]


def _bands(results: Results, condition: Condition) -> list[dict]:
    models = selection.conditions(results.preset)[condition]
    return [results.band(model) for model in sorted(models, key=lambda model: model.seed)]


def _evidence(results: Results, condition: Condition) -> str:
    return requirements.band_file(selection.conditions(results.preset)[condition][0])


def _samples(bands: list[dict]) -> int:
    return sum(int(band["factors"]["1"].get("num_samples", 0)) for band in bands)


def _reading(entry: dict, key: str) -> Reading | None:
    """Value and its standard error over samples; None where it is undefined, an infinite error without an interval."""
    value, ci = entry.get(key), entry.get(f"{key}_ci")
    if value is None:
        return None
    known = ci is not None and None not in ci
    return float(value), stderr_of(ci) if known else math.inf


def _passed(bands: list[dict]) -> list[bool]:
    return [band["factors"]["1"]["verdict"] == "peak" for band in bands]


def band_part(
    label: str, bands: list[dict], read: Callable[[dict], Reading | None], low: float = -np.inf, high: float = np.inf
) -> Part:
    """Test a reading of band.json over the seeds of a condition against [low, high]."""
    passed = _passed(bands)
    readings = [read(band) for band, ok in zip(bands, passed, strict=True) if ok]
    values = [reading for reading in readings if reading is not None]
    if not values:
        return Part(label, None, "inconclusive", f"no band above the null at initialisation in {len(bands)} seed(s)")
    interval = _combined(values)
    if len(values) < len(bands):
        note = f"seeds disagree: a band above the null at initialisation in {len(values)} of {len(bands)}"
        return Part(label, interval, "inconclusive", note)
    note = "one seed: the spread over seeds is unknown" if len(values) == 1 else ""
    return Part(label, interval, verdict(interval, low, high), note)


def _combined(values: list[Reading]) -> Interval:
    errors = [error for _, error in values]
    if not np.isfinite(errors).all():
        mean = float(np.mean([value for value, _ in values]))
        return Interval(mean, -math.inf, math.inf, len(values))
    return combine([value for value, _ in values], errors)


def _peak(band: dict) -> Reading | None:
    return _reading(band["factors"]["1"], "peak")


def _needs(results: Results, wanted: list[Condition]) -> str | None:
    """What the preset lacks of these conditions, or None."""
    if results.preset.controlled.shape.attention_head_dim != HEAD_DIM:
        return f"controlled models have head_dim {results.preset.controlled.shape.attention_head_dim}, the claim is about 64"
    present = selection.conditions(results.preset)
    missing = [c.title for c in wanted if c not in present]
    return f"not trained in this preset: {'; '.join(missing)}" if missing else None


def position(theta: float, length: int, low: float, high: float) -> Callable[[Results], Outcome]:
    """C1 to C3: the band of one condition lies in [low, high]."""
    condition = Condition(theta, length, True)

    def evaluate(results: Results) -> Outcome:
        missing = _needs(results, [condition])
        if missing:
            return not_testable(missing)
        bands = _bands(results, condition)
        part = band_part(condition.title, bands, _peak, low, high)
        return from_parts([part], evidence=_evidence(results, condition), n_samples=_samples(bands))

    return evaluate


def _pair(results: Results, scaled: bool) -> tuple[Condition, Condition] | None:
    """The two bases (lowest and highest) at the length where both were trained."""
    for length in sorted({c.length for c in _conditions(results, scaled)}):
        at = [c for c in _conditions(results, scaled) if c.length == length]
        if len(at) >= 2:
            return at[0], at[-1]
    return None


def _by_seed(results: Results, condition: Condition) -> dict[int, Reading]:
    found = {}
    for band, ok in zip(*(lambda b: (b, _passed(b)))(_bands(results, condition)), strict=True):
        reading = _peak(band) if ok else None
        if reading is not None:
            found[int(band["seed"])] = reading
    return found


def _paired(first: dict[int, Reading], second: dict[int, Reading]) -> list[Reading]:
    return [
        (first[seed][0] - second[seed][0], math.hypot(first[seed][1], second[seed][1]))
        for seed in sorted(set(first) & set(second))
    ]


def _paired_part(label: str, results: Results, pair: tuple[Condition, Condition], values: list[Reading], **limits) -> Part:
    """A part about differences between two conditions, paired by seed."""
    complete = all(all(_passed(_bands(results, condition))) for condition in pair)
    if not values:
        return Part(label, None, "inconclusive", "no seed has a band above the null in both conditions")
    interval = _combined(values)
    if not complete:
        return Part(label, interval, "inconclusive", "not every seed has a band above the null at initialisation")
    note = "one pair of seeds: the spread over seeds is unknown" if len(values) == 1 else ""
    return Part(label, interval, verdict(interval, **limits), note)


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
            bands = _bands(results, condition)
            part = band_part(condition.title, bands, _peak, offset - 1, offset + 1)
            ratio = None if part.interval is None else part.interval.map(lambda r, g=grid: period_at(g, r) / target)
            parts.append(Part(f"T/T*, {condition.title} (within ×{step:.2f})", ratio, part.verdict, part.note))
            readings = _by_seed(results, condition)
            logs.append({s: (v * math.log(step), e * math.log(step)) for s, (v, e) in readings.items()})
        limit = math.log(max(spacing))
        part = _paired_part("ratio", results, pair, _paired(logs[1], logs[0]), low=-limit, high=limit)
        ratio = None if part.interval is None else part.interval.map(math.exp)
        parts.append(Part(f"T(high base)/T(low base) (within ×{max(spacing):.2f})", ratio, part.verdict, part.note))
        samples = sum(_samples(_bands(results, condition)) for condition in pair)
        note = "about L means T*=1.40 L, the predicted period: one group spacing around L itself would not hold it"
        return from_parts(parts, evidence=_evidence(results, pair[0]), n_samples=samples, note=note)

    return evaluate


PAPER_SHIFT = {1e4: 1.5, 1e6: 1.0}
PAPER_WITHOUT_NORM = {1e4: 23.0, 1e6: 15.5}


def norm_shift(scaled: bool) -> Callable[[Results], Outcome]:
    """C5: without QK-norm the band lies at a lower frequency."""

    def evaluate(results: Results) -> Outcome:
        trained = selection.conditions(results.preset)
        pairs = [
            (c, Condition(c.rope_theta, c.length, True))
            for c in _conditions(results, scaled, qk_norm=False)
            if Condition(c.rope_theta, c.length, True) in trained and (scaled or c.length == PAPER_LENGTH)
        ]
        if not pairs:
            return not_testable("no pair of models with and without QK-norm at such a length in this preset")
        parts = []
        for without, with_norm in pairs:
            values = _paired(_by_seed(results, without), _by_seed(results, with_norm))
            pair = (without, with_norm)
            label = f"shift, theta={without.rope_theta:g}, L={without.length}"
            parts.append(_paired_part(f"{label} > 0", results, pair, values, low=0.0))
            expected = PAPER_SHIFT.get(without.rope_theta)
            if scaled and expected is not None:
                limits = {"low": expected - 1.5, "high": expected + 1.5}
                parts.append(_paired_part(f"{label} ({expected:+g} ± 1.5)", results, pair, values, **limits))
            elif expected is not None:
                centre = PAPER_WITHOUT_NORM[without.rope_theta]
                bands = _bands(results, without)
                parts.append(band_part(f"position, {without.title}", bands, _peak, centre - 1.5, centre + 1.5))
        if not scaled:
            tested = {pair[0].rope_theta for pair in pairs}
            parts += [
                Part(f"theta={theta:g}", None, "not_testable", "not trained") for theta in PAPER_SHIFT if theta not in tested
            ]
        samples = sum(_samples(_bands(results, without)) for without, _ in pairs)
        return from_parts(parts, evidence=_evidence(results, pairs[0][0]), n_samples=samples)

    return evaluate


def _each_condition(
    scaled: bool, make: Callable[[Condition, list[dict]], list[Part]], note: str = "", report_only: bool = False
) -> Callable[[Results], Outcome]:
    """Test every QK-norm condition of the wanted lengths."""

    def evaluate(results: Results) -> Outcome:
        found = _conditions(results, scaled)
        if not found:
            return not_testable("no controlled model with QK-norm at such a length in this preset")
        parts: list[Part] = []
        samples = 0
        for condition in found:
            bands = _bands(results, condition)
            parts += make(condition, bands)
            samples += _samples(bands)
        evidence = _evidence(results, found[0])
        return from_parts(parts, evidence=evidence, n_samples=samples, note=note, report_only=report_only)

    return evaluate


def _one_band(condition: Condition, bands: list[dict]) -> list[Part]:
    layers = min(len(band["factors"]["1"]["layers"]) for band in bands)
    if layers < 4:
        return [Part(condition.title, None, "not_testable", f"{layers} layers, the claim needs at least 4")]

    def read(band: dict) -> Reading | None:
        value = band["factors"]["1"]["layer_iqr"]
        # The spread over layers has no interval over samples of its own: seeds carry it.
        return None if value is None else (float(value), 0.0)

    return [band_part(condition.title, bands, read, high=2.0)]


def _below_band(condition: Condition, bands: list[dict]) -> list[Part]:
    def over_initial(band: dict) -> Reading | None:
        return _reading(band["factors"]["1"], "below_band_over_initial")

    def ratio(band: dict) -> Reading | None:
        return _reading(band["factors"]["1"], "below_band_ratio")

    return [
        band_part(f"below/at band, {condition.title}", bands, ratio, high=0.1),
        band_part(f"the same over initialisation, {condition.title}", bands, over_initial, high=0.25),
    ]


def agreement(scaled: bool) -> Callable[[Results], Outcome]:
    """C8: share of layers with an RPD peak whose RFIS peak, found on its own, lies within one group."""

    def evaluate(results: Results) -> Outcome:
        found = _conditions(results, scaled)
        if not found:
            return not_testable("no controlled model with QK-norm at such a length in this preset")
        rates, layers, chances, samples = [], 0, [], 0
        for condition in found:
            bands = _bands(results, condition)
            samples += _samples(bands)
            for entry in (band["factors"]["1"] for band in bands):
                count = int(entry["num_layers_with_peak"])
                if count and entry["c8_rate"] is not None:
                    rates.append((float(entry["c8_rate"]), count))
                    layers += count
                    chances.append(entry["c8_chance"])
        evidence = _evidence(results, found[0])
        if not rates:
            part = Part("rate", None, "inconclusive", "no layer has an RPD peak above the null at initialisation")
            return from_parts([part], evidence=evidence, n_samples=samples)
        chance = float(np.mean([c for c in chances if c is not None])) if any(c is not None for c in chances) else None
        pooled = sum(rate * count for rate, count in rates) / layers
        spread = combine([rate for rate, _ in rates], [0.0] * len(rates))
        over_layers = wilson(pooled * layers, layers)
        half = (spread.high - spread.low) / 2
        interval = Interval(
            pooled, max(0.0, min(over_layers[0], pooled - half)), min(1.0, max(over_layers[1], pooled + half)), len(rates)
        )
        decided = verdict(interval, low=0.8)
        shown = "unknown" if chance is None else f"{chance:.2f}"
        note = f"{layers} layers with an RPD peak in {len(rates)} models; chance rate {shown}"
        if decided == "reproduced" and (chance is None or chance >= interval.low):
            decided, note = "inconclusive", f"{note}: no better than chance"
        return from_parts([Part("rate", interval, decided)], evidence=evidence, n_samples=samples, note=note)

    return evaluate


def _drift(condition: Condition, bands: list[dict]) -> list[Part]:
    parts = []
    factors = sorted({key for band in bands for key in (band["drift"] or {}).get("shifts", {})}, key=float)
    for factor in factors:

        def read(band: dict, key: str = factor) -> Reading | None:
            entry = band["drift"]["shifts"][key]
            return _reading({"shift": entry["shift"], "shift_ci": entry["ci"]}, "shift")

        parts.append(band_part(f"probe ×{factor}, {condition.title}", bands, read, -0.7, 0.7))
    return parts or [Part(condition.title, None, "not_testable", "probed at the training length only")]


def _residuals(condition: Condition, bands: list[dict]) -> list[Part]:
    parts = []
    for name, label in (("covariance", "x*=4.4934"), ("oka", "x*=3.6572")):

        def read(band: dict, key: str = name) -> Reading | None:
            reading = _peak(band)
            return None if reading is None else (reading[0] - band["predicted"][key], reading[1])

        parts.append(band_part(f"r - r* ({label}), {condition.title}", bands, read))
    return parts


REPLICAS = [(1e4, 256), (1e6, 256), (1e4, 512), (1e4, 1024), (1e6, 512), (1e6, 1024)]


def replicas(results: Results) -> Outcome:
    """C9: bands of the short replicas lie where they are predicted."""
    if results.preset.controlled.shape.attention_head_dim != HEAD_DIM:
        return not_testable(_needs(results, []) or "")
    trained = selection.conditions(results.preset)
    wanted = [Condition(theta, length, True) for theta, length in REPLICAS]
    found = [condition for condition in wanted if condition in trained]
    if not found:
        return not_testable("none of the replicas was trained in this preset")
    parts, samples = [], 0
    for condition in found:
        bands = _bands(results, condition)
        centre = predicted_index(HEAD_DIM, condition.rope_theta, condition.length)
        parts.append(band_part(f"{condition.title} (r*={centre:.2f})", bands, _peak, centre - 1, centre + 1))
        samples += _samples(bands)
    absent = [condition.title for condition in wanted if condition not in trained]
    note = f"replicas not run: {'; '.join(absent)}" if absent else ""
    return from_parts(parts, evidence=_evidence(results, found[0]), n_samples=samples, note=note)


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
        f"C{number}", f"theta={theta:.0e}, L={length}, QKNorm: band at {shown}".replace("e+0", "e"), shown,
        f"{centre:g} ± 1.0 group", "RPD peak (frequency group)", "C", "controlled, L >= 2048",
        position(theta, length, low, high),
    )  # fmt: skip


CLAIMS = [
    _position_claim(1, 1e4, 2048, "21-22", 20.5, 22.5),
    _position_claim(2, 1e6, 2048, "14-15", 13.5, 15.5),
    _position_claim(3, 1e4, 4096, "about 24", 23.0, 25.0),
    *_both(4, "The periods of the bands at two bases are equal, about the training length",
           "periods at the 2048-token scale", "within one group spacing (×1.33 / ×1.54)", "period ratio", periods_agree),
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
          "18.86 (1e4, 1024), 10.97 (1e6, 512), 12.57 (1e6, 1024)", None, "±1.0 group", "RPD peak (frequency group)", "C",
          "controlled, L < 2048", replicas),
    *_both(10, "The band belongs to the training length: probed at L/2, L and 2L the peak stays", None,
           "within 0.7 group", "shift of the RPD peak (groups)", lambda scaled: _each_condition(scaled, _drift)),
    *_both(11, "Which constant fits the observed band, 4.4934 or 3.6572 (report only)", None,
           "none: residuals are reported", "residual (groups)",
           lambda scaled: _each_condition(scaled, _residuals, "report only: never a verdict", report_only=True)),
]  # fmt: skip
