"""Claims W1 to W9 about published weights, and the same statements tested on SmolLM2-135M where it is the model.

Intervals are over samples (and over heads where said so): weights that somebody else trained have no seeds of ours. The
model at initialisation is unknown, so a band in published weights counts against the scaled closed-form null only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np

from ..config import PretrainedModel
from ..statistics import StatisticsError, auroc_interval, percentile_interval, top_heads
from . import selection
from .agreement import RESAMPLES, profile_agreement
from .claim_model import Claim, Outcome, Part, from_parts, not_testable
from .intervals import Interval, verdict
from .results import Results

SMOL = "SmolLM2-135M"


def interval_of(estimate: float | None, ci: list | None) -> Interval | None:
    """An estimate of bands.json with its interval; None where it is undefined."""
    if estimate is None:
        return None
    known = ci is not None and None not in ci
    low, high = (float(ci[0]), float(ci[1])) if known else (-math.inf, math.inf)
    return Interval(float(estimate), low, high, 0)


def _part(label: str, interval: Interval | None, low: float = -np.inf, high: float = np.inf, note: str = "") -> Part:
    if interval is None:
        return Part(label, None, "inconclusive", "; ".join(text for text in ("undefined for this model", note) if text))
    return Part(label, interval, verdict(interval, low, high, trained=False), note)


def _num_samples(results: Results, model: PretrainedModel, reads: tuple[str, ...]) -> int:
    """Samples behind a claim: the fewest of those behind the scores that it ``reads``."""
    counts = {"behavior": int(results.behavior(model)["qr"].shape[0])}
    if "probe" in reads:
        counts["probe"] = int(results.bands(model)["band"]["num_samples"])
    return min(counts[name] for name in reads)


def on_model(
    family: str,
    test: Callable[[Results, PretrainedModel], list[Part]],
    file: str = "bands.json",
    note: str = "",
    reads: tuple[str, ...] = ("probe",),
) -> Callable[[Results], Outcome]:
    """Run ``test`` on the preset's model of a family; not testable without it.

    ``reads``: the samples behind it, ``probe`` (RFIS, RPD) or ``behavior`` (QRscore, LDscore) or both.
    """

    def evaluate(results: Results) -> Outcome:
        model = selection.pretrained_model(results.preset, family)
        if model is None:
            return not_testable(f"{family} is not in this preset")
        parts = test(results, model)
        evidence = f"pretrained/{model.name}/{file}"
        return from_parts(parts, evidence=evidence, n_samples=_num_samples(results, model, reads), note=note)

    return evaluate


def _statistic(results: Results, model: PretrainedModel, name: str) -> Interval | None:
    entry = results.bands(model)["validation"][name]
    return interval_of(entry["estimate"], entry["ci"])


def sparse(results: Results, model: PretrainedModel) -> list[Part]:
    """W1: top heads hold most of the QR mass and lie in the middle half of the layers."""
    mass, middle = (_statistic(results, model, name) for name in ("qr_mass_top", "top_heads_in_middle_half"))
    return [
        _part("QR mass of the top 5% heads > 0.5", mass, low=0.5),
        _part("share of the top heads in the middle half > 0.6", middle, low=0.6),
    ]


def not_complementary(results: Results, model: PretrainedModel) -> list[Part]:
    """W2: QR and 1 - LD correlate weakly, and some heads are low in both."""
    correlation = _statistic(results, model, "pearson_qr_one_minus_ld")
    both_low = _statistic(results, model, "low_low_share_third")
    return [
        _part("corr(QR, 1-LD) < 0.7", correlation, high=0.7),
        _part("share of heads in the lowest third of both > 0.05", both_low, low=0.05),
    ]


def below_band_share(results: Results, model: PretrainedModel) -> list[Part]:
    """W3: the share of RFIS below the band finds the top QR heads.

    An AUROC says that they rank above the others, not where the others stand: the note does.
    """
    heads = results.heads(model)
    others = heads.loc[~top_heads(heads["qr"].to_numpy(dtype=float)), "s_ret"]
    note = (
        f"a ranking alone: {(others >= 0.5).mean():.0%} of the other heads have half of their RFIS or more below it too"
    )
    return [_part("AUROC", _statistic(results, model, "auroc_s_ret_top_qr"), low=0.8, note=note)]


def local_has_none(results: Results, model: PretrainedModel) -> list[Part]:
    """W4: the same share says less of LD heads."""
    return [_part("|AUROC(QR)-.5| - |AUROC(LD)-.5|", _statistic(results, model, "auroc_distance_gap"), low=0.15)]


def several_bands(results: Results, model: PretrainedModel) -> list[Part]:
    """W5: at least two clusters of layer peaks more than 3 groups apart."""
    bands = results.bands(model)
    count = len(bands["clusters"])
    clusters = interval_of(float(count), bands["num_clusters_ci"])
    parts = [_part("clusters >= 2", clusters, low=2.0)]
    gap = bands["largest_gap"]
    distance = interval_of(gap, bands["largest_gap_ci"])
    note = "" if gap is not None else "fewer than two clusters"
    return [*parts, _part("largest distance of neighbours > 3 groups", distance, low=3.0, note=note)]


def two_layers(layers: tuple[int, ...]) -> Callable[[Results, PretrainedModel], list[Part]]:
    """W6: the test of W3 inside chosen layers; the interval is over heads."""

    def test(results: Results, model: PretrainedModel) -> list[Part]:
        heads = results.heads(model)
        inside = heads["layer"].isin(layers).to_numpy() & np.isfinite(heads["s_ret"].to_numpy(dtype=float))
        label = f"AUROC in layers {' and '.join(map(str, layers))}"
        shares, top = heads["s_ret"].to_numpy(dtype=float), top_heads(heads["qr"].to_numpy(dtype=float))
        try:
            found = auroc_interval(shares[inside], top[inside], resamples=RESAMPLES, seed=0)
        except StatisticsError as error:
            return [Part(label, None, "inconclusive", str(error))]
        return [_part(label, Interval(found.estimate, found.low, found.high, 0), low=0.8, note="interval over heads")]

    return test


def extended_band(results: Results, model: PretrainedModel) -> list[Part]:
    """W7: lower edge of the positional structure near 120, a weaker band near 96."""
    bands = results.bands(model)
    band = bands["band"]
    edge = interval_of(band["edge"], band["edge_ci"])
    peaks = [(row["centre"], row["centre_ci"]) for row in bands["clusters"]]
    nearest = min(peaks, key=lambda row: abs(row[0] - 96), default=None)
    local = None if nearest is None else interval_of(*nearest)
    return [
        _part("lower edge 120 ± 4", edge, 116, 124),
        _part("band nearest to 96 (± 3)", local, 93, 99, "" if local else "no cluster of layer peaks"),
    ]


def _bootstrap_median(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.median(values[rng.integers(len(values), size=(RESAMPLES, len(values)))], axis=1)


def retrieval_is_weak(layers: tuple[int, ...] | None) -> Callable[[Results, PretrainedModel], list[Part]]:
    """W8: RPD over RFIS is low in retrieval heads and about 1 in positional heads; intervals over heads."""

    def test(results: Results, model: PretrainedModel) -> list[Part]:
        heads = results.heads(model)
        chosen = heads if layers is None else heads[heads["layer"].isin(layers)]
        ratio = {
            kind: chosen.loc[chosen["head_class"] == kind, "d_ratio"].dropna().to_numpy(dtype=float)
            for kind in ("retrieval", "positional")
        }
        if min(len(values) for values in ratio.values()) < 2:
            counts = ", ".join(f"{len(values)} {kind}" for kind, values in ratio.items())
            return [Part("RPD/RFIS", None, "inconclusive", f"needs two heads of each class, found {counts}")]
        rng = np.random.default_rng(0)
        draws = {kind: _bootstrap_median(values, rng) for kind, values in ratio.items()}
        medians = {kind: float(np.median(values)) for kind, values in ratio.items()}

        def interval(value: float, drawn: np.ndarray) -> Interval:
            return Interval(value, *percentile_interval(drawn), 0)

        quotient = interval(medians["retrieval"] / medians["positional"], draws["retrieval"] / draws["positional"])
        positional = interval(medians["positional"], draws["positional"])
        return [
            _part("median RPD/RFIS, retrieval over positional heads < 0.5", quotient, high=0.5),
            _part("median RPD/RFIS of positional heads in [0.5, 2]", positional, 0.5, 2.0),
        ]

    return test


def profiles_agree(results: Results) -> Outcome:
    """W9: QR layer profiles of the Qwen3 sizes at the same relative depth; interval over samples."""
    families = ("Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")
    models = [m for m in (selection.pretrained_model(results.preset, f) for f in families) if m is not None]
    if len(models) < 2:
        return not_testable("fewer than two Qwen3 sizes in this preset")
    parts = []
    for first, second in combinations(models, 2):
        interval = profile_agreement(results.behavior(first)["qr"], results.behavior(second)["qr"])
        parts.append(_part(f"{first.name} and {second.name}", interval, low=0.5))
    samples = min(_num_samples(results, model, ("behavior",)) for model in models)
    return from_parts(parts, evidence=f"pretrained/{models[0].name}/behavior.npz", n_samples=samples)


def below_band(results: Results, model: PretrainedModel) -> list[Part]:
    """C7 on published weights: the comparison with initialisation is missing."""
    band = results.bands(model)["band"]
    return [
        _part("below/at band <= 0.1", interval_of(band["below_band_ratio"], band["below_band_ratio_ci"]), high=0.1),
        Part("the same over initialisation", None, "not_testable", "weights at initialisation are unknown"),
    ]


def same_place(results: Results, model: PretrainedModel) -> list[Part]:
    """C8 on published weights."""
    band = results.bands(model)["band"]
    chance = band["c8_chance"]
    part = _part("rate >= 0.8", interval_of(band["c8_rate"], band["c8_rate_ci"]), low=0.8)
    known = "unknown" if chance is None else f"{chance:.2f}"
    note = f"{band['num_layers_with_peak']} layers with an RPD peak; chance rate {known}"
    beaten = chance is not None and part.interval is not None and chance < part.interval.low
    decided = part.verdict if part.verdict != "reproduced" or beaten else "inconclusive"
    return [Part(part.label, part.interval, decided, note)]


NULL_NOTE = "band against the scaled closed-form null: the model at initialisation is unknown"


def _claim(
    number: str, family: str, statement: str, paper: str | None, tolerance: str, metric: str, test, **options
) -> Claim:
    return Claim(number, statement, paper, tolerance, metric, "W", family, on_model(family, test, **options))


def _with_smol(
    number: str, family: str, statement: str, paper: str | None, tolerance: str, metric: str, test, smol=None, **options
) -> list[Claim]:
    """The paper's row and the row for SmolLM2-135M."""
    return [
        _claim(number, family, f"{family}: {statement}", paper, tolerance, metric, test, **options),
        _claim(f"{number}-smollm2", SMOL, f"{SMOL}: {statement}", None, tolerance, metric, smol or test, **options),
    ]


CLAIMS = [
    *_with_smol("W1", "Qwen3-4B", "QR heads are sparse and concentrated in the middle layers", "sparse, middle layers",
                "top 5% of heads hold > half of the QR mass; > 60% of them in the middle half", "share", sparse,
                file="heads.csv", reads=("behavior",)),
    *_with_smol("W2", "Qwen3-4B", "heads exist with QR and LD both weak; QR and LD are not complementary",
                "not globally complementary", "corr(QR, 1-LD) < 0.7; > 5% of heads low in both",
                "correlation; share of heads", not_complementary, file="heads.csv", reads=("behavior",)),
    *_with_smol("W3", "Qwen3-4B", "QR heads put RFIS mass below the band, others at and above it",
                "retrieval heads depend on frequencies below the band", "AUROC > 0.8",
                "AUROC of the below-band share against the top 5% QR heads", below_band_share, note=NULL_NOTE,
                reads=("probe", "behavior")),
    *_with_smol("W4", "Qwen3-4B", "LDscore has no comparable relation", "no comparably clear relation",
                "AUROC nearer to 0.5 than in W3 by > 0.15", "difference of AUROC distances from 0.5", local_has_none,
                note=NULL_NOTE, reads=("probe", "behavior")),
    *_with_smol("W5", "Qwen3-4B", "at least two separated band-like peaks over layers", "several separated bands",
                ">= 2 clusters of layer peaks, > 3 groups apart", "clusters; distance (groups)", several_bands,
                note=NULL_NOTE),
    _claim("W6", "Llama3.1-8B-Instruct", "Llama3.1 layers 13 and 14: two types of heads visible",
           "two functions identifiable", "W3 within these layers: AUROC > 0.8", "AUROC", two_layers((13, 14)),
           file="heads.csv", reads=("probe", "behavior")),
    _claim("W7", "Gemma-7B", "Gemma-7B: positional structure reaches about group 120; weaker band near 96",
           "about 120; near 96", "edge 120 ± 4; local peak 96 ± 3", "frequency group", extended_band, note=NULL_NOTE),
    *_with_smol("W8", "Gemma-7B", "retrieval-type heads have weak RPD, positional heads RFIS ~ RPD",
                "weak RPD; matched RFIS and RPD (layers 14, 16)",
                "retrieval/positional < 0.5; positional in [0.5, 2] (limits ours)", "median of RPD/RFIS over heads",
                retrieval_is_weak((14, 16)), smol=retrieval_is_weak(None), file="heads.csv"),
    Claim("W9", "Head-level QR maps agree across Qwen3 sizes at the same relative depth", "similar organisation",
          "Spearman > 0.5 on the layer profile", "Spearman correlation", "W", "Qwen3-1.7B, 4B, 8B", profiles_agree),
    Claim("C7-smollm2", f"{SMOL}: RPD below the band is about 0", None,
          "<= 0.1 of the band value, and that ratio <= 0.25 of the ratio at initialisation",
          "mean RPD(r > r^+2) / RPD at the band", "W", SMOL, on_model(SMOL, below_band, note=NULL_NOTE)),
    Claim("C8-smollm2", f"{SMOL}: the band is seen in RFIS and in RPD at the same r", None,
          "within 1 group in >= 80% of the layers with an RPD peak", "share of layers", "W", SMOL,
          on_model(SMOL, same_place, note=NULL_NOTE)),
]  # fmt: skip
