"""Where the candidate training stages of a published model would put its band: one row a stage of the preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwh_core import rope

from .errors import BandError


@dataclass(frozen=True)
class Stage:
    """A candidate stage: ``rope_theta`` None where it is placed on the model's own frequencies; ``length`` in tokens.

    ``covariance`` and ``oka`` are the predicted indices by both constants, ``period`` (tokens) that of the first.
    """

    label: str
    rope_theta: float | None
    length: float
    covariance: float
    oka: float
    period: float


def predicted_stages(rows: Sequence[Mapping[str, Any]], inv_freq: np.ndarray, key: str) -> list[Stage]:
    """Predictions of ``candidate_bands`` rows {label, length, rope_theta}; ``inv_freq`` [F] of the loaded model.

    A stage with ``rope_theta`` lies on the unscaled grid of that base, since a band keeps its index when frequencies
    are scaled later; one without on the model's own, perhaps scaled, grid. No stages where nothing is rotated.
    ``key`` names the rows in errors. Raises :class:`BandError` for a row that lacks a key or has impossible values.
    """
    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    rotated = int((inv_freq > 0).sum())
    stages = []
    for row in rows if rotated >= 2 else ():
        missing = sorted({"label", "length"} - set(row))
        if missing:
            raise BandError(f"{key}: row {dict(row)} lacks {missing[0]!r}")
        theta = row.get("rope_theta")

        def index(constant: rope.XStar, theta: Any = theta, length: Any = row["length"]) -> float:
            if theta is None:
                return rope.predicted_index_on_grid(inv_freq, float(length), constant)
            return rope.predicted_index(2 * rotated, float(theta), float(length), constant)

        try:
            stage = Stage(
                label=str(row["label"]),
                rope_theta=None if theta is None else float(theta),
                length=float(row["length"]),
                covariance=index("covariance"),
                oka=index("oka"),
                period=rope.predicted_period(float(row["length"])),
            )
        except ValueError as error:
            raise BandError(f"{key}: row {dict(row)}: {error}") from None
        stages.append(stage)
    return stages
