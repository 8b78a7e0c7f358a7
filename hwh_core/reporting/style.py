"""The look that all figures share, and writing them: one style file, colours safe for colour-blind readers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
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
# Okabe and Ito (2008): distinguishable with all common kinds of colour blindness. Their yellow is left out: it has a
# contrast of 1.3 to white paper, the faintest of these has 2.2. The wine of Tol (2021) stands for it: to whichever of
# them it is nearest, with any kind of colour blindness, two of them are nearer to each other.
OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
WINE = "#882255"
ARCHITECTURE_COLOURS = {
    "transformer": OKABE_ITO["black"],
    "gdn": OKABE_ITO["orange"],
    "inter": OKABE_ITO["sky"],
    "hwh_std": OKABE_ITO["blue"],
    "hwh_std_r": OKABE_ITO["vermillion"],
    "hwh_swa": OKABE_ITO["green"],
    "hwh_uniform13": OKABE_ITO["purple"],
    "hwh_outer13": WINE,
}
# What models without a colour of their own take, in this order: those first that few figures hold already. Black is
# the Transformer's alone.
FREE_COLOURS = (WINE, *(OKABE_ITO[name] for name in ("purple", "green", "orange", "sky", "vermillion", "blue")))
# Curves of one figure are told apart by these as well: colours come again where there are more models than colours.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINE_STYLES = ("-", "--", "-.", ":")
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


def colours_of(names: Iterable[str], architectures: Mapping[str, str] | None = None) -> dict[str, str]:
    """A colour for each of the curves or bars of one figure, by name, in the order given.

    The names are architectures; where ``architectures`` holds one, it is a model of the architecture that stands there.
    The first of an architecture that has a colour of its own gets that; each of the others gets the colour that fewest
    here have, the first of :data:`FREE_COLOURS` among equals.
    """
    ordered = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for name in ordered:
        own = ARCHITECTURE_COLOURS.get((architectures or {}).get(name, name))
        if own is not None and own not in found.values():
            found[name] = own
    used = Counter(found.values())
    for name in ordered:
        if name not in found:
            found[name] = min(FREE_COLOURS, key=lambda colour: used[colour])
            used[found[name]] += 1
    return {name: found[name] for name in ordered}


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
