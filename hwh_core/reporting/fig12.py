"""Figure 12: without QKNorm the band shifts to lower frequencies."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from . import bandfigures, panels
from .results import Results
from .selection import Condition, conditions
from .style import OKABE_ITO, TEXT_WIDTH, Drawing

# Colour, marker and name of the profile with and without QK-norm.
LOOKS = {True: (OKABE_ITO["blue"], "o", "QKNorm"), False: (OKABE_ITO["purple"], "s", "no QKNorm")}
PEAK_HEIGHT = 0.06


def _profiles(axis, pair: list[bandfigures.ConditionMaps]) -> list[pd.DataFrame]:
    tables = []
    for data in pair:
        colour, marker, label = LOOKS[data.condition.qk_norm]
        profile = data.profile("rpd")
        axis.plot(profile / profile.max(), color=colour, marker=marker, markersize=2.4, linewidth=1.0, label=label)
        for peak in data.observed.values():
            # Peaks with and without QK-norm can coincide.
            panels.mark_observed(axis, peak, colour=colour, height=0.0 if data.condition.qk_norm else PEAK_HEIGHT)
        row = pd.DataFrame({"model": ["mean over layers and seeds"], "seed": [-1], "layer": [-1]})
        table = panels.long_maps((profile / profile.max())[None], data.inv_freq, row, "rpd")
        tables.append(bandfigures.with_condition(table, data, "profile relative to its maximum"))
    axis.set_ylim(0, 1.05)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axis.set_ylabel("RPD / its maximum")
    return tables


def _profile_handles(collected: list[bandfigures.ConditionMaps]) -> list[tuple[plt.Line2D, str]]:
    """Legend handles and labels of the profiles and of the peaks below them."""
    handles = []
    for norm, (colour, marker, name) in LOOKS.items():
        group = [data for data in collected if data.condition.qk_norm == norm]
        if group:
            line = plt.Line2D([], [], color=colour, marker=marker, markersize=2.4, linewidth=1.0)
            handles.append((line, f"right: mean profile, {name}"))
        if any(data.observed for data in group):
            handles.append((panels.observed_handle(colour), f"right: observed peak of each seed, {name}"))
    return handles


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
        len(pairs), 3, figsize=(TEXT_WIDTH, 1.3 + sum(heights)), layout="constrained", squeeze=False,
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
        panels.mark_predicted(axes[row, 2], pair[0].predicted)
        axes[row, 2].set_title("RPD, mean over\nlayers and seeds", pad=3, fontsize=8)
    figure.suptitle(f"Effect of QKNorm on the band (maps: {panels.DISPLAY_NOTE})")
    collected = [data for pair in pairs for data in pair]
    bandfigures.marks_legend(figure, collected, _profile_handles(collected))
    return Drawing(figure, pd.concat(tables, ignore_index=True), bandfigures.settings_of(collected))
