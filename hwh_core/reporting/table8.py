"""Table 8: allocation ablation: retrieval by task (380M in the paper)."""

from __future__ import annotations

from .results import Results
from .selection import ALLOCATION_ARCHITECTURES
from .tables import Table
from .tasktables import ablation_retrieval


def make(results: Results) -> Table:
    """Allocation ablation: retrieval of the compared architectures."""
    return ablation_retrieval(results, 8, ALLOCATION_ARCHITECTURES, "Allocation ablation: retrieval")
