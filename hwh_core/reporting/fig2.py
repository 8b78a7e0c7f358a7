"""Figure 2: per-head RFIS and RPD over frequency, heads sorted by QRscore (Qwen3-4B in the paper)."""

from __future__ import annotations

from .headfigures import sorted_heads
from .results import Results
from .selection import pretrained_of_figure
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Sorted heat maps of all heads of every chosen model with QRscore and LDscore strips."""
    return sorted_heads(results, pretrained_of_figure(results.preset, 2), "RFIS and RPD of every head")
