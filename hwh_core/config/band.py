"""Sections ``band`` and ``synthetic``: extraction of the Global Positional Band, and heads that check it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Distinct, PositiveInt, Strict


class BandConfig(Strict):
    """Extraction of the Global Positional Band (the rules are ours, section 4 of the method notes)."""

    prominence: float = 0.15
    relative_height: float = 0.25
    null_height_ratio: float = 2.0
    search_period_divisor: float = 8.0
    edge_fraction: float = 0.1
    bootstrap_resamples: PositiveInt = 1000
    cluster_gap: float = 2.0
    cluster_min_layers: PositiveInt = 3


class SyntheticConfig(Strict):
    """Heads with a planted band, on which the extractor and the classification are checked (claims S1 and S2)."""

    num_seeds: PositiveInt
    rope_thetas: Distinct[Annotated[float, Field(gt=1)]]
