"""Causal checks: what the model loses without heads of a class or without rotation, beside random sets of that size."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from .causal import FIGURE, MEASURES, SUMMARY, UNITS
from .headfigures import stacked
from .results import CAUSAL_COLUMNS, ResultFolder, Results
from .selection import pretrained_of_figure
from .style import OKABE_ITO, TEXT_WIDTH, Drawing, use_style, write_drawing

HEIGHT = 2.9
SAMPLES = {"loss": "windows", "needle": "needles", "exact": "needles"}


def draw(results: Results) -> Drawing:
    """The checks of the preset's models, one below the other, as :func:`_draw` draws them."""
    return stacked(
        pretrained_of_figure(results.preset, "causal"),
        lambda _: HEIGHT,
        lambda part, model: _draw(part, results.causal(model), model.title),
    )


def draw_checks(folder: Path, title: str) -> list[Path]:
    """Draw the checks that lie in ``folder`` as fig_causal.pdf, .png and .csv there; return their paths.

    Raises :class:`ReportError` where causal_summary.csv is missing or damaged, and the errors of
    :func:`write_drawing`.
    """
    import matplotlib.pyplot as plt

    started, source = time.time(), ResultFolder(folder)
    use_style()
    figure = plt.figure(figsize=(TEXT_WIDTH, HEIGHT), layout="constrained")
    drawing = _draw(figure, source.table(SUMMARY, CAUSAL_COLUMNS), title)
    # The model of a probe stands in no preset.
    results = SimpleNamespace(used=source.used, preset=SimpleNamespace(preset=None))
    return write_drawing(drawing, folder / FIGURE, results, "causal", started)


def _draw(figure: Any, summary: pd.DataFrame, title: str) -> Drawing:
    """One row an intervention, one column a measure: change with its interval over samples, and random sets."""
    names = list(dict.fromkeys(summary["intervention"]))
    axes = figure.subplots(1, len(MEASURES), sharey=True)
    drawn = sorted(set(summary["n_draws"])) if "n_draws" in summary else []
    random = f"{' or '.join(map(str, drawn))} random sets" if drawn else "random sets"
    for axis, (measure, words) in zip(axes, MEASURES.items(), strict=True):
        rows = summary[summary["measure"] == measure].set_index("intervention").loc[names]
        places = np.arange(len(names))
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.barh(
            places, rows["random_high"] - rows["random_low"], left=rows["random_low"], height=0.5, color="0.8",
            label=f"{random}, least to largest",
        )  # fmt: skip
        axis.plot(rows["random_change"], places, "|", color="0.3", markersize=9, label=f"{random}, mean")
        ends = np.abs(rows[["change_low", "change_high"]].to_numpy().T - rows["change"].to_numpy())
        axis.errorbar(
            rows["change"], places, xerr=ends, fmt="o", color=OKABE_ITO["vermillion"], markersize=4, capsize=2,
            label="this set, 95% over samples",
        )  # fmt: skip
        axis.set_title(f"{words}\nunchanged: {rows['baseline'].iloc[0]:.2f}", fontsize=8)
        axis.set_xlabel(f"change ({rows['n_samples'].iloc[0]} {SAMPLES[measure]})", fontsize=8)
    counts = summary.drop_duplicates("intervention").set_index("intervention").loc[names]
    units = [f"{name}\n{row.places} {UNITS[row.kind]}" for name, row in zip(names, counts.itertuples(), strict=True)]
    axes[0].set_yticks(range(len(names)), units, fontsize=7)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
    figure.suptitle(f"{title}: heads silenced, rotation left out (ours)", fontsize=8.5)
    return Drawing(figure, summary)
