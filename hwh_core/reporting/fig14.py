"""Figure 14: heads of Gemma-7B layers 14 and 16."""

from __future__ import annotations

from .headfigures import chosen_layers
from .results import Results
from .selection import pretrained_model
from .style import Drawing

LAYERS = [14, 16]


def draw(results: Results) -> Drawing:
    """RFIS and RPD of all heads of layers 14 and 16."""
    return chosen_layers(results, pretrained_model(results.preset, "Gemma-7B"), LAYERS, "layers 14 and 16")
