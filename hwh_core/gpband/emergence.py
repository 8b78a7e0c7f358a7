"""The band of one model against the tokens that it has seen: its record, and from when on it is there.

Every step is measured by the rules of :mod:`hwh_core.gpband.detection` against the same model at initialisation, which
is the first step; the figure and the ledger read the tables that are made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from hwh_core.config import BandConfig

from .errors import BandError
from .maps import Maps
from .record import BandModel, band_record

DETECTED = "peak"
# A band has its final place from where on it stays within so many groups of the last one (the tolerance of C1 to C3).
SAME_PLACE = 1.0


@dataclass(frozen=True)
class Probe:
    """Maps of one step: ``tokens`` seen so far, ``loss`` in nats a token on the probed text, ``length`` in tokens."""

    step: int
    tokens: int
    loss: float
    length: int
    maps: Maps


def step_row(model: BandModel, probe: Probe, settings: BandConfig, seed: int) -> dict[str, Any]:
    """One row of the curve: what ``band_record`` says of one step at the training length; NaN where undefined."""
    record = band_record(model, {1.0: (probe.maps, probe.length)}, settings, seed)
    band, predicted = record["factors"]["1"], record["predicted"]
    low, high = band["peak_ci"] or (None, None)
    rfis_low, rfis_high = band["rfis_peak_ci"] or (None, None)
    row = {
        "model": model.name,
        "rope_theta": model.rope_theta,
        "length_tokens": model.length,
        "qk_norm": model.qk_norm,
        "seed": model.seed,
        "step": probe.step,
        "tokens": probe.tokens,
        "loss_nats_per_token": probe.loss,
        "verdict": band["verdict"],
        "peak_group": band["peak"],
        "peak_group_low": low,
        "peak_group_high": high,
        "rfis_peak_group": band["rfis_peak"],
        "rfis_peak_group_low": rfis_low,
        "rfis_peak_group_high": rfis_high,
        "prominence_nats": band["prominence"],
        "height_over_initial": band["height_over_initial"],
        "same_verdict_rate": band["same_verdict_rate"],
        "num_layers": band["num_layers"],
        "num_layers_with_peak": band["num_layers_with_peak"],
        "num_samples": band["num_samples"],
        "predicted_group_covariance": predicted["covariance"],
        "predicted_group_oka": predicted["oka"],
    }
    return {key: float("nan") if value is None else value for key, value in row.items()}


def step_maps(model: BandModel, probe: Probe) -> pd.DataFrame:
    """Mean maps over samples and heads of one step, long: one row a layer, frequency group and metric."""
    weight = probe.maps.sample_weight / probe.maps.sample_weight.sum()
    layers, groups = probe.maps.layer_rpd.shape[1:]
    with np.errstate(divide="ignore"):
        periods = 2.0 * np.pi / probe.maps.inv_freq
    tables = [
        pd.DataFrame(
            {
                "model": model.name,
                "step": probe.step,
                "tokens": probe.tokens,
                "layer": np.repeat(probe.maps.layer_index, groups),
                "frequency_group": np.tile(np.arange(groups), layers),
                "period_tokens": np.tile(periods, layers),
                "metric": metric,
                "value": np.einsum("n,nlf->lf", weight, values).reshape(-1),
            }
        )
        for metric, values in (("RFIS", probe.maps.layer_rfis), ("RPD", probe.maps.layer_rpd))
    ]
    return pd.concat(tables, ignore_index=True)


def curve_tables(
    model: BandModel, probes: Sequence[Probe], settings: BandConfig, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of all steps, ascending, and their mean maps. Raises :class:`BandError` where a step stands twice."""
    ordered = sorted(probes, key=lambda probe: probe.step)
    steps = [probe.step for probe in ordered]
    twice = [step for step in steps if steps.count(step) > 1]
    if twice:
        raise BandError(f"--probes: step {twice[0]} was given by two files")
    rows = pd.DataFrame([step_row(model, probe, settings, seed) for probe in ordered])
    return rows, pd.concat([step_maps(model, probe) for probe in ordered], ignore_index=True)


@dataclass(frozen=True)
class Emergence:
    """When the band appears, in tokens seen; None where it does not.

    ``first``: the first measured step with a band. ``stays``: from it on every measured step has one. ``settles``: from
    it on every measured step has one within :data:`SAME_PLACE` groups of the last.
    """

    first: float | None
    stays: float | None
    settles: float | None

    @property
    def vanished(self) -> bool:
        """Whether a band that had been detected was not at some later step."""
        return self.first is not None and self.first != self.stays


def emergence(tokens: Sequence[float], peaks: Sequence[float | None]) -> Emergence:
    """When the band appears: ``tokens`` seen, ascending, and the band's group at each, None or NaN without a band."""
    if len(tokens) != len(peaks) or not len(tokens):
        raise BandError(f"{len(tokens)} token counts and {len(peaks)} peaks: expected as many, and at least one")
    if any(later <= earlier for earlier, later in pairwise(tokens)):
        raise BandError(f"tokens: {list(tokens)} do not ascend")
    places = np.array([np.nan if peak is None else peak for peak in peaks], dtype=float)
    there = np.isfinite(places)
    same = there & (np.abs(places - places[-1]) <= SAME_PLACE)

    def onset(holds: np.ndarray) -> float | None:
        """Tokens from which on it holds without a break to the end."""
        broken = np.flatnonzero(~holds)
        start = 0 if len(broken) == 0 else int(broken[-1]) + 1
        return tokens[start] if start < len(tokens) else None

    return Emergence(
        first=tokens[int(there.argmax())] if there.any() else None, stays=onset(there), settles=onset(same)
    )


def emergence_of(rows: pd.DataFrame) -> Emergence:
    """When the band appears according to the rows of a curve; a shoulder alone (verdict ``edge``) is no band."""
    ordered = rows.sort_values("tokens")
    peaks = ordered["peak_group"].where(ordered["verdict"] == DETECTED)
    return emergence(ordered["tokens"].tolist(), peaks.tolist())
