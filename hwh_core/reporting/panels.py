"""Parts that several figures share: frequency axes with periods, map panels, strips, needle grids."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.colors import PowerNorm

from .style import COLOUR_MAPS, METRIC_TITLES, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

# Small values next to large ones: the square root is a mapping of colours only, numbers in the CSV are raw.
DISPLAY_GAMMA = 0.5
DISPLAY_NOTE = "colour ∝ √value, display only"
OBSERVED = OKABE_ITO["vermillion"]
PREDICTED_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1)))
# Length of a predicted mark as a share of the panel; marks nearer than this share of its width stand at other heights.
MARK_SHARE = 0.13
MARK_DISTANCE = 0.06
MARK_LEVELS = 3
OUTLINE = [patheffects.withStroke(linewidth=2.4, foreground="black")]
THIN_OUTLINE = [patheffects.withStroke(linewidth=2.0, foreground="black")]


def periods_of(inv_freq: np.ndarray) -> np.ndarray:
    """Periods in tokens, of any shape; infinite for groups without rotation."""
    with np.errstate(divide="ignore"):
        return 2 * np.pi / np.asarray(inv_freq, dtype=float)


def period_text(period: float) -> str:
    """A period in tokens, short: ``6.3``, ``628``, ``6.3k``, ``1.2M``."""
    if not np.isfinite(period):
        return "∞"
    for limit, divisor, suffix in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if period >= limit:
            return f"{period / divisor:.3g}{suffix}"
    return f"{period:.3g}" if period >= 10 else f"{period:.1f}"


def frequency_ticks(count: int, target: int = 6) -> np.ndarray:
    """About ``target`` evenly spaced frequency groups starting at 0."""
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128) if count / s <= target or s == 128)
    return np.arange(0, count, step)


def lowest(inv_freq: np.ndarray) -> np.ndarray:
    """Of frequencies [F] or [row, F] those of the row that reaches lowest: [F]."""
    rows = np.atleast_2d(inv_freq)
    return rows[np.where(rows > 0, rows, np.inf).min(axis=1).argmin()]


def frequency_axis(axis: Axes, inv_freq: np.ndarray, periods: bool = True, label: bool = True, target: int = 6) -> None:
    """Frequency group r on the lower axis, its period in tokens on a twin axis at the top.

    ``inv_freq`` is [F], or [row, F] where rows may differ: then periods are those of the row that reaches lowest.
    """
    several = inv_freq.ndim > 1 and bool((inv_freq != inv_freq[0]).any())
    inv_freq = lowest(inv_freq)
    count = len(inv_freq)
    ticks = frequency_ticks(count, target)
    axis.set_xlim(-0.5, count - 0.5)
    axis.set_xticks(ticks)
    if label:
        axis.set_xlabel("frequency group r")
    if not periods:
        return
    top = axis.secondary_xaxis("top")
    top.set_xticks(ticks)
    top.set_xticklabels([period_text(period) for period in periods_of(inv_freq)[ticks]], fontsize=6)
    top.tick_params(length=2, pad=1)
    words = "period (tokens) in layers with the lowest frequencies" if several else "period (tokens)"
    top.set_xlabel(words, fontsize=6.5, labelpad=2)


def mark_levels(positions: list[float], distance: float) -> list[int]:
    """Height level of every mark: 0, or the lowest of ``MARK_LEVELS`` that no earlier mark within ``distance`` has."""
    levels: list[int] = []
    for number, position in enumerate(positions):
        near = {levels[other] for other in range(number) if abs(positions[other] - position) < distance}
        levels.append(next((level for level in range(MARK_LEVELS) if level not in near), 0))
    return levels


def mark_predicted(axis: Axes, predicted: dict[str, float]) -> None:
    """Predicted positions as dashed lines at the upper and lower ends, so that they do not hide the band.

    Marks that nearly coincide stand one behind the other along the panel and not side by side.
    """
    left, right = axis.get_xlim()
    levels = mark_levels(list(predicted.values()), MARK_DISTANCE * (right - left))
    for style, level, (label, index) in zip(PREDICTED_STYLES * 4, levels, predicted.items(), strict=False):
        low, high = level * (MARK_SHARE + 0.02), level * (MARK_SHARE + 0.02) + MARK_SHARE
        for start, end in ((low, high), (1.0 - high, 1.0 - low)):
            line = axis.axvline(index, start, end, color="white", linestyle=style, linewidth=1.0, label=label)
            line.set_path_effects(THIN_OUTLINE)


def predicted_handles(count: int) -> list[Line2D]:
    """Legend lines of the first ``count`` predicted marks, with the colours and outline of the drawn ones."""
    from matplotlib.lines import Line2D

    styles = (PREDICTED_STYLES * 4)[:count]
    return [
        Line2D([], [], color="white", linestyle=style, linewidth=1.0, path_effects=THIN_OUTLINE) for style in styles
    ]


def mark_observed(
    axis: Axes, index: float, row: float | None = None, colour: str = OBSERVED, height: float = 0.0
) -> None:
    """An observed position as a triangle at the lower edge of the given ``row`` of a map.

    Without a row it stands at ``height``, a share of the panel's height.
    """
    axis.plot(
        [index], [height if row is None else row + 0.5], marker="^", markersize=6, color=colour,
        markeredgecolor="white", clip_on=False, linestyle="none", label="observed", zorder=5,
        transform=axis.get_xaxis_transform() if row is None else axis.transData,
    )  # fmt: skip


def observed_handle(colour: str = OBSERVED) -> Line2D:
    """Legend marker of observed positions."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker="^", markersize=6, markeredgecolor="white", linestyle="none")


def map_panel(
    axis: Axes, values: np.ndarray, metric: str, *, signed: bool = False, vmax: float | None = None
) -> AxesImage:
    """A heat map [row, frequency] of RFIS or RPD on its own scale; ``signed`` values take a diverging map."""
    if signed:
        limit = vmax or float(np.abs(values).max()) or 1.0
        return axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
    top = vmax or float(values.max()) or 1.0
    return axis.imshow(values, cmap=COLOUR_MAPS[metric], norm=PowerNorm(DISPLAY_GAMMA, vmin=0.0, vmax=top, clip=True))


def colour_bar(figure: Figure, image: AxesImage, axis: Any, label: str, **options: Any) -> None:
    """A colour bar with a small label and few ticks; with a square-root mapping at 0, a quarter and the maximum."""
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(image, ax=axis, **{"pad": 0.02, "fraction": 0.06, **options})
    if isinstance(image.norm, PowerNorm):
        ticks = [0.0, image.norm.vmax / 4, image.norm.vmax]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
        bar.minorticks_off()
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()
    bar.set_label(label, fontsize=7)
    bar.ax.tick_params(labelsize=6, length=2)
    bar.outline.set_linewidth(0.5)


def outer_ticks(axis: Axes, labels: list[str], target: int = 6) -> None:
    """Ticks at rows in even steps, the first and the last among them: at most ``target``, or at every row of few."""
    last = len(labels) - 1
    count = next((n for n in range(target, 2, -1) if last % (n - 1) == 0 and last >= n - 1), None)
    step = last // (count - 1) if count else (1 if last < 2 * target else last)
    positions = list(range(0, last + 1, step or 1))
    axis.set_yticks(positions, [labels[position] for position in positions])


def integer_ticks(axis: Axes, labels: list[Any], which: str = "y", target: int = 9) -> None:
    """Ticks at every n-th row (or column), labelled with the given names."""
    step = max(1, int(np.ceil(len(labels) / target)))
    positions = list(range(0, len(labels), step))
    names = [str(labels[p]) for p in positions]
    if which == "y":
        axis.set_yticks(positions, names)
    else:
        axis.set_xticks(positions, names)


def strip(axis: Axes, values: np.ndarray, metric: str) -> AxesImage:
    """A one-column strip of per-head scores, rows in the order of the map beside it; missing values are grey.

    Colours end at the 99% quantile, so that one head does not darken all others; its label says so with ``≥``.
    """
    from matplotlib import colormaps

    colours = colormaps[COLOUR_MAPS[metric]].with_extremes(bad="0.7")
    finite = values[np.isfinite(values)]
    top = float(np.quantile(finite, 0.99)) if len(finite) else 1.0
    top = top or 1.0
    image = axis.imshow(np.ma.masked_invalid(values)[:, None], cmap=colours, vmin=0.0, vmax=top)
    beyond = " ≥" if len(finite) and finite.max() > 1.005 * top else ""
    axis.set_xticks([0], [f"{'QR' if metric == 'qr' else 'LD'}\n0 to{beyond}\n{top:.2g}"], fontsize=6.5)
    axis.tick_params(length=0)
    return image


def head_matrix(heads: pd.DataFrame, column: str) -> np.ndarray:
    """A column of heads.csv as an array [layer, head]."""
    return heads.pivot(index="layer", columns="head", values=column).to_numpy(dtype=float)


def long_maps(values: np.ndarray, inv_freq: np.ndarray, rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A map [row, frequency] as a tidy table; ``rows`` has one line of keys for every row of the map.

    ``inv_freq`` is [frequency], or [row, frequency] where rows rotate with frequencies of their own.
    """
    count = values.shape[1]
    repeated = rows.loc[rows.index.repeat(count)].reset_index(drop=True)
    repeated["frequency_group"] = np.tile(np.arange(count), len(rows))
    repeated["period_tokens"] = np.broadcast_to(periods_of(inv_freq), values.shape).reshape(-1)
    return repeated.assign(metric=METRIC_TITLES[metric], value=values.reshape(-1))


def average_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Needle cells averaged over seeds: one row per architecture, length and depth; accuracy in percent."""
    grouped = cells.groupby(["architecture", "length", "depth"], sort=True)
    table = grouped.agg(accuracy=("mean", "mean"), n=("n", "sum"), seeds=("seed", "nunique")).reset_index()
    return table.assign(accuracy=100 * table["accuracy"])


def length_label(length: int) -> str:
    """A length in tokens as a label of an axis: 512, 1K, 1.5K."""
    return f"{length / 1024:g}K" if length >= 1024 else str(length)


def length_axis(lengths: list[int]) -> str:
    """Label of an axis with one place a length: that its steps are not to scale stands there where they are uneven."""
    even = len({after - before for before, after in pairwise(lengths)}) <= 1
    return "context length (tokens)" if even else "context length (tokens)\nnot to scale"


def upright(lengths: list[int]) -> bool:
    """Whether labels of so many lengths stand upright: a label such as 1.5K is as wide as a narrow column."""
    return len(lengths) > 6


def needle_grid(axis: Axes, cells: pd.DataFrame, title: str, training_length: int) -> AxesImage:
    """Accuracy over length and depth of one architecture: 100% depth on top, the depth mean as a white curve.

    ``cells`` are rows of :func:`average_cells`: one column a length, one row a depth, parted by thin lines, since
    neither axis is a scale of numbers. The curve is read on the same 0 to 100% scale as the labels of the rows. A
    dashed line parts the lengths up to the training length from the longer ones where the grid has both.
    """
    matrix = cells.pivot(index="depth", columns="length", values="accuracy").sort_index(ascending=False)
    lengths, depths = list(matrix.columns), list(matrix.index)
    image = axis.imshow(matrix.to_numpy(), cmap=COLOUR_MAPS["accuracy"], vmin=0, vmax=100)
    integer_ticks(axis, [length_label(length) for length in lengths], "x", 8)
    axis.tick_params(axis="x", labelrotation=90 if upright(lengths) else 0)
    outer_ticks(axis, [f"{depth:g}" for depth in depths])
    axis.set_xticks(np.arange(1, len(lengths)) - 0.5, minor=True)
    axis.set_yticks(np.arange(1, len(depths)) - 0.5, minor=True)
    axis.grid(which="minor", color="0.6", linewidth=0.3)
    axis.tick_params(which="minor", length=0)
    # Row 0 is the largest depth; a mean of 100% lies in its centre, one of 0% in the centre of the last row.
    height = len(depths) - 1
    mean = matrix.mean(axis=0).to_numpy()
    curve = (1 - mean / 100) * height
    axis.plot(range(len(lengths)), curve, color="white", marker="o", markersize=2.6, path_effects=OUTLINE, zorder=4)
    within = sum(length <= training_length for length in lengths)
    if 0 < within < len(lengths):
        axis.axvline(within - 0.5, color="white", linestyle="--", linewidth=1.0, path_effects=OUTLINE)
        for text, side, shift in (("≤ L", "right", -3), ("> L", "left", 3)):
            axis.annotate(
                text, (within - 0.5, 1.0), (shift, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha=side, va="bottom", fontsize=6.5,
            )  # fmt: skip
    axis.set_title(title, pad=12)
    return image


def boundary_note(lengths: list[int], training_length: int) -> str:
    """What the dashed line of :func:`needle_grid` parts, in words; without a line why there is none."""
    within, beyond = [n for n in lengths if n <= training_length], [n for n in lengths if n > training_length]
    if within and beyond:
        return f"up to the training length | longer ({max(within)} | {min(beyond)} tokens)"
    return f"all lengths are {'up to' if within else 'beyond'} the training length"


def needle_handles(lengths: list[int], training_length: int) -> list[Line2D]:
    """Legend lines of :func:`needle_grid`: its curve and its border; a text alone where it has no border."""
    from matplotlib.lines import Line2D

    curve = Line2D([], [], color="white", marker="o", markersize=2.6, path_effects=OUTLINE)
    curve.set_label("mean over depth, on the labels of the rows (0 to 100%)")
    parted = min(lengths) <= training_length < max(lengths)
    style = {"color": "white", "linestyle": "--", "linewidth": 1.0, "path_effects": OUTLINE}
    border = Line2D([], [], **(style if parted else {"linestyle": "none"}))
    border.set_label(boundary_note(lengths, training_length))
    return [curve, border]
