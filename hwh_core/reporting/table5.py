"""Table 5: component ablation: language modelling by task (380M in the paper)."""

from __future__ import annotations

from .results import Results
from .selection import COMPONENT_ARCHITECTURES
from .tables import Table
from .tasktables import ablation_language


def make(results: Results) -> Table:
    """Component ablation: language modelling of the compared architectures."""
    return ablation_language(results, 5, COMPONENT_ARCHITECTURES, "Component ablation: language modelling")
