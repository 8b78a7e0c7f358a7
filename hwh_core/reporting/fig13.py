"""Figure 13: layer-mean RFIS and RPD of Gemma-7B."""

from __future__ import annotations

from .headfigures import layer_means
from .results import Results
from .selection import pretrained_model
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Layer-mean maps of Gemma-7B."""
    return layer_means(results, pretrained_model(results.preset, "Gemma-7B"), "layer means")
