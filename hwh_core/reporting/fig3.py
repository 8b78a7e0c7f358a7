"""Figure 3: the band of controlled Transformers moves with RoPE base and training length."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from . import bandfigures, panels
from .results import Results
from .selection import conditions, main_conditions
from .style import METRIC_TITLES, TEXT_WIDTH, Drawing


def draw(results: Results) -> Drawing:
    """Layer x frequency maps of RFIS (top) and RPD (bottom) for both bases at L and the lower base at 2L."""
    groups = conditions(results.preset)
    collected = [bandfigures.collect(results, c, groups[c]) for c in main_conditions(results.preset)]
    rows = max(len(data.rows) for data in collected)
    figure, axes = plt.subplots(
        2, len(collected), figsize=(TEXT_WIDTH, min(7.0, 3.4 + 0.18 * rows)), layout="constrained", squeeze=False
    )
    tables = []
    for column, data in enumerate(collected):
        for row, name in enumerate(("rfis", "rpd")):
            tables.append(
                bandfigures.metric_map(figure, axes[row, column], data, name, periods=row == 0, label=row == 1)
            )
            if row == 0:
                axes[row, column].set_title(data.condition.title, pad=3)
            if column > 0:
                axes[row, column].set_ylabel("")
    for row, name in enumerate(("rfis", "rpd")):
        axes[row, 0].set_ylabel(f"{METRIC_TITLES[name]}\n{axes[row, 0].get_ylabel()}")
    figure.suptitle(f"Controlled Transformers, mean over heads ({panels.DISPLAY_NOTE}; each panel its own scale)")
    bandfigures.marks_legend(figure, collected)
    return Drawing(figure, pd.concat(tables, ignore_index=True), bandfigures.settings_of(collected))
