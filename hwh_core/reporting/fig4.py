"""Figure 4: NIAH-Single-2 over context length and depth (1.4B in the paper)."""

from __future__ import annotations

from .needlefigures import sheet
from .results import Results
from .selection import MAIN_ARCHITECTURES, models_of, scale_for
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Grids of Transformer, GDN, Inter and HwH-std at the largest scale that the preset has."""
    scale = scale_for(results.preset, "1.4B", MAIN_ARCHITECTURES)
    return sheet(results, scale, models_of(scale, MAIN_ARCHITECTURES), 4, "NIAH-Single-2")
