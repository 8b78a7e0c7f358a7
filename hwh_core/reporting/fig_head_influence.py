"""Figure of ours: influence against distance for every kind of head, and retrieval against distance, head by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from . import selection
from .captions import title_of
from .head_influence import GDN, KIND_TITLES, NOPE, ROPE, SINKS, WINDOW, add_kinds, kinds_in
from .results import Results
from .style import OKABE_ITO, TEXT_WIDTH, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {
    NOPE: (OKABE_ITO["blue"], "-", "o"),
    ROPE: (OKABE_ITO["vermillion"], "--", "s"),
    WINDOW: (OKABE_ITO["green"], "-.", "^"),
    GDN: (OKABE_ITO["orange"], (0, (3, 1, 1, 1)), "D"),
}
# Shares below are drawn here: a head that decays fast reads a far needle with less than any number worth a decade.
LOWEST_SHARE = 1e-4
COLUMNS = 3


def profiles(bins: pd.DataFrame) -> pd.DataFrame:
    """Mean over heads and their middle 80%, by architecture, kind of head and bin; undefined heads are left out."""
    keys = ["architecture", "head_kind", "distance_from_tokens", "distance_below_tokens"]
    grouped = bins.dropna(subset=["share"]).groupby(keys, sort=True)["share"]
    table = grouped.agg(
        share="mean", low=lambda values: values.quantile(0.1), high=lambda values: values.quantile(0.9), heads="size"
    )
    return table.reset_index()


def even_shares(bins: list[tuple[int, int]], positions: range, sinks: int) -> np.ndarray:
    """Share of each bin if a query weighed all tokens behind the first ``sinks`` alike, mean over ``positions``."""
    seen = np.array(positions)[:, None] - sinks + 1
    low, high = np.array(bins).T
    return (np.clip(high, 0, seen) - np.clip(low, 0, seen)).__truediv__(seen).mean(axis=0)


def profile_panel(axis: Axes, rows: pd.DataFrame, even: np.ndarray, starts: list[int]) -> None:
    """Influence by distance of every kind of head of one architecture."""
    places = np.arange(len(starts))
    # Above the profiles, which it would hide under where heads read all tokens alike.
    axis.plot(places, even, color="0.55", linestyle=":", linewidth=1.0, zorder=4)
    for kind in kinds_in(rows):
        own = rows[rows["head_kind"] == kind].set_index("distance_from_tokens").reindex(starts)
        colour, line, _ = LOOKS[kind]
        axis.fill_between(places, own["low"], own["high"], color=colour, alpha=0.2, linewidth=0)
        axis.plot(places, own["share"], color=colour, linestyle=line)
    shown = sorted({0, *places[:: -3 if len(places) > 9 else -2].tolist()})
    axis.set_xticks(shown, [str(starts[place]) for place in shown])
    axis.set_xlim(-0.3, len(starts) - 0.7)


def scatter_panel(axis: Axes, heads: pd.DataFrame, even: float) -> None:
    """Every head by its median distance and the share of the influence on it that comes from the needle."""
    for kind in kinds_in(heads):
        rows = heads[heads["head_kind"] == kind].dropna(subset=["median_distance_tokens"])
        if rows.empty:
            # An empty line that is not clipped has no extent, which the layout cannot take.
            continue
        colour, _, marker = LOOKS[kind]
        axis.plot(
            rows["median_distance_tokens"].clip(lower=0.5), rows["needle_share"].clip(lower=LOWEST_SHARE), marker,
            color=colour, markersize=3.2, alpha=0.6, markeredgewidth=0, clip_on=False,
        )  # fmt: skip
    axis.axhline(even, color="0.55", linestyle=":", linewidth=1.0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    top = max(1.0, float(heads["median_distance_tokens"].max()))
    powers = [2**k for k in range(0, int(np.ceil(np.log2(top))) + 1, 2 if top <= 256 else 3)]
    axis.set_xticks([0.5, *powers], ["0", *map(str, powers)])
    axis.minorticks_off()
    axis.set_xlim(0.4, 1.3 * max(top, powers[-1]))
    axis.set_ylim(LOWEST_SHARE, 1.0)
    decades = [10.0**k for k in range(-4, 1)]
    axis.set_yticks(decades, ["≤ 0.0001", "0.001", "0.01", "0.1", "1"])
    axis.set_xlabel("median distance (tokens)")
    axis.set_ylabel("share of the influence on the last token\nthat comes from the needle (words like RULER's)")


def draw(results: Results) -> Drawing:
    """Panels of every architecture that was trained and, on the right, all heads."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    scale, models = selection.probed(results.preset)
    heads = add_kinds(results.head_influence(scale, models))
    bins = add_kinds(results.head_influence_bins(scale, models))
    names = list(dict.fromkeys(model.architecture for model in models))
    summary = profiles(bins)
    edges = sorted({*zip(bins["distance_from_tokens"], bins["distance_below_tokens"], strict=True)})
    probe = results.preset.hwh.probe
    even = even_shares(edges, range(scale.length - probe.num_queries, scale.length), SINKS)
    even_needle = float(heads["needle_share_if_even"].mean())

    columns = min(COLUMNS, -(-len(names) // 2))
    rows = int(np.ceil(len(names) / columns))
    figure = plt.figure(figsize=(TEXT_WIDTH, 1.2 + 1.45 * max(rows, 2)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[max(0.52 * columns, 0.9), 1.0])
    axes = left.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for position, name in enumerate(names):
        axis = axes.flat[position]
        profile_panel(axis, summary[summary["architecture"] == name], even, [low for low, _ in edges])
        seeds = sum(model.architecture == name for model in models)
        title = f"{selection.ARCHITECTURE_TITLES[name]} ({seeds} seed{'s' * (seeds > 1)})"
        axis.set_title(title, fontsize=7.5)
        if position + columns >= len(names):
            axis.tick_params(labelbottom=True)
    axes[0, 0].set_ylim(0, None)
    left.supxlabel(f"distance (tokens) in bins that double, first {SINKS} tokens left out", fontsize=8)
    left.supylabel("share of the influence", fontsize=8)
    scatter = right.subplots()
    scatter_panel(scatter, heads, even_needle)
    undefined = int(heads["median_distance_tokens"].isna().sum())
    without = f"\nbut {undefined} that read the first {SINKS} tokens alone" if undefined else ""
    scatter.set_title(f"every head (log axes){without}", fontsize=7.5)

    kinds = kinds_in(heads)
    handles = [
        Line2D([], [], color=LOOKS[kind][0], linestyle=LOOKS[kind][1], marker=LOOKS[kind][2], markersize=3.2)
        for kind in kinds
    ]
    handles.append(Line2D([], [], color="0.55", linestyle=":", linewidth=1.0))
    handles.append(Patch(color="0.5", alpha=0.3, linewidth=0))
    labels = [
        *(KIND_TITLES[kind] for kind in kinds), "if all tokens weighed alike", "middle 80% of heads (lines: mean)",
    ]  # fmt: skip
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=4)
    figure.suptitle(title_of(f"What the heads read (ours) at L = {scale.length}", scale), fontsize=8.5)
    shown = heads.assign(part="heads", needle_share_if_even=even_needle)
    keep = [
        "part", "architecture", "model", "seed", "layer", "group", "head", "head_kind", "median_distance_tokens",
        "needle_share", "needle_share_stderr", "needle_share_if_even",
    ]  # fmt: skip
    reference = pd.DataFrame(edges, columns=["distance_from_tokens", "distance_below_tokens"]).assign(
        part="if all tokens weighed alike", share=even
    )
    data = pd.concat([summary.assign(part="profiles"), reference, shown[keep]], ignore_index=True)
    first = ["part", "architecture", "head_kind"]
    data = data[[*first, *(column for column in data.columns if column not in first)]]
    return Drawing(figure, data, {"scale": scale.name, "drawn": [model.name for model in models]})
