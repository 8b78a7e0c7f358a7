"""Figure of ours: needles answered in every kind of prompt that was asked, by length, one curve a model.

Figures 4 and 15 show one kind. A small model may retrieve in a wording that it was trained on and in no other, or find
a lone number without its key; with the kinds side by side that is seen. Seeds have curves of their own: of two models
that differ in nothing else one may answer all needles and one none, which no mean tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from . import selection, task_scores
from .captions import title_of
from .intervals import PERCENT, combine
from .needle_grids import GRID_TITLES, WORDINGS, grid_title
from .panels import length_axis, length_label
from .results import Results
from .style import LINE_STYLES, MARKERS, TEXT_WIDTH, Drawing, colours_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS, LEGEND_COLUMNS = 2, 4
# Heights in inches: of a panel, of a line of the legend, and of the title with the axis below.
PANEL, LEGEND_LINE, AROUND = 1.85, 0.2, 0.65
# What the title of a panel says of a wording.
WORDS = {"second": "in no training text", "trained": "new keys and numbers"}
# Of the distance of two ticks, what the curves of one may take.
SPREAD = 0.6
BORDER = {"color": "0.4", "linestyle": (0, (1, 1)), "linewidth": 0.9}


def curves(cells: pd.DataFrame, architectures: list[str]) -> pd.DataFrame:
    """Percent of needles answered by architecture, seed and length: mean over depths, 95% interval over prompts."""
    rows = []
    for name in architectures:
        for length in sorted(cells["length"].unique().tolist()):
            values = task_scores.needle_values(cells, name, lambda n, wanted=length: n == wanted)
            for seed, found in values.items():
                interval = combine([found.value], [found.stderr]).within(PERCENT)
                rows.append(
                    {"architecture": name, "seed": seed, "length": length, "percent": found.value, "low": interval.low,
                     "high": interval.high, "n": found.n}
                )  # fmt: skip
    return pd.DataFrame(rows)


def panel(axis: Axes, table: pd.DataFrame, architectures: list[str], training_length: int) -> None:
    """Curves over the lengths of one grid, one a seed, side by side where those of several architectures meet."""
    lengths, colours = sorted(table["length"].unique().tolist()), colours_of(architectures)
    for position, name in enumerate(architectures):
        own = table[table["architecture"] == name]
        # Curves that lie on one another, most often at 0%, stay visible as markers beside each other; however many they
        # are, each is nearer to its own tick than to the border between two.
        shift = (position - (len(architectures) - 1) / 2) * min(0.09, SPREAD / len(architectures))
        seeds = own["seed"].nunique()
        label = f"{selection.ARCHITECTURE_TITLES.get(name, name)} ({seeds} seed{'s' * (seeds > 1)})"
        for _, curve in own.groupby("seed"):
            places = np.array([lengths.index(length) for length in curve["length"]]) + shift
            axis.plot(
                places, curve["percent"], color=colours[name], marker=MARKERS[position % len(MARKERS)], markersize=3.0,
                linewidth=0.9, linestyle=LINE_STYLES[position % len(LINE_STYLES)], clip_on=False, label=label,
            )  # fmt: skip
            label = "_"
    axis.set_xticks(range(len(lengths)), [length_label(length) for length in lengths])
    axis.set_ylim(-2, 102)
    within = sum(length <= training_length for length in lengths)
    if 0 < within < len(lengths):
        axis.axvline(within - 0.5, **BORDER)


def draw(results: Results) -> Drawing:
    """A panel a grid: the main one of Figures 4 and 15, then the additional ones of the preset."""
    scale = selection.scale_for(results.preset, "380M")
    models = selection.compared(scale)
    names = selection.architectures_of(scale)
    niah = results.preset.evaluation.niah
    grids = [(f"{GRID_TITLES[niah.variant]}, {WORDINGS['ruler']} (Figures 4 and 15)", results.cells(scale, models))]
    grids += [(grid_title(grid), results.additional_cells(scale, models, grid)) for grid in niah.additional]
    told = {grid_title(grid): f" ({WORDS[grid.wording]})" for grid in niah.additional if grid.wording in WORDS}
    tables = [(label, curves(cells, names)) for label, cells in grids]
    columns = min(COLUMNS, len(tables))
    rows = int(np.ceil(len(tables) / columns))
    figure, axes = plt.subplots(
        rows, columns, figsize=(TEXT_WIDTH, 4.0), layout="constrained", squeeze=False, sharey=True
    )
    for axis in axes.flat[len(tables) :]:
        axis.set_axis_off()
    for position, (axis, (label, table)) in enumerate(zip(axes.flat, tables, strict=False)):
        panel(axis, table, names, scale.length)
        prompts = sorted(table["n"].unique().tolist())
        points = f"mean over depths, {' or '.join(map(str, prompts))} prompts a point"
        axis.set_title(f"{label}{told.get(label, '')}\n{points}", fontsize=7.5)
        if position % columns == 0:
            axis.set_ylabel(f"needles answered\n(%, {niah.metric.replace('_', ' ')})", fontsize=7)
        if position + columns >= len(tables):
            axis.set_xlabel(length_axis(sorted(table["length"].unique().tolist())))
    handles, _ = axes.flat[0].get_legend_handles_labels()
    if any(table["length"].min() <= scale.length < table["length"].max() for _, table in tables):
        handles.append(Line2D([], [], **BORDER, label=f"training length {scale.length} | longer"))
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=7)
    figure.suptitle(title_of("Needles by kind of prompt, a curve a seed (ours)", scale), fontsize=8.5)
    lines = int(np.ceil(len(handles) / LEGEND_COLUMNS))
    figure.set_figheight(AROUND + PANEL * rows + LEGEND_LINE * lines)
    data = pd.concat([table.assign(grid=label) for label, table in tables], ignore_index=True)
    settings = {"scale": scale.name, "drawn": [model.name for model in models]}
    return Drawing(figure, data.assign(scale=scale.name), settings)
