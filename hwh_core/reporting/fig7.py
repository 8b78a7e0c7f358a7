"""Figure 7: QRscore and LDscore of every head, with layer profiles (Qwen3-4B in the paper)."""

from __future__ import annotations

from typing import Any

from ..config import PretrainedModel
from . import panels
from .headfigures import stacked
from .results import Results
from .selection import pretrained_of_figure
from .style import COLOUR_MAPS, METRIC_TITLES, OKABE_ITO, Drawing


def draw(results: Results) -> Drawing:
    """Maps layer x head of both scores and their mean and maximum over the heads of each layer, of every model."""
    return stacked(
        pretrained_of_figure(results.preset, 7),
        lambda model: min(6.5, 1.6 + 0.09 * results.heads(model)["layer"].nunique()),
        lambda part, model: _draw(part, results, model),
    )


def _draw(figure: Any, results: Results, model: PretrainedModel) -> Drawing:
    heads = results.heads(model)
    layers = sorted(heads["layer"].unique())
    axes = figure.subplots(1, 4, sharey=True, width_ratios=[1, 0.55, 1, 0.55])
    for offset, name in ((0, "qr"), (2, "ld")):
        matrix = panels.head_matrix(heads, name)
        title = METRIC_TITLES[name]
        image = axes[offset].imshow(matrix, cmap=COLOUR_MAPS[name], vmin=0)
        panels.integer_ticks(axes[offset], list(range(matrix.shape[1])), "x", 9)
        axes[offset].set(title=f"{title} by head", xlabel="head")
        panels.colour_bar(figure, image, axes[offset], f"{title} (share of attention)", location="bottom")
        profile = heads.groupby("layer")[name]
        rows = range(len(layers))
        side = axes[offset + 1]
        side.plot(profile.max(), rows, color=OKABE_ITO["orange"], linestyle="--", label="maximum")
        side.plot(profile.mean(), rows, color=OKABE_ITO["blue"], label="mean")
        side.set(title="layer profile", xlabel=title)
        side.set_xlim(left=0)
        side.grid(axis="x", linewidth=0.3, color="0.8")
        side.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=7)
    panels.integer_ticks(axes[0], layers, "y", 10)
    axes[0].set_ylabel("layer")
    figure.suptitle(f"{model.title}: retrieval (QRscore) and local-streaming (LDscore) tendency of every head")
    data = heads[["layer", "head", "qr", "ld"]].sort_values(["layer", "head"]).reset_index(drop=True)
    return Drawing(figure, data)
