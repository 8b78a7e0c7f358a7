"""Figure 10: heads of chosen layers (in the paper Llama3.1-8B-Instruct, where most public retrieval heads lie)."""

from __future__ import annotations

from .headfigures import chosen_layers
from .results import Results
from .style import Drawing


def draw(results: Results) -> Drawing:
    """RFIS and RPD of all heads of the chosen layers: 13 and 14 of the paper's model."""
    return chosen_layers(results, 10, "layers")
