"""Table 6: component ablation: retrieval by task (380M in the paper)."""

from __future__ import annotations

from .results import Results
from .selection import COMPONENT_ARCHITECTURES
from .tables import Table
from .tasktables import ablation_retrieval


def make(results: Results) -> Table:
    """Component ablation: retrieval of the compared architectures."""
    return ablation_retrieval(results, 6, COMPONENT_ARCHITECTURES, "Component ablation: retrieval")
