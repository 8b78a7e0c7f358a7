"""Heads with a known place in frequency: the oracles on which extraction and classification are checked (S1, S2).

A planted head is noise (as an untrained head has it) plus structure in chosen frequency groups, given as queries and
keys before rotation. A group of angular frequency w with constant q and k contributes ``a cos(w (i - j) + phase)`` to
the logits. Vectors use the half pairing: group r is dimensions (r, r + F). This module makes q and k (numpy); whoever
calls it brings the function that turns them into RFIS and RPD.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .errors import BandError
from .maps import Maps, check_maps
from .null import closed_form_null

# (q [H, Q, d], k [H, T, d], inv_freq [F], scaling) -> (rfis [H, F], rpd [H, F]), mean over the last Q queries of T.
MapFunction = Callable[[np.ndarray, np.ndarray, np.ndarray, float], tuple[np.ndarray, np.ndarray]]
LOCAL_GROUPS = 5


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of planted heads: ``length`` keys, the last ``num_queries`` of them are queries; ``noise`` is the standard
    deviation of every component of q and k (logits of pure noise have standard deviation noise^2)."""

    head_dim: int
    length: int
    num_queries: int
    noise: float = 0.5

    def __post_init__(self) -> None:
        """Raise BandError for impossible sizes."""
        if self.head_dim < 8 or self.head_dim % 2:
            raise BandError(f"head_dim: expected an even number of at least 8, got {self.head_dim}")
        if not 1 <= self.num_queries <= self.length:
            raise BandError(f"num_queries: {self.num_queries} must lie in 1..length ({self.length})")

    @property
    def groups(self) -> int:
        """Number of frequency groups F."""
        return self.head_dim // 2

    @property
    def scaling(self) -> float:
        """Factor on q k: head_dim^-0.5."""
        return self.head_dim**-0.5


@dataclass(frozen=True)
class Vectors:
    """Queries [Q, d] and keys [T, d] of one head on one sample."""

    q: np.ndarray
    k: np.ndarray

    def __add__(self, other: Vectors) -> Vectors:
        """Sum of both structures (cross terms between independent parts are noise)."""
        return Vectors(self.q + other.q, self.k + other.k)


def noise_head(sizes: HeadSizes, rng: np.random.Generator) -> Vectors:
    """Isotropic q and k: what an untrained head has."""
    return Vectors(
        sizes.noise * rng.standard_normal((sizes.num_queries, sizes.head_dim)),
        sizes.noise * rng.standard_normal((sizes.length, sizes.head_dim)),
    )


def positional_head(sizes: HeadSizes, amplitudes: np.ndarray, phases: np.ndarray) -> Vectors:
    """Constant q and k whose logit is sum_r a_r cos(w_r (i - j) + phase_r); both [F], radians."""
    if amplitudes.shape != (sizes.groups,) or phases.shape != (sizes.groups,):
        raise BandError(f"amplitudes, phases: expected {sizes.groups} values, got {amplitudes.shape}, {phases.shape}")
    norm = np.sqrt(amplitudes / sizes.scaling)
    # (i - j) w + phase is the angle from rotated q to rotated k if k itself is turned by -phase.
    q = np.concatenate([norm, np.zeros(sizes.groups)])
    k = np.concatenate([norm * np.cos(phases), -norm * np.sin(phases)])
    return Vectors(np.tile(q, (sizes.num_queries, 1)), np.tile(k, (sizes.length, 1)))


def single_group(sizes: HeadSizes, group: int, amplitude: float, phase: float) -> Vectors:
    """The positional oracle: constant q and k in one group, logit ``amplitude cos(w (i - j) + phase)``."""
    amplitudes = np.zeros(sizes.groups)
    amplitudes[group] = amplitude
    return positional_head(sizes, amplitudes, np.full(sizes.groups, phase))


def local_head(sizes: HeadSizes, amplitude: float) -> Vectors:
    """The local oracle: all of the five highest frequencies in phase at distance 0."""
    amplitudes = np.where(np.arange(sizes.groups) < LOCAL_GROUPS, amplitude / LOCAL_GROUPS, 0.0)
    return positional_head(sizes, amplitudes, np.zeros(sizes.groups))


def retrieval_head(sizes: HeadSizes, boundary: float, strength: float, rng: np.random.Generator) -> Vectors:
    """The retrieval oracle: each query matches one earlier key by content in the groups beyond ``boundary``.

    Keys hold random unit vectors in those groups; the logit of the matched key is ``strength`` without rotation.
    """
    beyond = np.flatnonzero(np.arange(sizes.groups) > boundary)
    if len(beyond) == 0:
        raise BandError(f"boundary: no group lies beyond {boundary} of {sizes.groups}")
    dims = np.concatenate([beyond, beyond + sizes.groups])
    content = rng.standard_normal((sizes.length, len(dims)))
    content /= np.linalg.norm(content, axis=1, keepdims=True)
    norm = math.sqrt(strength / sizes.scaling)
    k = np.zeros((sizes.length, sizes.head_dim))
    k[:, dims] = norm * content
    first = sizes.length - sizes.num_queries
    targets = [rng.integers(0, first + i + 1) for i in range(sizes.num_queries)]
    q = np.zeros((sizes.num_queries, sizes.head_dim))
    q[:, dims] = norm * content[targets]
    return Vectors(q, k)


def _measure_samples(
    samples: list[list[Vectors]], inv_freq: np.ndarray, sizes: HeadSizes, measure: MapFunction
) -> tuple[np.ndarray, np.ndarray]:
    """RFIS and RPD [n, 1, H, F] of one layer's heads on every sample."""
    maps = [
        measure(np.stack([v.q for v in heads]), np.stack([v.k for v in heads]), inv_freq, sizes.scaling)
        for heads in samples
    ]
    return np.stack([rfis for rfis, _ in maps])[:, None], np.stack([rpd for _, rpd in maps])[:, None]


@dataclass(frozen=True)
class UntrainedLayer:
    """Noise of one layer's heads on every sample and its maps: the model at initialisation of planted heads."""

    sizes: HeadSizes
    inv_freq: np.ndarray
    seed: int
    noise: list[list[Vectors]]
    rfis: np.ndarray
    rpd: np.ndarray


def untrained_layer(
    sizes: HeadSizes, inv_freq: np.ndarray, num_heads: int, num_samples: int, seed: int, measure: MapFunction
) -> UntrainedLayer:
    """Draw and measure noise for ``num_heads`` heads; ``inv_freq`` [F] in radians a position (zeros: no rotation)."""
    noise = []
    for sample in range(num_samples):
        rng = np.random.default_rng([seed, sample, 0])
        noise.append([noise_head(sizes, rng) for _ in range(num_heads)])
    return UntrainedLayer(sizes, inv_freq, seed, noise, *_measure_samples(noise, inv_freq, sizes, measure))


def plant(
    layer: UntrainedLayer,
    make_heads: Callable[[np.random.Generator], list[Vectors]],
    measure: MapFunction,
    *,
    grid: np.ndarray | None = None,
) -> Maps:
    """Maps of the layer with structure added to every head, beside those of its noise alone as initial model.

    ``make_heads`` gives the structure of every head for one sample. ``grid`` [F] is the frequency grid that the
    extractor is told (default: the layer's own), so that heads without rotation can be shown on a rotated grid.
    """
    samples = []
    for sample, noise in enumerate(layer.noise):
        structure = make_heads(np.random.default_rng([layer.seed, sample, 1]))
        samples.append([a + b for a, b in zip(structure, noise, strict=True)])
    rfis, rpd = _measure_samples(samples, layer.inv_freq, layer.sizes, measure)
    grid = layer.inv_freq if grid is None else grid
    null = closed_form_null(grid, layer.sizes.length, layer.sizes.num_queries)
    return check_maps(rfis, rpd, grid, null, rfis_initial=layer.rfis, rpd_initial=layer.rpd)
