"""Sheets of needle grids (Figures 4 and 15)."""

from __future__ import annotations

import textwrap

import matplotlib.pyplot as plt
import numpy as np

from ..config import HwHModel, HwHScale
from . import panels
from .results import Results
from .selection import ARCHITECTURE_TITLES, mix_note
from .style import TEXT_WIDTH, Drawing

# Height of a line of the title in inches.
TITLE_LINE = 0.145


def sheet(results: Results, scale: HwHScale, models: list[HwHModel], columns: int, title: str) -> Drawing:
    """One grid per architecture, mean over seeds, with a shared colour scale from 0 to 100%."""
    cells = panels.average_cells(results.cells(scale, models))
    names = list(dict.fromkeys(model.architecture for model in models))
    columns = min(columns, len(names))
    rows = int(np.ceil(len(names) / columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(TEXT_WIDTH, 1.8 * rows), layout="constrained", squeeze=False, sharex=True,
        sharey=True,
    )  # fmt: skip
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for position, name in enumerate(names):
        axis = axes.flat[position]
        label = ARCHITECTURE_TITLES.get(name, name)
        image = panels.needle_grid(axis, cells[cells["architecture"] == name], label, scale.length)
        if position % columns == 0:
            axis.set_ylabel("depth of the needle (%)")
        if position + columns >= len(names):
            axis.set_xlabel("context length (tokens)")
            axis.tick_params(labelbottom=True)
    panels.colour_bar(figure, image, axes, "accuracy (%)", fraction=0.03, aspect=30)
    niah = results.preset.evaluation.niah
    metric, haystack = niah.metric.replace("_", " "), niah.haystack.replace("held_out", "held-out").replace("_", " ")
    seeds = sorted({sum(model.architecture == name for model in models) for name in names})
    mean = f"mean over {' or '.join(map(str, seeds))} seeds; " if seeds != [1] else ""
    mix = f"\n{textwrap.fill(mix_note(scale), 100)}" if mix_note(scale) else ""
    border = panels.boundary_note(sorted(cells["length"].unique().tolist()), scale.length)
    heading = (
        f"{title}, scale {scale.name}, trained at L={scale.length} ({metric}; haystack: {haystack})\n"
        f"{mean}white curve: mean over depth, read on the labels of the rows (0 to 100%)\n{border}{mix}"
    )
    figure.suptitle(heading, fontsize=8.5)
    # The panels keep their size however long the title is.
    figure.set_figheight(0.6 + TITLE_LINE * len(heading.splitlines()) + 1.8 * rows)
    settings = {"scale": scale.name, "drawn": [model.name for model in models]}
    return Drawing(figure, cells.assign(scale=scale.name), settings)
