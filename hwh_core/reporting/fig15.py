"""Figure 15: NIAH-Single-2 grids of all architectures of one scale (380M in the paper)."""

from __future__ import annotations

from .needlefigures import sheet
from .results import Results
from .selection import compared, scale_for
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Grids of every architecture of the scale."""
    scale = scale_for(results.preset, "380M")
    return sheet(results, scale, compared(scale), 4, "NIAH-Single-2, all architectures")
