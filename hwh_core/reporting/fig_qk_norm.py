"""Norms of q and k by frequency beside RFIS and RPD, and where they disagree (appendix B.5 discusses norm bands)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..config import PretrainedModel
from . import panels
from .headfigures import band_legend, candidates, stacked
from .qk_norms import shares
from .results import Results
from .selection import pretrained_of_figure
from .style import METRIC_TITLES, OKABE_ITO, Drawing

COLOURS = {"norm": OKABE_ITO["black"], "rfis": OKABE_ITO["blue"], "rpd": OKABE_ITO["vermillion"]}
STYLES = {"norm": ":", "rfis": "-", "rpd": "--"}


def draw(results: Results) -> Drawing:
    """Of every model: layer means of the three shares, their differences, and their mean over all heads."""
    return stacked(
        pretrained_of_figure(results.preset, "qk_norm"), lambda _: 5.4, lambda part, model: _draw(part, results, model)
    )


def _draw(figure: Any, results: Results, model: PretrainedModel) -> Drawing:
    found = shares(results, model)
    inv_freq, layers = found.maps.frequencies, found.maps.layer_index
    predicted = candidates(model, inv_freq)
    axes = figure.subplots(2, 3)
    values = {name: found.by_layer(name) for name in ("norm", "rfis", "rpd")}
    rows = pd.DataFrame({"layer": layers})
    tables = []
    for axis, (name, map_) in zip(axes[0], values.items(), strict=True):
        image = panels.map_panel(axis, map_, name)
        panels.frequency_axis(axis, inv_freq, label=False)
        panels.mark_predicted(axis, predicted)
        panels.integer_ticks(axis, layers.tolist(), "y", 8)
        axis.set_title(f"{METRIC_TITLES[name]}, share", pad=3)
        panels.colour_bar(figure, image, axis, f"share ({panels.DISPLAY_NOTE})", location="bottom")
        tables.append(panels.long_maps(map_, inv_freq, rows, name).assign(quantity="share"))
    for axis, name in zip(axes[1, :2], ("rfis", "rpd"), strict=True):
        difference = values["norm"] - values[name]
        image = panels.map_panel(axis, difference, name, signed=True)
        panels.frequency_axis(axis, inv_freq, periods=False)
        panels.integer_ticks(axis, layers.tolist(), "y", 8)
        correlation = np.nanmedian(found.agreement(name))
        axis.set_title(f"norm minus {METRIC_TITLES[name]}\nmedian ρ over heads {correlation:.2f}", fontsize=8)
        panels.colour_bar(figure, image, axis, "difference of shares", location="bottom")
        tables.append(panels.long_maps(difference, inv_freq, rows, name).assign(quantity="norm share minus this"))
    for name in values:
        mean = getattr(found, name).mean(axis=0)
        axes[1, 2].plot(mean, color=COLOURS[name], linestyle=STYLES[name], label=METRIC_TITLES[name])
    panels.frequency_axis(axes[1, 2], inv_freq, periods=False)
    axes[1, 2].set_yscale("log")
    axes[1, 2].set_title("share, mean over heads\n(logarithmic)", fontsize=8)
    axes[1, 2].legend(fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer")
    figure.suptitle(f"{model.title}: norms of q and k beside RFIS and RPD, as shares of a head's sum over r")
    band_legend(figure, predicted)
    return Drawing(figure, pd.concat(tables, ignore_index=True), {"predicted": predicted})
