"""What the figures of the controlled Transformers (3, 11, 12) share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ..config import ControlledModel
from . import panels
from .results import Results
from .selection import Condition
from .style import METRIC_TITLES


@dataclass(frozen=True)
class ConditionMaps:
    """Maps of all seeds of one condition: rows are layers, seed after seed.

    ``observed`` holds the RPD peak (frequency group) of every seed where it passed the null at initialisation.
    """

    condition: Condition
    seeds: list[int]
    rows: pd.DataFrame
    values: dict[str, np.ndarray]
    inv_freq: np.ndarray
    predicted: dict[str, float]
    observed: dict[int, float]

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


# Most layer labels of one panel, and room for the labels of the seeds in points.
LAYER_LABELS = 12
SEED_LABEL_OFFSET = 17


def seed_blocks(data: ConditionMaps) -> dict[int, np.ndarray]:
    """Rows of every seed, from the top of the map."""
    return {seed: np.flatnonzero(data.rows["seed"].to_numpy() == seed) for seed in data.seeds}


def layer_rows(axis: Any, data: ConditionMaps) -> None:
    """Number the layers and name the seed beside its rows, in all panels alike; a white line between seeds."""
    step = int(np.ceil(len(data.rows) / LAYER_LABELS))
    ticks = np.concatenate([rows[::step] for rows in seed_blocks(data).values()])
    axis.set_yticks(ticks, data.rows["layer"].to_numpy()[ticks])
    axis.set_ylabel("layer", labelpad=SEED_LABEL_OFFSET)
    for seed, rows in seed_blocks(data).items():
        axis.annotate(
            f"seed {seed}", (0.0, rows.mean()), (-SEED_LABEL_OFFSET, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", rotation=90, ha="right", va="center", fontsize=6.5,
        )  # fmt: skip
        if rows[0] > 0:
            axis.axhline(rows[0] - 0.5, color="white", linewidth=1.5)


def mark_peaks(axis: Any, data: ConditionMaps) -> None:
    """Predicted positions, and the observed one of every seed at the lower edge of its rows."""
    panels.mark_predicted(axis, data.predicted)
    for seed, rows in seed_blocks(data).items():
        if seed in data.observed:
            panels.mark_observed(axis, data.observed[seed], float(rows[-1]))


def metric_map(
    figure: Any, axis: Any, data: ConditionMaps, name: str, *, periods: bool = True, label: bool = True
) -> pd.DataFrame:
    """One map panel with predictions and the observed peak; returns the numbers that it shows."""
    values = data.values[name]
    image = panels.map_panel(axis, values, name)
    panels.frequency_axis(axis, data.inv_freq, periods=periods, label=label)
    mark_peaks(axis, data)
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


def marks_legend(figure: Any, collected: list[ConditionMaps], more: Sequence[tuple[Any, str]] = ()) -> None:
    """Legend of the predicted lines and of the observed peaks, and ``more`` pairs of a handle and its label."""
    missing = sum(len(data.seeds) - len(data.observed) for data in collected)
    without = f"; {missing} of {sum(len(data.seeds) for data in collected)} have none" if missing else ""
    handles = [*panels.predicted_handles(2), panels.observed_handle()]
    labels = [
        "predicted, x*=4.493 (covariance)",
        "predicted, x*=3.657 (Oka et al.)",
        f"observed RPD peak, one a seed below its layers,\nwhere it passed the null at initialisation{without}",
    ]
    if len(more) > len(handles):
        # The first column is filled up, so that the second begins with ``more``.
        gap = len(more) - len(handles)
        handles += [Line2D([], [], linestyle="none") for _ in range(gap)]
        labels += [""] * gap
    for handle, label in more:
        handles.append(handle)
        labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=6.5, handlelength=3)


def settings_of(collected: list[ConditionMaps]) -> dict[str, Any]:
    """Conditions, seeds and peaks for the manifest."""
    return {
        "conditions": [
            {"title": data.condition.title, "seeds": data.seeds, "observed": data.observed} for data in collected
        ],
        "display": panels.DISPLAY_NOTE,
    }
