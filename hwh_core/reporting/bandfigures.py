"""What the figures of the controlled Transformers (3, 11, 12) share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..config import ControlledModel
from . import panels
from .results import Results
from .selection import Condition
from .style import METRIC_TITLES


@dataclass(frozen=True)
class ConditionMaps:
    """Maps of all seeds of one condition: rows are layers, seed after seed."""

    condition: Condition
    seeds: list[int]
    rows: pd.DataFrame
    values: dict[str, np.ndarray]
    inv_freq: np.ndarray
    predicted: dict[str, float]
    observed: dict[int, float]

    @property
    def mean_observed(self) -> float:
        """Mean over seeds of the peaks that passed the null at initialisation; NaN where none did."""
        return float(np.mean(list(self.observed.values()))) if self.observed else float("nan")

    def profile(self, name: str) -> np.ndarray:
        """Mean over layers and seeds [frequency]."""
        return self.values[name].mean(axis=0)


def collect(results: Results, condition: Condition, models: list[ControlledModel]) -> ConditionMaps:
    """Layer x frequency maps (mean over heads and samples) of all seeds of a condition, trained and initial."""
    names = ("rfis", "rpd", "rfis_initial", "rpd_initial")
    stacked: dict[str, list[np.ndarray]] = {name: [] for name in names}
    rows, observed, predicted = [], {}, {}
    for model in models:
        maps, band = results.controlled_maps(model), results.band(model)
        for name in names:
            stacked[name].append(maps.layer_mean(name))
        rows.append(pd.DataFrame({"model": model.name, "seed": model.seed, "layer": maps.layer_index}))
        factor = band["factors"]["1"]
        if factor["verdict"] == "peak":
            observed[model.seed] = float(factor["peak"])
        predicted = {key: float(band["predicted"][key]) for key in ("covariance", "oka")}
    return ConditionMaps(
        condition=condition,
        seeds=[model.seed for model in models],
        rows=pd.concat(rows, ignore_index=True),
        values={name: np.concatenate(parts) for name, parts in stacked.items()},
        inv_freq=maps.inv_freq,
        predicted=predicted,
        observed=observed,
    )


def layer_rows(axis: Any, data: ConditionMaps) -> None:
    """Row labels ``layer`` or, with several seeds, ``seed·layer``, and a white line between seeds."""
    several = len(data.seeds) > 1
    labels = [
        f"s{seed} l{layer}" if several else str(layer)
        for seed, layer in zip(data.rows["seed"], data.rows["layer"], strict=True)
    ]
    panels.integer_ticks(axis, labels, "y", 12)
    if several:
        for position in np.flatnonzero(np.diff(data.rows["seed"].to_numpy())):
            axis.axhline(position + 0.5, color="white", linewidth=1.5)
        axis.set_ylabel("seed, layer")
    else:
        axis.set_ylabel("layer")


def metric_map(
    figure: Any, axis: Any, data: ConditionMaps, name: str, *, periods: bool = True, label: bool = True
) -> pd.DataFrame:
    """One map panel with predictions and the observed peak; returns the numbers that it shows."""
    values = data.values[name]
    image = panels.map_panel(axis, values, name)
    panels.frequency_axis(axis, data.inv_freq, periods=periods, label=label)
    panels.mark_bands(axis, data.predicted, data.mean_observed)
    layer_rows(axis, data)
    panels.colour_bar(figure, image, axis, METRIC_TITLES[name])
    return with_condition(panels.long_maps(values, data.inv_freq, data.rows, name), data, "trained")


def with_condition(table: pd.DataFrame, data: ConditionMaps, quantity: str) -> pd.DataFrame:
    """Add the condition, the predictions and the observed peak to a tidy table."""
    condition = data.condition
    observed = table["seed"].map(data.observed).astype(float)
    return table.assign(
        quantity=quantity,
        rope_theta=condition.rope_theta,
        length_tokens=condition.length,
        qk_norm=condition.qk_norm,
        predicted_covariance=data.predicted["covariance"],
        predicted_oka=data.predicted["oka"],
        observed_peak=observed,
    )


def marks_legend(figure: Any) -> None:
    """Legend of the predicted lines and of the observed peak."""
    handles = [
        plt.Line2D([], [], color="0.25", linestyle="--", linewidth=1.2),
        plt.Line2D([], [], color="0.25", linestyle=":", linewidth=1.2),
        plt.Line2D([], [], color=panels.OBSERVED, marker="^", linestyle="none"),
    ]
    labels = [
        "predicted, x*=4.493 (covariance)",
        "predicted, x*=3.657 (Oka et al.)",
        "observed RPD peak that passed the null at initialisation (mean over seeds)",
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=6.5)


def settings_of(collected: list[ConditionMaps]) -> dict[str, Any]:
    """Conditions, seeds and peaks for the manifest."""
    return {
        "conditions": [
            {"title": data.condition.title, "seeds": data.seeds, "observed": list(data.observed.values())}
            for data in collected
        ],
        "display": panels.DISPLAY_NOTE,
    }
