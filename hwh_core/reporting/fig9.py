"""Figure 9: layer-mean RFIS and RPD (Qwen3-4B in the paper: several separated bands)."""

from __future__ import annotations

from .headfigures import layer_means
from .results import Results
from .selection import pretrained_of_figure
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Layer-mean maps of every chosen model."""
    return layer_means(results, pretrained_of_figure(results.preset, 9), "layer means")
