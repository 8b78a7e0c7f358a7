"""The look that all figures share, and writing them: one style file, colours safe for colour-blind readers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..files import atomic_write
from ..provenance import write_manifest
from .selection import FigureId, figure_name, refuse_if_missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .results import Results

DATA_FILES = ("hwh.mplstyle",)
TEXT_WIDTH = 7.0
COLOUR_MAPS = {
    "rfis": "cividis",
    "rpd": "magma",
    "qr": "viridis",
    "ld": "viridis",
    "norm": "viridis",
    "accuracy": "cividis",
}
METRIC_TITLES = {"rfis": "RFIS", "rpd": "RPD", "qr": "QRscore", "ld": "LDscore", "norm": "|q||k|"}
# Okabe and Ito (2008): distinguishable with all common kinds of colour blindness.
OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
ARCHITECTURE_COLOURS = {
    "transformer": OKABE_ITO["black"],
    "gdn": OKABE_ITO["orange"],
    "inter": OKABE_ITO["sky"],
    "hwh_std": OKABE_ITO["blue"],
    "hwh_std_r": OKABE_ITO["vermillion"],
    "hwh_swa": OKABE_ITO["green"],
    "hwh_uniform13": OKABE_ITO["purple"],
    "hwh_outer13": OKABE_ITO["yellow"],
}
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
# Drawing dates and versions would change a figure's bytes at every run.
METADATA = {
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@dataclass
class Drawing:
    """One finished figure: the drawing, the numbers that it shows (tidy) and what decided its content."""

    figure: Figure
    data: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)


def use_style() -> None:
    """Select the backend without a display and the project's style; call before any axes are made."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcdefaults()
    plt.style.use(Path(__file__).with_name("hwh.mplstyle"))


def colour_of(architecture: str, position: int = 0) -> str:
    """Colour of an architecture; unknown ones take the palette in turn."""
    return ARCHITECTURE_COLOURS.get(architecture, list(OKABE_ITO.values())[position % len(OKABE_ITO)])


def colours_of(architectures: Sequence[str]) -> dict[str, str]:
    """A colour each: those that have one keep it, the others take in turn what is left of the palette."""
    taken = {ARCHITECTURE_COLOURS[name] for name in architectures if name in ARCHITECTURE_COLOURS}
    free = [colour for colour in OKABE_ITO.values() if colour not in taken] or list(OKABE_ITO.values())
    others = [name for name in architectures if name not in ARCHITECTURE_COLOURS]
    return {name: ARCHITECTURE_COLOURS.get(name) or free[others.index(name) % len(free)] for name in architectures}


def write_drawing(
    drawing: Drawing, prefix: str | Path, results: Results, number: FigureId, started: float
) -> list[Path]:
    """Write ``prefix`` + .pdf, .png, .csv and the manifest of the PDF; return the three paths.

    Raises :class:`hwh_core.files.OutputError` when a file cannot be written.
    """
    import matplotlib.pyplot as plt

    prefix = Path(prefix)
    paths = [prefix.with_name(f"{prefix.name}.{kind}") for kind in ("csv", "png", "pdf")]
    with atomic_write(paths[0]) as temporary:
        drawing.data.to_csv(temporary, index=False, float_format="%.8g", lineterminator="\n")
    # The layout is solved once; saving each format would solve it again, which is most of the drawing time.
    drawing.figure.draw_without_rendering()
    drawing.figure.set_layout_engine("none")
    for path in paths[1:]:
        kind = path.suffix[1:]
        with atomic_write(path) as temporary:
            drawing.figure.savefig(temporary, format=kind, metadata=METADATA[kind])
    plt.close(drawing.figure)
    # Under no key of a preset: `hwh verify` holds settings of these names against it.
    settings = {"drawn_figure": number, "preset": results.preset.preset, **drawing.settings}
    modules = [f"hwh_core/reporting/{figure_name(number)}.py"]
    write_manifest(paths[2], inputs=results.used, settings=settings, started=started, beside=paths[:2], modules=modules)
    return paths


def draw_and_write(number: FigureId, results: Results, prefix: str | Path) -> list[Path]:
    """Draw figure ``number`` from the files of ``results`` and write it.

    Raises :class:`hwh_core.reporting.selection.ReportError` when the preset lacks its models or a file is missing.
    """
    from importlib import import_module

    refuse_if_missing(results.preset, "figure", number)
    started = time.time()
    use_style()
    drawing = import_module(f"{__package__}.{figure_name(number)}").draw(results)
    return write_drawing(drawing, prefix, results, number, started)
