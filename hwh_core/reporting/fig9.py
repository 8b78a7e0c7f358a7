"""Figure 9: layer-mean RFIS and RPD (Qwen3-4B in the paper: several separated bands)."""

from __future__ import annotations

from .headfigures import layer_means
from .results import Results
from .selection import primary_pretrained
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Layer-mean maps of the preset's primary pretrained model."""
    return layer_means(results, primary_pretrained(results.preset), "layer means")
