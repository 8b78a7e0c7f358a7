"""Figure 10: heads of Llama3.1-8B-Instruct layers 13 and 14, where most public retrieval heads lie."""

from __future__ import annotations

from .headfigures import chosen_layers
from .results import Results
from .selection import pretrained_model
from .style import Drawing

LAYERS = [13, 14]


def draw(results: Results) -> Drawing:
    """RFIS and RPD of all heads of layers 13 and 14."""
    return chosen_layers(results, pretrained_model(results.preset, "Llama3.1-8B-Instruct"), LAYERS, "layers 13 and 14")
