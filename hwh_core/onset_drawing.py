"""Figure of `hwh onset`: what models save a digit of planted values against another one, over a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .files import atomic_write
from .reporting.style import ARCHITECTURE_COLOURS, METADATA, OKABE_ITO, TEXT_WIDTH, use_style
from .retrieval_onset import NATS_A_DIGIT, Estimate, Onset

HEIGHT = 3.2
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def model_colours(architectures: Mapping[str, str]) -> dict[str, str]:
    """A colour for each model by name: that of its architecture, or the next of the palette that none here has.

    With more models than the palette has colours these come again, and markers tell the models apart.
    """
    # Black is the Transformer's, yellow is pale on white.
    palette = [OKABE_ITO[name] for name in ("purple", "green", "blue", "orange", "sky", "vermillion")]
    found: dict[str, str] = {}
    for model, architecture in architectures.items():
        own = ARCHITECTURE_COLOURS.get(architecture)
        if own is not None and own not in found.values():
            found[model] = own
    for position, model in enumerate(name for name in architectures if name not in found):
        free = [colour for colour in palette if colour not in found.values()]
        found[model] = free[0] if free else palette[position % len(palette)]
    return found


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
        "-ln 10\n(the whole\ndigit)", (1.0, -NATS_A_DIGIT), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=6.5, color="0.3", annotation_clip=False,
    )  # fmt: skip
    colours = model_colours(architectures)
    for number, (model, rows) in enumerate(estimates.items()):
        middles = [(row.first_step + row.last_step) / 2 for row in rows]
        low, high = zip(*(row.interval for row in rows), strict=True)
        onset = onsets[model]
        told = f"from step {onset.step:,}" if onset else "no onset"
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
