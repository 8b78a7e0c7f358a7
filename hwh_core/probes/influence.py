"""Where the influence on a head's output comes from: distance profiles and needle shares, alike for all kinds of heads.

An influence p [H, Q, T] has rows that add up to 1 over the tokens that a query sees: attention weights, or the absolute
weights of a Gated DeltaNet head over their sum (its output norm makes their scale irrelevant). Distances are t - s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from .behavior import MINIMUM_MASS, ld_score, qr_score

SINKS = 4
"""First tokens that distances leave out, as LDscore does: attention rests there when there is nothing to read."""

WINDOWS = (64, 128)


def normalised(weights: Tensor) -> Tensor:
    """Absolute weights [..., Q, T] over their sum in each row; a row of zeros stays zeros."""
    size = weights.abs()
    return size / size.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)


def negative_share(weights: Tensor) -> Tensor:
    """Share of the absolute weights [..., Q, T] that negative ones hold, mean over queries: [...]."""
    return normalised(weights).masked_fill(weights >= 0, 0.0).sum(dim=-1).mean(dim=-1)


def distance_sums(p: Tensor, query_positions: Tensor, sinks: int = SINKS) -> tuple[Tensor, Tensor]:
    """Influence outside of the first ``sinks`` tokens by distance, rows scaled to 1 and added up over queries.

    ``p`` [H, Q, T] with keys at 0..T-1. Returns float64 sums [H, T] over distances 0..T-1, and how many queries [H]
    count: those with at least ``MINIMUM_MASS`` of their influence there.
    """
    length = p.shape[-1]
    source = query_positions[:, None] - torch.arange(length, device=p.device)[None, :]
    outside = (source >= sinks).expand_as(p)
    shares = p.gather(-1, source.clamp_min(0).expand_as(p)).double().masked_fill(~outside, 0.0)
    mass = shares.sum(dim=-1, keepdim=True)
    counted = mass >= MINIMUM_MASS
    shares = torch.where(counted, shares / mass.clamp_min(MINIMUM_MASS), 0.0)
    return shares.sum(dim=1), counted.sum(dim=(1, 2))


def distance_bins(length: int) -> list[tuple[int, int]]:
    """Half-open bins of distances below ``length``: [0, 1), [1, 2), [2, 4), [4, 8), ..."""
    edges = [0, *(2**k for k in range(max(0, (length - 1).bit_length()))), length]
    return [(low, high) for low, high in pairwise(edges) if low < high]


def mean_distance(profile: np.ndarray) -> float:
    """Mean of the distances 0..T-1 under shares [T] that add up to 1; NaN of NaN."""
    return float(profile @ np.arange(len(profile)))


def median_distance(profile: np.ndarray) -> float:
    """Least distance up to which shares [T] add up to at least one half; NaN of NaN."""
    if not np.isfinite(profile).all():
        return math.nan
    # Half of the sum and not 0.5: rounding may leave the sum a hair below 1.
    cumulative = np.cumsum(profile)
    return float(np.searchsorted(cumulative, 0.5 * cumulative[-1] * (1 - 1e-12)))


@dataclass
class HeadProfiles:
    """Profiles of the heads of one group, gathered sample by sample; all results are per head, NaN where undefined."""

    heads: int
    length: int
    samples: int = 0
    sums: np.ndarray = field(init=False)
    counted: np.ndarray = field(init=False)
    _sink: list[np.ndarray] = field(default_factory=list, init=False)
    _negative: list[np.ndarray] = field(default_factory=list, init=False)
    _near: list[np.ndarray] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.sums, self.counted = np.zeros((self.heads, self.length)), np.zeros(self.heads, dtype=np.int64)

    def add(self, weights: Tensor, query_positions: Tensor) -> None:
        """Weights [H, Q, T] of one sample, signed or not."""
        p = normalised(weights)
        sums, counted = distance_sums(p, query_positions)
        self.sums += sums.cpu().numpy()
        self.counted += counted.cpu().numpy()
        self._sink.append(p[..., :SINKS].sum(dim=-1).mean(dim=-1).double().cpu().numpy())
        self._negative.append(negative_share(weights).double().cpu().numpy())
        near = [ld_score(p, query_positions, window, SINKS)[0] for window in WINDOWS]
        self._near.append(torch.stack(near).double().cpu().numpy())
        self.samples += 1

    def profile(self) -> np.ndarray:
        """Share by distance, mean over queries and samples: [H, T]."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.counted[:, None] > 0, self.sums / self.counted[:, None], np.nan)

    def sink_share(self) -> np.ndarray:
        """Share of all influence on the first ``SINKS`` tokens [H]."""
        return np.mean(self._sink, axis=0)

    def negative_share(self) -> np.ndarray:
        """Share of all absolute influence with a negative sign [H]."""
        return np.mean(self._negative, axis=0)

    def near_shares(self) -> np.ndarray:
        """LDscore [window, H] for ``WINDOWS``, mean over the samples for which it is defined."""
        near = np.stack(self._near)
        defined = np.isfinite(near).sum(axis=0)
        return np.where(defined > 0, np.nansum(near, axis=0) / np.maximum(defined, 1), np.nan)


@dataclass
class NeedleShares:
    """QRscores of the heads of one group: share of influence on the tokens of a planted fact."""

    question: list[np.ndarray] = field(default_factory=list)
    last: list[np.ndarray] = field(default_factory=list)

    def add(self, weights: Tensor, gold: Tensor) -> None:
        """Weights [H, Q, T] of one prompt, whose queries are the tokens of its question."""
        p = normalised(weights)
        gold = gold.to(p.device)
        self.question.append(qr_score(p, gold).double().cpu().numpy())
        self.last.append(qr_score(p[:, -1:], gold).double().cpu().numpy())

    def mean_and_error(self, which: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean over prompts and its standard error [H], of ``question`` or ``last``; the error of one prompt is NaN."""
        values = np.stack(getattr(self, which))
        n = len(values)
        error = values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(values.shape[1], np.nan)
        return values.mean(axis=0), error
