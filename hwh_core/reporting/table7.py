"""Table 7: allocation ablation: language modelling by task (380M in the paper)."""

from __future__ import annotations

from .results import Results
from .selection import ALLOCATION_ARCHITECTURES
from .tables import Table
from .tasktables import ablation_language


def make(results: Results) -> Table:
    """Allocation ablation: language modelling of the compared architectures."""
    return ablation_language(results, 7, ALLOCATION_ARCHITECTURES, "Allocation ablation: language modelling")
