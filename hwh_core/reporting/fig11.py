"""Figure 11: all controlled Transformers, and what training changed against the same model at initialisation."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from . import bandfigures, panels
from .results import Results
from .selection import conditions, main_conditions
from .style import TEXT_WIDTH, Drawing


def draw(results: Results) -> Drawing:
    """One row per condition: RFIS, RPD, and RPD trained minus RPD at initialisation on the same samples."""
    groups = conditions(results.preset, qk_norm=True)
    # Those of Figure 3 first, in its order.
    ordered = dict.fromkeys([*main_conditions(results.preset), *sorted(groups)])
    collected = [bandfigures.collect(results, c, groups[c]) for c in ordered]
    heights = [1.35 + 0.11 * len(data.rows) for data in collected]
    figure, axes = plt.subplots(
        len(collected), 3, figsize=(TEXT_WIDTH, 0.9 + sum(heights)), layout="constrained", squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    tables = []
    for row, data in enumerate(collected):
        last = row == len(collected) - 1
        for column, name in enumerate(("rfis", "rpd")):
            tables.append(bandfigures.metric_map(figure, axes[row, column], data, name, label=last))
        change = data.values["rpd"] - data.values["rpd_initial"]
        axis = axes[row, 2]
        image = panels.map_panel(axis, change, "rpd", signed=True)
        panels.frequency_axis(axis, data.inv_freq, label=last)
        bandfigures.mark_peaks(axis, data)
        bandfigures.layer_rows(axis, data)
        panels.colour_bar(figure, image, axis, "RPD − RPD at init")
        changed = panels.long_maps(change, data.inv_freq, data.rows, "rpd")
        tables.append(bandfigures.with_condition(changed, data, "trained minus initialisation"))
        for axis in axes[row, 1:]:
            axis.set_ylabel("")
        axes[row, 0].set_ylabel(f"{data.condition.title}\n{axes[row, 0].get_ylabel()}", fontsize=7)
    for axis, title in zip(axes[0], ("RFIS", "RPD", "RPD, trained − initialisation"), strict=True):
        axis.set_title(title, pad=3)
    figure.suptitle(f"Controlled Transformers with QKNorm (RFIS, RPD: {panels.DISPLAY_NOTE})")
    bandfigures.marks_legend(figure, collected)
    return Drawing(figure, pd.concat(tables, ignore_index=True), bandfigures.settings_of(collected))
