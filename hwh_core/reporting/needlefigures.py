"""Sheets of needle grids (Figures 4 and 15)."""

from __future__ import annotations

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

from ..config import HwHModel, HwHScale
from . import panels
from .captions import title_of
from .results import Results
from .selection import ARCHITECTURE_TITLES
from .style import TEXT_WIDTH, Drawing

# Heights in inches: of a row of grids, what upright labels of many lengths add, and of title and legend together.
ROW, UPRIGHT, AROUND = 1.8, 0.3, 0.95


def sheet(results: Results, scale: HwHScale, models: list[HwHModel], columns: int, title: str) -> Drawing:
    """One grid per architecture, mean over seeds, with a shared colour scale from 0 to 100%."""
    cells = panels.average_cells(results.cells(scale, models))
    counts = Counter(model.architecture for model in models)
    names, seeds = list(counts), set(counts.values())
    columns = min(columns, len(names))
    rows = int(np.ceil(len(names) / columns))
    lengths = sorted(cells["length"].unique().tolist())
    row = ROW + UPRIGHT * panels.upright(lengths)
    figure, axes = plt.subplots(
        rows, columns, figsize=(TEXT_WIDTH, AROUND + row * rows), layout="constrained", squeeze=False, sharex=True,
        sharey=True,
    )  # fmt: skip
    niah = results.preset.evaluation.niah
    metric, haystack = niah.metric.replace("_", " "), niah.haystack.replace("held_out", "held-out").replace("_", " ")
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for position, name in enumerate(names):
        axis = axes.flat[position]
        label = ARCHITECTURE_TITLES.get(name, name)
        if len(seeds) > 1:
            label = f"{label} ({counts[name]})"
        image = panels.needle_grid(axis, cells[cells["architecture"] == name], label, scale.length)
        if position % columns == 0:
            axis.set_ylabel(f"depth of the needle\nin {haystack} (%)")
        if position + columns >= len(names):
            axis.set_xlabel(panels.length_axis(lengths), fontsize=7)
            axis.tick_params(labelbottom=True)
    mean = ", mean over as many seeds as in brackets"
    if len(seeds) == 1:
        mean = f", mean over {min(seeds)} seeds" if seeds != {1} else ""
    panels.colour_bar(figure, image, axes, f"accuracy (%){mean}\n{metric}, RULER's wording", fraction=0.03, aspect=30)
    handles = panels.needle_handles(lengths, scale.length)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle(title_of(f"{title}, L = {scale.length}", scale), fontsize=8.5)
    settings = {"scale": scale.name, "drawn": [model.name for model in models]}
    return Drawing(figure, cells.assign(scale=scale.name), settings)
