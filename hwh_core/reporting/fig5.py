"""Figure 5: component ablation (380M in the paper): GDN or SWA as the local part, NoPE or RoPE full attention."""

from __future__ import annotations

from .ablationfigures import bars
from .results import Results
from .selection import COMPONENT_ARCHITECTURES
from .style import Drawing


def draw(results: Results) -> Drawing:
    """Bars of HwH-std, HwH-swa and HwH-std-r."""
    return bars(results, COMPONENT_ARCHITECTURES, "Function-specific components")
