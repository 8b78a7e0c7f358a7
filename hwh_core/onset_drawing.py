"""Figure of `hwh onset`: what models save a digit of planted values against another one, over a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .files import atomic_write
from .reporting.style import MARKERS, METADATA, TEXT_WIDTH, colours_of, use_style
from .retrieval_onset import NATS_A_DIGIT, Estimate, Onset

HEIGHT = 3.2


def draw_onset(
    path: Path,
    estimates: Mapping[str, Sequence[Estimate]],
    onsets: Mapping[str, Onset | None],
    architectures: Mapping[str, str],
    title: str,
) -> None:
    """Write the PNG ``path``: estimates of one regressor by model, with 95% bands, and the onsets as dotted lines.

    Raises :class:`hwh_core.files.OutputError` when it cannot be written.
    """
    use_style()
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(TEXT_WIDTH, HEIGHT), layout="constrained")
    axis.axhline(0.0, color="0.6", linewidth=0.8, zorder=1)
    axis.axhline(-NATS_A_DIGIT, color="0.3", linewidth=0.8, linestyle="--", zorder=1)
    axis.annotate(
        "−ln 10\n(the whole\ndigit)", (1.0, -NATS_A_DIGIT), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=6.5, color="0.3", annotation_clip=False,
    )  # fmt: skip
    colours = colours_of(estimates, architectures)
    for number, (model, rows) in enumerate(estimates.items()):
        middles = [(row.first_step + row.last_step) / 2 for row in rows]
        low, high = zip(*(row.interval for row in rows), strict=True)
        onset = onsets[model]
        told = f"from step {onset.step:,} ({onset.earliest:,} to {onset.latest:,})" if onset else "no onset"
        axis.fill_between(middles, low, high, color=colours[model], alpha=0.1, linewidth=0)
        for edge in (low, high):
            axis.plot(middles, edge, color=colours[model], linewidth=0.5, alpha=0.7)
        axis.plot(
            middles, [row.nats_per_digit for row in rows], color=colours[model], marker=MARKERS[number % len(MARKERS)],
            markersize=4, label=f"{model}: {told}", zorder=3,
        )  # fmt: skip
        if onset:
            # Of onsets in one window all lines are to be seen.
            axis.axvline(onset.step, color=colours[model], linewidth=1.0, linestyle=(3 * number, (1, 5)), zorder=2)
    axis.set_xlim(0, max(row.last_step for rows in estimates.values() for row in rows))
    axis.set_xlabel("step of training (middle of a window)")
    axis.set_ylabel("nats a digit asked for or repeated\n(negative: copies more; bands: 95%)")
    axis.set_title(title)
    figure.legend(loc="outside lower center", ncols=2)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", metadata=METADATA["png"])
    plt.close(figure)
