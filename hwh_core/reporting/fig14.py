"""Figure 14: heads of Gemma-7B layers 14 and 16."""

from __future__ import annotations

from .headfigures import chosen_layers
from .results import Results
from .style import Drawing


def draw(results: Results) -> Drawing:
    """RFIS and RPD of all heads of the chosen layers: 14 and 16 of the paper's model."""
    return chosen_layers(results, 14, "layers")
