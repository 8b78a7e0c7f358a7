"""Parts that several figures share: frequency axes with periods, map panels, strips, needle grids."""

from __future__ import annotations

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

# Small values next to large ones: the square root is a mapping of colours only, numbers in the CSV are raw.
DISPLAY_GAMMA = 0.5
DISPLAY_NOTE = "colour ∝ √value, display only"
OBSERVED = OKABE_ITO["vermillion"]
MARK_SHARE = 0.16
OUTLINE = [patheffects.withStroke(linewidth=2.4, foreground="black")]
THIN_OUTLINE = [patheffects.withStroke(linewidth=2.0, foreground="black")]


def periods_of(inv_freq: np.ndarray) -> np.ndarray:
    """Periods in tokens [F]; infinite for groups without rotation."""
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


def frequency_axis(axis: Axes, inv_freq: np.ndarray, periods: bool = True, label: bool = True, target: int = 6) -> None:
    """Frequency group r on the lower axis, its period in tokens on a twin axis at the top."""
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
    top.set_xlabel("period (tokens)", fontsize=6.5, labelpad=2)


def mark_bands(axis: Axes, predicted: dict[str, float], observed: float | None = None) -> None:
    """Predicted positions as dashed lines at the upper and lower ends, so that they do not hide the band; an observed
    one as a triangle at the lower edge."""
    styles = ("--", ":", "-.", (0, (5, 1, 1, 1)))
    for style, (label, index) in zip(styles * 4, predicted.items(), strict=False):
        for low, high in ((0.0, MARK_SHARE), (1.0 - MARK_SHARE, 1.0)):
            line = axis.axvline(index, low, high, color="white", linestyle=style, linewidth=1.0, label=label)
            line.set_path_effects(THIN_OUTLINE)
    if observed is not None and np.isfinite(observed):
        axis.plot(
            [observed], [0.0], marker="^", markersize=6, color=OBSERVED, markeredgecolor="white", clip_on=False,
            transform=axis.get_xaxis_transform(), linestyle="none", label="observed", zorder=5,
        )  # fmt: skip


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
    """A one-column strip of per-head scores, rows in the order of the map beside it; missing values are grey."""
    from matplotlib import colormaps

    colours = colormaps[COLOUR_MAPS[metric]].with_extremes(bad="0.7")
    finite = values[np.isfinite(values)]
    top = float(np.quantile(finite, 0.99)) if len(finite) else 1.0
    top = top or 1.0
    image = axis.imshow(np.ma.masked_invalid(values)[:, None], cmap=colours, vmin=0.0, vmax=top)
    axis.set_xticks([0], [f"{'QR' if metric == 'qr' else 'LD'}\n0 to\n{top:.2g}"], fontsize=6.5)
    axis.tick_params(length=0)
    return image


def head_matrix(heads: pd.DataFrame, column: str) -> np.ndarray:
    """A column of heads.csv as an array [layer, head]."""
    return heads.pivot(index="layer", columns="head", values=column).to_numpy(dtype=float)


def long_maps(values: np.ndarray, inv_freq: np.ndarray, rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A map [row, frequency] as a tidy table; ``rows`` has one line of keys for every row of the map."""
    count = len(inv_freq)
    repeated = rows.loc[rows.index.repeat(count)].reset_index(drop=True)
    repeated["frequency_group"] = np.tile(np.arange(count), len(rows))
    repeated["period_tokens"] = np.tile(periods_of(inv_freq), len(rows))
    return repeated.assign(metric=METRIC_TITLES[metric], value=values.reshape(-1))


def average_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Needle cells averaged over seeds: one row per architecture, length and depth; accuracy in percent."""
    grouped = cells.groupby(["architecture", "length", "depth"], sort=True)
    table = grouped.agg(accuracy=("mean", "mean"), n=("n", "sum"), seeds=("seed", "nunique")).reset_index()
    return table.assign(accuracy=100 * table["accuracy"])


def needle_grid(axis: Axes, cells: pd.DataFrame, title: str, training_length: int) -> AxesImage:
    """Accuracy over length and depth of one architecture: 100% depth on top, the depth mean as a white curve.

    ``cells`` are rows of :func:`average_cells`. The curve is read on the same 0 to 100% scale as the depth axis.
    """
    matrix = cells.pivot(index="depth", columns="length", values="accuracy").sort_index(ascending=False)
    lengths, depths = list(matrix.columns), list(matrix.index)
    image = axis.imshow(matrix.to_numpy(), cmap=COLOUR_MAPS["accuracy"], vmin=0, vmax=100)
    integer_ticks(axis, [f"{length / 1024:g}K" if length >= 1024 else str(length) for length in lengths], "x", 8)
    integer_ticks(axis, [f"{depth:g}" for depth in depths], "y", 6)
    # Row 0 is the largest depth; a mean of 100% lies in its centre, one of 0% in the centre of the last row.
    height = len(depths) - 1
    mean = matrix.mean(axis=0).to_numpy()
    curve = (1 - mean / 100) * height
    axis.plot(range(len(lengths)), curve, color="white", marker="o", markersize=2.6, path_effects=OUTLINE, zorder=4)
    beyond = [i for i, length in enumerate(lengths) if length > training_length]
    if beyond and beyond[0] > 0:
        axis.axvline(beyond[0] - 0.5, color="white", linestyle="--", linewidth=1.0, path_effects=OUTLINE)
    axis.set_title(title)
    return image
