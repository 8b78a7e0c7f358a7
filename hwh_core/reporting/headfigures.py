"""Figures made of per-head maps of a pretrained model (2, 10, 14) and of its layer means (9, 13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ..config import PretrainedModel
from ..gpband.stages import predicted_stages
from ..statistics import top_heads
from . import panels
from .results import Results
from .selection import FigureId, ReportError, layers_of_figure, pretrained_of_figure
from .style import METRIC_TITLES, TEXT_WIDTH, Drawing

# That fit beside one another below the panels.
LEGEND_CHARACTERS = 110


def candidates(model: PretrainedModel, inv_freq: np.ndarray) -> dict[str, float]:
    """Predicted band indices of a model's candidate training stages, by label (covariance constant).

    Where rows of ``inv_freq`` [row, F] differ they are those of the row that reaches lowest.
    """
    key = f"pretrained.models.{model.name}.candidate_bands"
    stages = predicted_stages(model.candidate_bands, panels.lowest(inv_freq), key)
    return {f"{stage.label}: r*={stage.covariance:.1f}": stage.covariance for stage in stages}


def stacked(
    models: list[PretrainedModel],
    height: Callable[[PretrainedModel], float],
    draw: Callable[[Any, PretrainedModel], Drawing],
) -> Drawing:
    """One figure of several models: each is drawn by ``draw`` into a part of ``height`` inches, one below the other.

    The data get a column ``model``, the settings of each model stand under its name.
    """
    heights = [height(model) for model in models]
    figure = plt.figure(figsize=(TEXT_WIDTH, sum(heights)), layout="constrained")
    # A part of its own would cost a single model room for nothing.
    parts = figure.subfigures(len(models), 1, height_ratios=heights) if len(models) > 1 else [figure]
    drawings = [draw(part, model) for part, model in zip(parts, models, strict=True)]
    tables = [drawing.data.assign(model=model.name) for drawing, model in zip(drawings, models, strict=True)]
    data = pd.concat(tables, ignore_index=True)
    settings = {model.name: drawing.settings for drawing, model in zip(drawings, models, strict=True)}
    return Drawing(figure, data[["model", *(column for column in data if column != "model")]], {"models": settings})


def band_legend(figure: Any, predicted: dict[str, float]) -> None:
    """One legend below the panels that names the dashed lines, drawn as in the panels."""
    if not predicted:
        return
    lines = panels.predicted_handles(len(predicted))
    longest = max((len(label) for label in predicted), default=0)
    columns = max(1, min(3, len(predicted), LEGEND_CHARACTERS // (longest + 8)))
    figure.legend(lines, list(predicted), loc="outside lower center", ncols=columns, title="predicted", handlelength=3)


def per_head(results: Results, model: PretrainedModel) -> tuple[pd.DataFrame, dict[str, np.ndarray], np.ndarray]:
    """Head table, maps and frequencies [head row, frequency] in its row order, of one model."""
    maps = results.pretrained_maps(model)
    heads = results.heads(model).sort_values(["layer", "head"]).reset_index(drop=True)
    row_of = {int(layer): row for row, layer in enumerate(maps.layer_index)}
    present = int((~np.isnan(maps.rpd).all(axis=(0, 3))).sum())
    if len(heads) != present or not set(heads["layer"]) <= set(row_of):
        raise ReportError(
            f"heads.csv of {model.name} has {len(heads)} heads, its probe {present} in {len(row_of)} layers; "
            "make both again from one model"
        )
    rows, columns = heads["layer"].map(row_of).to_numpy(), heads["head"].to_numpy()
    return heads, {name: maps.mean(name)[rows, columns] for name in ("rfis", "rpd")}, maps.frequencies[rows]


def sorted_heads(results: Results, models: list[PretrainedModel], title: str) -> Drawing:
    """Heat maps of all heads of some models, as :func:`_sorted_heads` draws them."""
    return stacked(models, lambda _: 4.6, lambda part, model: _sorted_heads(part, results, model, title))


def _sorted_heads(figure: Any, results: Results, model: PretrainedModel, title: str) -> Drawing:
    """Every head's RFIS and RPD over frequency, heads sorted by QRscore, with strips of QRscore and LDscore."""
    heads, maps, inv_freq = per_head(results, model)
    order = heads.sort_values(["qr", "layer", "head"], ascending=[False, True, True]).index.to_numpy()
    heads = heads.loc[order].reset_index(drop=True)
    predicted = candidates(model, inv_freq)
    axes = figure.subplots(1, 4, width_ratios=[0.05, 0.05, 1, 1], sharey=True)
    for axis, name in zip(axes[:2], ("qr", "ld"), strict=True):
        panels.strip(axis, heads[name].to_numpy(dtype=float), name)
    tables = []
    for axis, name in zip(axes[2:], ("rfis", "rpd"), strict=True):
        values = maps[name][order]
        image = panels.map_panel(axis, values, name)
        panels.frequency_axis(axis, inv_freq)
        panels.mark_predicted(axis, predicted)
        axis.set_title(METRIC_TITLES[name], pad=3)
        panels.colour_bar(figure, image, axis, f"{METRIC_TITLES[name]} ({panels.DISPLAY_NOTE})", location="bottom")
        keys = heads[["layer", "head", "head_class", "qr", "ld"]]
        tables.append(panels.long_maps(values, inv_freq[order], keys, name))
    axes[0].set_ylabel(f"heads by QRscore, highest on top (n = {len(heads)})")
    figure.suptitle(f"{model.title}: {title}")
    band_legend(figure, predicted)
    return Drawing(figure, pd.concat(tables, ignore_index=True), {"predicted": predicted})


def telling_layers(heads: pd.DataFrame, count: int = 2) -> list[int]:
    """The layers that hold most of the top 5% QR heads, ascending; among equals those with the higher mean score."""
    top = heads.assign(top=top_heads(heads["qr"].to_numpy(dtype=float))).groupby("layer")
    order = pd.DataFrame({"top": top["top"].sum(), "qr": top["qr"].mean()}).sort_values(["top", "qr"], ascending=False)
    return sorted(int(layer) for layer in order.index[:count])


def chosen_layers(results: Results, figure: FigureId, title: str) -> Drawing:
    """RFIS and RPD of every head of the layers that Figure 10 or 14 draws, as :func:`_chosen_layers` draws them.

    Layers that neither the preset nor the paper names are those of :func:`telling_layers`.
    """
    models = pretrained_of_figure(results.preset, figure)
    layers = {
        model.name: layers_of_figure(results.preset, figure, model) or telling_layers(results.heads(model))
        for model in models
    }
    return stacked(
        models,
        lambda model: 0.8 + 2.4 * len(layers[model.name]),
        lambda part, model: _chosen_layers(part, results, model, layers[model.name], title),
    )


def _chosen_layers(figure: Any, results: Results, model: PretrainedModel, layers: list[int], title: str) -> Drawing:
    """RFIS and RPD of every head of chosen layers of one model, heads sorted by their share of RFIS below the band.

    Predictions stand in layers with the lowest frequencies: others of the model (Gemma 3) have grids of their own.
    """
    heads, maps, inv_freq = per_head(results, model)
    present = [layer for layer in layers if layer in set(heads["layer"])]
    if len(present) < len(layers):
        raise ReportError(f"{model.name} has no layer {sorted(set(layers) - set(present))}; the figure shows {layers}")
    predicted = candidates(model, inv_freq)
    several = bool((inv_freq != inv_freq[0]).any())
    axes = figure.subplots(len(layers), 4, width_ratios=[0.05, 0.05, 1, 1], sharey="row", squeeze=False)
    tables = []
    for row, layer in enumerate(layers):
        chosen = heads[heads["layer"] == layer].sort_values("s_ret", ascending=False)
        order = chosen.index.to_numpy()
        for axis, name in zip(axes[row, :2], ("qr", "ld"), strict=True):
            panels.strip(axis, chosen[name].to_numpy(dtype=float), name)
        for axis, name in zip(axes[row, 2:], ("rfis", "rpd"), strict=True):
            values = maps[name][order]
            image = panels.map_panel(axis, values, name)
            own = inv_freq[order]
            panels.frequency_axis(axis, own, periods=row == 0 or several, label=row == len(layers) - 1)
            if np.array_equal(own[0], panels.lowest(inv_freq)):
                panels.mark_predicted(axis, predicted)
            panels.colour_bar(figure, image, axis, METRIC_TITLES[name])
            axis.set_title(f"layer {layer}: {METRIC_TITLES[name]}")
            keys = chosen[["layer", "head", "head_class", "s_ret", "qr", "ld"]].reset_index(drop=True)
            tables.append(panels.long_maps(values, own, keys, name))
        panels.integer_ticks(axes[row, 0], chosen["head"].tolist(), "y", 16)
        axes[row, 0].set_ylabel("head, by share of RFIS below the band", fontsize=7)
    named = " and ".join(map(str, layers))
    figure.suptitle(f"{model.title}: {title} {named} ({panels.DISPLAY_NOTE})")
    band_legend(figure, predicted)
    settings = {"drawn_layers": layers, "predicted": predicted}
    return Drawing(figure, pd.concat(tables, ignore_index=True), settings)


def layer_means(results: Results, models: list[PretrainedModel], title: str) -> Drawing:
    """Layer means of some models, as :func:`_layer_means` draws them."""
    return stacked(
        models,
        lambda model: min(6.5, 1.9 + 0.09 * len(results.pretrained_maps(model).layer_index)),
        lambda part, model: _layer_means(part, results, model, title),
    )


def _layer_means(figure: Any, results: Results, model: PretrainedModel, title: str) -> Drawing:
    """Mean over heads of RFIS and RPD by layer and frequency, with the bands that were found."""
    maps = results.pretrained_maps(model)
    bands = results.bands(model)
    inv_freq = maps.frequencies
    predicted = candidates(model, inv_freq)
    axes = figure.subplots(1, 2, sharey=True)
    tables = []
    for axis, name in zip(axes, ("rfis", "rpd"), strict=True):
        values = maps.layer_mean(name)
        image = panels.map_panel(axis, values, name)
        panels.frequency_axis(axis, inv_freq, target=8)
        panels.mark_predicted(axis, predicted)
        panels.integer_ticks(axis, maps.layer_index.tolist(), "y", 10)
        axis.set_title(f"{METRIC_TITLES[name]}, mean over heads", pad=3)
        panels.colour_bar(figure, image, axis, f"{METRIC_TITLES[name]} ({panels.DISPLAY_NOTE})", location="bottom")
        rows = pd.DataFrame({"layer": maps.layer_index})
        tables.append(panels.long_maps(values, inv_freq, rows, name))
    centres = cluster_centres(bands)
    for centre in centres:
        panels.mark_observed(axes[1], centre)
    axes[0].set_ylabel("layer")
    figure.suptitle(f"{model.title}: {title} ({triangles_note(centres)})")
    band_legend(figure, predicted)
    settings = {"predicted": predicted, "bands": centres}
    return Drawing(figure, pd.concat(tables, ignore_index=True), settings)


def triangles_note(centres: list[float]) -> str:
    """What the triangles of :func:`layer_means` show, with their number and places."""
    if not centres:
        return "no band was found in RPD"
    places = ", ".join(f"{centre:.1f}" for centre in centres)
    return f"triangle{'s' * (len(centres) > 1)}: band{'s' * (len(centres) > 1)} found in RPD, r={places}"


def cluster_centres(bands: dict) -> list[float]:
    """Centres of the band clusters in bands.json, from the highest frequency on."""
    return sorted(float(cluster["centre"]) for cluster in bands["clusters"])
