"""Not a figure of the paper: the band of controlled Transformers against the tokens that they have seen."""

from __future__ import annotations

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..gpband.emergence import DETECTED
from . import panels
from .band_emergence import count_text, emergence_text
from .results import Results
from .selection import condition_of
from .style import OKABE_ITO, TEXT_WIDTH, Drawing

# Height at which a step without any band is marked, as a share of the panel.
NOTHING_HEIGHT = 0.03
# Share of a decade that the way from 0 to the first tokens takes on the axis.
LINEAR_SHARE = 0.5


# How the place of the band is marked, by verdict of the extraction.
MARKERS = {
    DETECTED: {
        "marker": "o", "color": panels.OBSERVED, "markeredgecolor": "white", "markersize": 5.5, "linestyle": "none",
    },
    "edge": {
        "marker": "o", "color": panels.OBSERVED, "markerfacecolor": "none", "markersize": 5.5, "linestyle": "none",
    },
    "none": {"marker": "x", "color": OKABE_ITO["sky"], "markersize": 5, "linestyle": "none"},
}  # fmt: skip


def token_edges(tokens: np.ndarray) -> np.ndarray:
    """Edges [n + 1] of the columns around ``tokens`` [n], which start at 0: half-way on the axis of the tokens."""
    first, positive = tokens[1], tokens[1:]
    between = np.sqrt(positive[:-1] * positive[1:])
    last = positive[-1] * np.sqrt(positive[-1] / positive[-2])
    return np.concatenate([[-first / 2, first / 2], between, [last]])


def token_axis(axis: Axes, tokens: np.ndarray, label: bool) -> None:
    """A logarithmic axis of tokens with room for 0, the model at initialisation."""
    axis.set_xscale("symlog", linthresh=tokens[1], linscale=LINEAR_SHARE)
    edges = token_edges(tokens)
    axis.set_xlim(edges[0], edges[-1])
    decades = 10.0 ** np.arange(np.floor(np.log10(tokens[1])), np.ceil(np.log10(tokens[-1])) + 1)
    ticks = [tick for decade in decades for tick in (decade, 3 * decade) if tokens[1] <= tick <= edges[-1]]
    axis.set_xticks([0.0, *ticks], ["0", *map(count_text, ticks)])
    axis.minorticks_off()
    if label:
        axis.set_xlabel("tokens seen (logarithmic but for 0, initialisation)")


def _band_panel(figure: plt.Figure, axis: Axes, rows: pd.DataFrame, rpd: pd.DataFrame) -> None:
    """RPD over tokens and frequency group, predicted lines, and the band of every step."""
    tokens = rows["tokens"].to_numpy(dtype=float)
    values = rpd.pivot(index="frequency_group", columns="tokens", values="value")
    groups = len(values)
    image = axis.pcolormesh(
        token_edges(tokens), np.arange(groups + 1) - 0.5, values.to_numpy(), cmap=panels.COLOUR_MAPS["rpd"],
        norm=panels.PowerNorm(panels.DISPLAY_GAMMA, vmin=0.0, vmax=float(values.to_numpy().max()) or 1.0),
        rasterized=True,
    )  # fmt: skip
    panels.colour_bar(figure, image, axis, f"RPD ({panels.DISPLAY_NOTE})")
    axis.set_ylim(-0.5, groups - 0.5)
    axis.set_yticks(panels.frequency_ticks(groups))
    for style, name in zip(panels.PREDICTED_STYLES, ("covariance", "oka"), strict=False):
        line = axis.axhline(rows[f"predicted_group_{name}"].iloc[0], color="white", linestyle=style, linewidth=1.0)
        line.set_path_effects(panels.THIN_OUTLINE)
    for kind, look in MARKERS.items():
        chosen = rows[rows["verdict"] == kind]
        if kind == "none":
            height = np.full(len(chosen), NOTHING_HEIGHT)
            axis.plot(chosen["tokens"], height, transform=axis.get_xaxis_transform(), zorder=6, **look)
            continue
        peak = chosen["peak_group"]
        error = np.nan_to_num([peak - chosen["peak_group_low"], chosen["peak_group_high"] - peak])
        axis.errorbar(chosen["tokens"], peak, yerr=error.clip(0), zorder=6, capsize=2, elinewidth=1.0, **look)


def _legend(figure: plt.Figure, verdicts: set[str]) -> None:
    """Legend with the marks of these verdicts alone: what is nowhere drawn only lets a reader search for it."""
    meanings = {
        DETECTED: "band that passed the null at initialisation, 95% over samples",
        "edge": "only a shoulder: not counted as a band",
        "none": "no band",
    }
    drawn = [verdict for verdict in MARKERS if verdict in verdicts]
    handles = [*panels.predicted_handles(2), *(Line2D([], [], **MARKERS[verdict]) for verdict in drawn)]
    labels = [
        "predicted, x*=4.493 (covariance)",
        "predicted, x*=3.657 (Oka et al.)",
        *(meanings[verdict] for verdict in drawn),
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=6.5, handlelength=3)


def _tidy(rows: pd.DataFrame, rpd: pd.DataFrame) -> pd.DataFrame:
    """What the panels show, in long form: place of the band, loss, and RPD by frequency group."""
    keys = ["model", "rope_theta", "length_tokens", "seed"]
    about = rows[[*keys, "step", "tokens", "verdict", "predicted_group_covariance", "predicted_group_oka"]]
    band = about.assign(
        quantity="frequency group of the band",
        value=rows["peak_group"], low=rows["peak_group_low"], high=rows["peak_group_high"],
    )  # fmt: skip
    loss = about.assign(quantity="loss (nats/token)", value=rows["loss_nats_per_token"])
    maps = about.merge(rpd, on=["step", "tokens"]).assign(quantity="RPD, mean over samples, heads and layers")
    return pd.concat([band, loss, maps], ignore_index=True)


def draw(results: Results) -> Drawing:
    """One column a model: the band on the map of RPD over tokens (top) and the loss on the probed text (bottom)."""
    models = results.preset.controlled.curve_models
    figure, axes = plt.subplots(
        2, len(models), figsize=(max(TEXT_WIDTH / 2, min(TEXT_WIDTH, 3.6 * len(models))), 4.6), layout="constrained",
        squeeze=False, height_ratios=[3, 1], sharex="col", sharey="row",
    )  # fmt: skip
    tables, told = [], {}
    for column, model in enumerate(models):
        rows = results.curve(model).sort_values("tokens", ignore_index=True)
        maps = results.curve_maps(model)
        rpd = maps[maps["metric"] == "RPD"].groupby(["step", "tokens", "frequency_group", "period_tokens"])["value"]
        rpd = rpd.mean().reset_index()
        upper, lower = axes[:, column]
        _band_panel(figure, upper, rows, rpd)
        told[model.name] = emergence_text(rows)
        title = f"{condition_of(model).title}, seed {model.seed}"
        upper.set_title(f"{title}\n{textwrap.fill(told[model.name], 60)}", pad=3, fontsize=7)
        lower.plot(rows["tokens"], rows["loss_nats_per_token"], color=OKABE_ITO["blue"], marker="o", markersize=3)
        lower.grid(axis="y", linewidth=0.3, color="0.8")
        token_axis(lower, rows["tokens"].to_numpy(dtype=float), label=True)
        tables.append(_tidy(rows, rpd))
    axes[0, 0].set_ylabel("frequency group r")
    axes[1, 0].set_ylabel("loss\n(nats/token)")
    figure.suptitle("The band against tokens seen (ours, not in the paper)", fontsize=8.5)
    data = pd.concat(tables, ignore_index=True)
    _legend(figure, set(data["verdict"]))
    return Drawing(figure, data, {"models": told})
