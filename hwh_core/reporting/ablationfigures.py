"""Bars of the ablations (Figures 5 and 6)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from . import task_scores
from .captions import title_of
from .intervals import combine
from .results import Results
from .selection import ARCHITECTURE_TITLES, models_of, scale_for
from .style import HATCHES, TEXT_WIDTH, Drawing, colours_of

SEED = {"linestyle": "none", "marker": "o", "color": "white", "markeredgecolor": "black", "markersize": 3}


def groups(
    scores: pd.DataFrame, cells: pd.DataFrame, length: int, architecture: str
) -> dict[str, task_scores.SeedValues]:
    """The bar groups of one architecture: values by seed, empty where something was not run."""
    needles = "NIAH-S2\n(RULER's wording)"
    return {
        "commonsense\n(7 tasks)": task_scores.commonsense(scores, architecture, with_lambada=False),
        "real-world\nretrieval": task_scores.retrieval(scores, architecture),
        f"{needles}\n≤ {length}": task_scores.needle_values(cells, architecture, lambda n: n <= length),
        f"{needles}\n> {length}, ≤ {2 * length}": task_scores.needle_values(
            cells, architecture, lambda n: length < n <= 2 * length
        ),
        f"{needles}\n> {2 * length}": task_scores.needle_values(cells, architecture, lambda n: n > 2 * length),
    }


def bars(results: Results, architectures: tuple[str, ...], title: str) -> Drawing:
    """Grouped bars with 95% intervals (rows, and seeds where there are several) and one dot per seed."""
    scale = scale_for(results.preset, "380M", architectures)
    models = models_of(scale, architectures)
    scores, cells = results.scores(scale, models), results.cells(scale, models)
    figure, axis = plt.subplots(figsize=(TEXT_WIDTH, 2.9), layout="constrained")
    width = 0.8 / len(architectures)
    rows, colours = [], colours_of(architectures)
    for position, name in enumerate(architectures):
        label = ARCHITECTURE_TITLES.get(name, name)
        for index, (group, values) in enumerate(groups(scores, cells, scale.length, name).items()):
            x = index + (position - (len(architectures) - 1) / 2) * width
            row = {"architecture": name, "group": group.replace("\n", " "), "seeds": len(values)}
            if not values:
                axis.text(x, 1.5, "not run", rotation=90, ha="center", va="bottom", fontsize=6.5, color="0.35")
                rows.append({**row, "percent": np.nan, "low": np.nan, "high": np.nan, "n": 0})
                continue
            interval = combine([v.value for v in values.values()], [v.stderr for v in values.values()])
            low, high = max(0.0, interval.low), min(100.0, interval.high)
            mean = interval.estimate
            axis.bar(
                x, mean, width * 0.92, color=colours[name], edgecolor="black", linewidth=0.5,
                hatch=HATCHES[position % 6], yerr=[[mean - low], [high - mean]],
                error_kw={"linewidth": 0.8, "capsize": 2}, label=label if index == 0 else None,
            )  # fmt: skip
            # A bar of 0 is none to the eye, and reads like one that is missing.
            axis.annotate(
                f"{mean:.1f}", (x, high), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=6.5
            )
            if len(values) > 1:
                axis.plot([x] * len(values), [v.value for v in values.values()], **SEED, clip_on=False, zorder=5)
            n = sum(v.n for v in values.values())
            rows.append({**row, "percent": mean, "low": low, "high": high, "n": n})
    names = list(groups(scores, cells, scale.length, architectures[0]))
    axis.set_xticks(range(len(names)), names)
    axis.set(ylabel="accuracy (%), with 95% intervals", ylim=(0, 109), xlim=(-0.6, len(names) - 0.4))
    axis.grid(axis="y", linewidth=0.3, color="0.85")
    axis.set_axisbelow(True)
    handles, _ = axis.get_legend_handles_labels()
    if any(row["seeds"] > 1 for row in rows):
        handles.append(plt.Line2D([], [], **SEED, label="each seed alone (none: one seed)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(title_of(title, scale), fontsize=8.5)
    return Drawing(figure, pd.DataFrame(rows), {"scale": scale.name, "drawn": [model.name for model in models]})
