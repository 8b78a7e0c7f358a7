"""Figure 8: QRscore and LDscore layer profiles across models, and the rank correlation between models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from . import panels
from .results import Results
from .selection import pretrained_of_figure
from .style import MARKERS, METRIC_TITLES, TEXT_WIDTH, Drawing, colours_of

GRID = 24


def relative_profile(heads: pd.DataFrame, name: str, points: int = GRID) -> np.ndarray:
    """Mean score of each layer, interpolated to ``points`` equally spaced relative depths in [0, 1]."""
    profile = heads.groupby("layer")[name].mean().sort_index()
    depth = np.linspace(0, 1, len(profile)) if len(profile) > 1 else np.zeros(1)
    return np.interp(np.linspace(0, 1, points), depth, profile.to_numpy())


def rank_correlations(profiles: list[np.ndarray]) -> np.ndarray:
    """Spearman correlation between all pairs of layer profiles."""
    count = len(profiles)
    matrix = np.eye(count)
    for i in range(count):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = stats.spearmanr(profiles[i], profiles[j]).statistic
    return matrix


def draw(results: Results) -> Drawing:
    """Layer profiles over relative depth (left) and Spearman correlations between models (right) for both scores."""
    models = pretrained_of_figure(results.preset, 8)
    heads = [results.heads(model) for model in models]
    figure, axes = plt.subplots(2, 2, figsize=(TEXT_WIDTH, 5.2), layout="constrained", width_ratios=[1.5, 1])
    depth = np.linspace(0, 1, GRID)
    colours = colours_of(model.name for model in models)
    tables = []
    for row, name in enumerate(("qr", "ld")):
        profiles = [relative_profile(table, name) for table in heads]
        for position, (model, profile) in enumerate(zip(models, profiles, strict=True)):
            axes[row, 0].plot(
                depth, profile, label=model.title, color=colours[model.name],
                marker=MARKERS[position % len(MARKERS)], markevery=3, markersize=3.5,
            )  # fmt: skip
            tables.append(
                pd.DataFrame(
                    {"model": model.name, "metric": METRIC_TITLES[name], "relative_depth": depth, "value": profile}
                )
            )
        axes[row, 0].set(xlabel="relative depth (first layer 0, last 1)", ylabel=f"{METRIC_TITLES[name]}, layer mean")
        axes[row, 0].set_ylim(bottom=0)
        matrix = rank_correlations(profiles)
        image = axes[row, 1].imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
        short = [model.name for model in models]
        axes[row, 1].set_xticks(range(len(short)), short, rotation=30, ha="right", fontsize=6)
        axes[row, 1].set_yticks(range(len(short)), short, fontsize=6)
        for i in range(len(short)):
            for j in range(len(short)):
                colour = "white" if abs(matrix[i, j]) > 0.6 else "black"
                axes[row, 1].text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=6, color=colour)
        axes[row, 1].set_title(f"{METRIC_TITLES[name]} profiles")
        panels.colour_bar(figure, image, axes[row, 1], "Spearman ρ")
    # Profiles fill their panels, so that a legend inside would cover some.
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(models)))
    figure.suptitle("Behaviour scores across model sizes and families")
    return Drawing(figure, pd.concat(tables, ignore_index=True), {"drawn": [model.name for model in models]})
