"""Figure 6: allocation ablation (380M in the paper): uniform 1:3, outer layers 1:3, HwH-std."""

from __future__ import annotations

from .ablationfigures import bars
from .results import Results
from .selection import ALLOCATION_ARCHITECTURES
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Bars of the uniform and outer 1:3 allocations and of HwH-std."""
    return bars(results, ALLOCATION_ARCHITECTURES, "Layer-specific allocation")
