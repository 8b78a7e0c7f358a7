"""Heads of pretrained models: what claims W1 to W9, C7 and C8 are decided by, for every model and pair of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

from ..config import PretrainedModel
from ..gpband.heads import CLASSES
from . import claims_pretrained as claims
from .agreement import head_agreement, profile_agreement
from .claim_model import Part
from .headfigures import telling_layers
from .intervals import Interval
from .qk_norms import shares
from .results import Results
from .tables import Cell, Table

TESTS: dict[str, Callable[[Results, PretrainedModel], list[Part]]] = {
    "W1": claims.sparse,
    "W2": claims.not_complementary,
    "W3": claims.below_band_share,
    "W4": claims.local_has_none,
    "W5": claims.several_bands,
    "W6": lambda results, model: claims.two_layers(tuple(telling_layers(results.heads(model))))(results, model),
    "W8": claims.retrieval_is_weak(None),
    "C7": lambda results, model: claims.below_band(results, model)[:1],
    "C8": claims.same_place,
}


def _end(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(interval: Interval | None, n: int) -> Cell:
    if interval is None:
        return Cell("undefined")
    return Cell(interval.estimate, _end(interval.low), _end(interval.high), n=n, digits=3)


def _validation(results: Results, model: PretrainedModel) -> Iterator[tuple[str, str, Cell]]:
    """Rank correlations and the AUROC for LD heads: they have no claim of their own but stand beside W3 and W4."""
    found = results.bands(model)["validation"]
    for claim, name, words in (
        ("W3", "spearman_s_ret_qr", "Spearman of the share below the band and QRscore"),
        ("W4", "auroc_s_ret_top_ld", "AUROC of the share below the band for the top 5% LD heads"),
        ("W4", "spearman_s_ret_ld", "Spearman of the share below the band and LDscore"),
    ):
        entry = found[name]
        interval = claims.interval_of(entry["estimate"], entry["ci"])
        yield claim, words, _cell(interval, entry["n_heads"])


def _bands(results: Results, model: PretrainedModel) -> Iterator[tuple[str, str, Cell]]:
    bands = results.bands(model)
    for number, row in enumerate(bands["clusters"], start=1):
        cell = _cell(claims.interval_of(row["centre"], row["centre_ci"]), row["num_layers"])
        yield "W5, W7", f"band {number} (in {row['num_layers']} layers), frequency group", cell
    band = bands["band"]
    if band["c8_chance"] is not None:
        yield "C8", "the same rate by chance", Cell(band["c8_chance"], digits=3)
    yield "W7", "lower edge of the band, frequency group", _cell(claims.interval_of(band["edge"], band["edge_ci"]), 0)


def _classes(results: Results, model: PretrainedModel) -> Iterator[tuple[str, str, Cell]]:
    heads = results.heads(model)
    for kind in CLASSES:
        share = float((heads["head_class"] == kind).mean())
        yield "classes", f"share of heads: {kind}", Cell(share, n=len(heads), digits=3)


def _norms(results: Results, model: PretrainedModel) -> Iterator[tuple[str, str, Cell]]:
    found = shares(results, model)
    for name in ("rfis", "rpd"):
        values = found.agreement(name)
        low, median, high = np.nanpercentile(values, [25, 50, 75])
        words = f"Spearman over frequencies of |q||k| and {name.upper()}, median over heads [quartiles]"
        yield "B.5", words, Cell(float(median), float(low), float(high), n=int(np.isfinite(values).sum()), digits=3)


def make(results: Results) -> Table:
    """Rows by model and statistic, then pairs of models; only statistics whose files the preset has."""
    table = Table("heads", "Heads of pretrained models", ["model", "claim", "statistic"], ["estimate"])
    models = results.preset.pretrained.models
    for model in models:
        for claim, test in TESTS.items():
            for part in test(results, model):
                table.add((model.title, claim, part.label), {"estimate": _cell(part.interval, 0)})
        for more in (_validation, _bands, _classes, _norms):
            for claim, words, cell in more(results, model):
                table.add((model.title, claim, words), {"estimate": cell})
    for first, second in combinations(models, 2):
        scores = [results.behavior(model)["qr"].astype(float) for model in (first, second)]
        samples = min(len(values) for values in scores)
        pair = f"{first.title} and {second.title}"
        cells = {"estimate": _cell(profile_agreement(*scores), samples)}
        table.add((pair, "W9", "Spearman of the QRscore layer profiles"), cells)
        interval, chance = head_agreement(*scores)
        words = "Spearman of QRscore over heads, matched by depth and rank in the layer"
        table.add((pair, "W9", words), {"estimate": _cell(interval, samples)})
        table.add((pair, "W9", f"{words}, by chance"), {"estimate": Cell(chance, digits=3)})
    table.notes = [
        "Limits in a statistic's name are those of the claim; this table gives numbers, verdicts stand in the ledger.",
        "Intervals are over samples; of W6 and W8 over heads; of B.5 they are quartiles over heads.",
        "W6: the two layers that hold most of the top 5% QR heads.",
    ]
    if len(models) > 1:
        table.notes.append(
            "W9 by chance: the same after the layers of one model were shuffled, since ranks within a layer correlate "
            "by themselves."
        )
    return table
