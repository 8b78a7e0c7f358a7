"""Figure 12: without QKNorm the band shifts to lower frequencies."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from . import bandfigures, panels
from .results import Results
from .selection import Condition, conditions
from .style import OKABE_ITO, TEXT_WIDTH, Drawing

LOOKS = {True: (OKABE_ITO["blue"], "-", "QKNorm"), False: (OKABE_ITO["vermillion"], "--", "no QKNorm")}


def _profiles(axis, pair: list[bandfigures.ConditionMaps]) -> list[pd.DataFrame]:
    tables = []
    for data in pair:
        colour, line, label = LOOKS[data.condition.qk_norm]
        profile = data.profile("rpd")
        axis.plot(profile / profile.max(), color=colour, linestyle=line, label=label)
        if data.observed:
            axis.axvline(data.mean_observed, 0, 1 / 1.5, color=colour, linestyle=line, linewidth=0.7)
        row = pd.DataFrame({"model": ["mean over layers and seeds"], "seed": [-1], "layer": [-1]})
        table = panels.long_maps((profile / profile.max())[None], data.inv_freq, row, "rpd")
        tables.append(bandfigures.with_condition(table, data, "profile relative to its maximum"))
    axis.axvline(
        pair[0].predicted["covariance"], 0, 1 / 1.5, color="0.4", linestyle=":", linewidth=1, label="predicted"
    )
    axis.set_ylim(0, 1.5)
    axis.set_ylabel("RPD / its maximum")
    axis.legend(loc="upper right", fontsize=6, handlelength=1.8)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    return tables


def draw(results: Results) -> Drawing:
    """One row per RoPE base and length: RPD with QKNorm, RPD without, and both mean profiles."""
    groups = conditions(results.preset)
    pairs = []
    for condition in sorted(conditions(results.preset, qk_norm=False)):
        partner = Condition(condition.rope_theta, condition.length, True)
        chosen = [c for c in (partner, condition) if c in groups]
        pairs.append([bandfigures.collect(results, c, groups[c]) for c in chosen])
    heights = [1.5 + 0.11 * max(len(data.rows) for data in pair) for pair in pairs]
    figure, axes = plt.subplots(
        len(pairs), 3, figsize=(TEXT_WIDTH, 1.0 + sum(heights)), layout="constrained", squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    tables = []
    for row, pair in enumerate(pairs):
        last = row == len(pairs) - 1
        for data in pair:
            axis = axes[row, 0 if data.condition.qk_norm else 1]
            tables.append(bandfigures.metric_map(figure, axis, data, "rpd", label=last))
            axis.set_title(f"RPD, {data.condition.title}", pad=3)
        if len(pair) == 1:
            axes[row, 0].set_axis_off()
            axes[row, 0].text(0.5, 0.5, "QKNorm partner\nnot run", ha="center", va="center", fontsize=7)
        tables += _profiles(axes[row, 2], pair)
        panels.frequency_axis(axes[row, 2], pair[0].inv_freq, label=last)
        axes[row, 2].set_title("RPD, mean over layers", pad=3)
    figure.suptitle(f"Effect of QKNorm on the band (maps: {panels.DISPLAY_NOTE})")
    bandfigures.marks_legend(figure)
    collected = [data for pair in pairs for data in pair]
    return Drawing(figure, pd.concat(tables, ignore_index=True), bandfigures.settings_of(collected))
