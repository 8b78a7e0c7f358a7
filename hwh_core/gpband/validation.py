"""Do the head classes agree with behaviour? Statistics of S_ret against QRscore and LDscore, with intervals.

Every number is computed from means over samples; its interval comes from drawing probe samples (S_ret) and behaviour
samples (QR, LD) anew, independently, with the top 5% chosen anew in each draw. The heads are all heads of the model,
so no interval over heads is needed for a statement about this model; for AUROC and Spearman one is given beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hwh_core.statistics import (
    TOP_SHARE,
    StatisticsError,
    auroc,
    auroc_interval,
    pearson,
    percentile_interval,
    resample_weights,
    spearman,
    spearman_interval,
    top_heads,
)

from .errors import BandError
from .heads import CLASSES, HeadClasses
from .record import interval, number

LOW_QUANTILES = (0.5, 1 / 3)


def mean_over_samples(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted means [B, N] of values [n, N], NaN left out; ``weights`` [B, n]; NaN where nothing is defined."""
    defined = np.isfinite(values)
    total = weights @ defined.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, (weights @ np.where(defined, values, 0.0)) / total, np.nan)


def middle_half(layers: int) -> np.ndarray:
    """bool [L]: layers from one to three quarters of the depth."""
    depth = (np.arange(layers) + 0.5) / layers
    return (depth > 0.25) & (depth < 0.75)


def low_low_share(qr: np.ndarray, ld: np.ndarray, quantile: float) -> np.ndarray:
    """Share of heads [..., N] -> [...] whose QR and LD both lie below their own ``quantile`` over heads.

    With the median, complementary scores give 0 and unrelated ones 0.25.
    """
    low_qr = qr < np.quantile(qr, quantile, axis=-1, keepdims=True)
    low_ld = ld < np.quantile(ld, quantile, axis=-1, keepdims=True)
    return (low_qr & low_ld).mean(axis=-1)


def _check_scores(name: str, values: np.ndarray, layers: int, heads: int) -> np.ndarray:
    if values.ndim != 3 or values.shape[1:] != (layers, heads):
        raise BandError(
            f"{name}: expected [sample, {layers} layers, {heads} heads] as in the probe, got {values.shape}"
        )
    if len(values) < 2:
        raise BandError(f"{name}: {len(values)} sample(s); an interval over samples needs at least 2")
    return values.reshape(len(values), -1).astype(np.float64)


def validate(classes: HeadClasses, qr: np.ndarray, ld: np.ndarray, *, seed: int) -> dict[str, Any]:
    """All validation statistics of a model; ``qr`` and ``ld`` [sample, L, H], LD may hold NaN where undefined.

    There are as many resamples as ``classes`` holds draws of S_ret.

    Each is {estimate, ci, n_heads} (and ``ci_over_heads``), estimate None where it is undefined, with a ``note``.
    """
    layers, heads = classes.s_ret.shape
    resamples = len(classes.s_ret_draws)
    qr, ld = _check_scores("qr", qr, layers, heads), _check_scores("ld", ld, layers, heads)
    if len(qr) != len(ld):
        raise BandError(f"qr has {len(qr)} samples, ld {len(ld)}; both come from the same behaviour run")
    if not np.isfinite(qr).all():
        raise BandError(f"qr: {int((~np.isfinite(qr)).sum())} values are NaN or infinite; score the model again")
    weights = resample_weights(len(qr), resamples, np.random.default_rng(seed))
    even = np.full((1, len(qr)), 1.0 / len(qr))
    # Row 0 holds the estimates, the other rows the resamples.
    qr_rows = mean_over_samples(qr, np.concatenate([even, weights]))
    ld_rows = mean_over_samples(ld, np.concatenate([even, weights]))
    s_rows = np.concatenate([classes.s_ret.reshape(1, -1), classes.s_ret_draws.reshape(resamples, -1)])
    # A head whose LD is undefined in some draw is left out, so that all rows speak of the same heads.
    has_ld = np.isfinite(ld_rows).all(axis=0)
    has_s = np.isfinite(s_rows).all(axis=0)
    top_qr = top_heads(qr_rows)

    def record(
        function: Callable[..., np.ndarray], rows: tuple[np.ndarray, ...], keep: np.ndarray, minimum: int = 3
    ) -> dict[str, Any]:
        if keep.sum() < minimum:
            return {"estimate": None, "ci": None, "n_heads": int(keep.sum()), "note": "too few heads have both scores"}
        values = np.asarray(function(*(row[:, keep] for row in rows)))
        return {
            "estimate": number(values[0]),
            "ci": interval(percentile_interval(values[1:])),
            "n_heads": int(keep.sum()),
        }

    def over_heads(entry: dict[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
        if entry["estimate"] is None:
            return entry | {"ci_over_heads": None}
        try:
            found = make()
        except StatisticsError as error:
            return entry | {"ci_over_heads": None, "note": str(error)}
        return entry | {"ci_over_heads": interval((found.low, found.high))}

    def auroc_record(scores: np.ndarray, labels: np.ndarray, keep: np.ndarray) -> dict[str, Any]:
        entry = record(auroc, (scores, labels), keep)
        return over_heads(
            entry, lambda: auroc_interval(scores[0, keep], labels[0, keep], resamples=resamples, seed=seed)
        )

    def spearman_record(x: np.ndarray, y: np.ndarray, keep: np.ndarray) -> dict[str, Any]:
        entry = record(spearman, (x, y), keep)
        return over_heads(entry, lambda: spearman_interval(x[0, keep], y[0, keep], resamples=resamples, seed=seed))

    everyone = np.ones(layers * heads, dtype=bool)
    both = has_s & has_ld
    middle = np.repeat(middle_half(layers), heads)
    top_ld = np.zeros_like(top_qr)
    if has_ld.any():
        top_ld[:, has_ld] = top_heads(ld_rows[:, has_ld])

    def mass(mask: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda scores: (scores * mask).sum(axis=-1) / scores.sum(axis=-1)

    def distance_gap(s: np.ndarray, label_qr: np.ndarray, label_ld: np.ndarray) -> np.ndarray:
        return np.abs(auroc(s, label_qr) - 0.5) - np.abs(auroc(s, label_ld) - 0.5)

    return {
        "top_share": TOP_SHARE,
        "auroc_s_ret_top_qr": auroc_record(s_rows, top_qr, has_s),
        "auroc_s_ret_top_ld": auroc_record(s_rows, top_ld, both),
        "auroc_ld_top_qr": auroc_record(ld_rows, top_qr, has_ld),
        "auroc_distance_gap": record(distance_gap, (s_rows, top_qr, top_ld), both),
        "spearman_s_ret_qr": spearman_record(s_rows, qr_rows, has_s),
        "spearman_s_ret_ld": spearman_record(s_rows, ld_rows, both),
        "spearman_qr_one_minus_ld": spearman_record(qr_rows, 1.0 - ld_rows, has_ld),
        "pearson_qr_one_minus_ld": record(pearson, (qr_rows, 1.0 - ld_rows), has_ld),
        "low_low_share": record(lambda q, d: low_low_share(q, d, LOW_QUANTILES[0]), (qr_rows, ld_rows), has_ld),
        "low_low_share_third": record(lambda q, d: low_low_share(q, d, LOW_QUANTILES[1]), (qr_rows, ld_rows), has_ld),
        "qr_mass_top": record(
            lambda scores, top: (scores * top).sum(axis=-1) / scores.sum(axis=-1), (qr_rows, top_qr), everyone, 1
        ),
        "qr_mass_middle_half": record(mass(middle), (qr_rows,), everyone, 1),
        "top_heads_in_middle_half": record(
            lambda top: (top & middle).sum(axis=-1) / top.sum(axis=-1), (top_qr,), everyone, 1
        ),
        "confusion": confusion_by_third(classes, top_qr[0].reshape(layers, heads)),
    }


def confusion_by_third(classes: HeadClasses, top_qr: np.ndarray) -> list[dict[str, Any]]:
    """Counts of each class among top-QR heads and the others, for each third of the layers; ``top_qr`` bool [L, H]."""
    rows = []
    for name, part in zip(("first", "middle", "last"), np.array_split(np.arange(len(top_qr)), 3), strict=True):
        found, top = classes.head_class[part], top_qr[part]
        rows += [
            {
                "third": name,
                "layers": [int(layer) for layer in classes.layer_index[part]],
                "head_class": kind,
                "top_qr": int(((found == kind) & top).sum()),
                "other": int(((found == kind) & ~top).sum()),
            }
            for kind in CLASSES
        ]
    return rows
