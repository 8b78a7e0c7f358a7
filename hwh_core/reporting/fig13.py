"""Figure 13: layer-mean RFIS and RPD of Gemma-7B."""

from __future__ import annotations

from .headfigures import layer_means
from .results import Results
from .selection import pretrained_of_figure
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Layer-mean maps of the paper's model, or of the chosen ones."""
    return layer_means(results, pretrained_of_figure(results.preset, 13), "layer means")
