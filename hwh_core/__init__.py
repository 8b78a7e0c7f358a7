"""Reproduction of "Modern Transformers Are Implicit Hybrids" (arXiv 2609.02986): library behind the workflow.

``hwh_core.probe_model`` measures a model on samples, see :func:`hwh_core.probes.analysis.probe_model`.
"""

from importlib import import_module
from typing import Any

__all__ = ["probe_model"]


def __getattr__(name: str) -> Any:
    # By name: torch is imported when it is asked for, and no program depends on the probes through its package.
    if name in __all__:
        return getattr(import_module(".probes.analysis", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
