"""Artificial RFIS and RPD maps with a known band, for the tests of extraction and head classes."""

from __future__ import annotations

import numpy as np

from hwh_core.gpband.null import closed_form_null
from hwh_core.rope import inverse_frequencies

SAMPLES, LAYERS, HEADS, GROUPS = 12, 3, 2, 32
LENGTH, QUERIES, THETA = 256, 64, 1e4


def frequencies(theta: float = THETA) -> np.ndarray:
    return inverse_frequencies(2 * GROUPS, theta)


def null(theta: float = THETA, length: int = LENGTH) -> np.ndarray:
    return closed_form_null(frequencies(theta), length, QUERIES)


def noisy(curve: np.ndarray, rng: np.random.Generator, noise: float, layers: int = LAYERS) -> np.ndarray:
    """Per-sample maps [n, L, H, F] around ``curve`` [F] or [L, F], multiplied by log-normal noise."""
    curve = np.broadcast_to(curve, (layers, GROUPS))[None, :, None, :]
    return curve * np.exp(noise * rng.standard_normal((SAMPLES, layers, HEADS, GROUPS)))


def bump(centre: float, width: float = 1.0) -> np.ndarray:
    """Gaussian in the index (log frequency), height 1."""
    return np.exp(-0.5 * ((np.arange(GROUPS) - centre) / width) ** 2)


def banded_maps(
    centre: float, *, seed: int = 0, noise: float = 0.05, rfis_centre: float | None = None, theta: float = THETA
) -> dict[str, np.ndarray]:
    """Arguments of extract_band: a bump times the null over a floor; the initial model is the floor times the null."""
    rng = np.random.default_rng(seed)
    g = null(theta)
    floor = 0.004
    return {
        "rpd": noisy(g * (0.2 * bump(centre) + floor), rng, noise),
        "rfis": noisy(0.2 * bump(centre if rfis_centre is None else rfis_centre) + floor, rng, noise),
        "inv_freq": frequencies(theta),
        "null": g,
        "rpd_initial": noisy(g * floor, rng, noise),
        "rfis_initial": noisy(np.full(GROUPS, floor), rng, noise),
    }


def untrained_maps(*, seed: int = 0, scale: float = 1.0, noise: float = 0.05) -> dict[str, np.ndarray]:
    """Maps proportional to the null; ``scale`` times those of the model at initialisation."""
    rng = np.random.default_rng(seed)
    g = null()
    initial, flat = noisy(0.005 * g, rng, noise), noisy(np.full(GROUPS, 0.005), rng, noise)
    return {
        "rpd": scale * initial,
        "rfis": scale * flat,
        "inv_freq": frequencies(),
        "null": g,
        "rpd_initial": initial,
        "rfis_initial": flat,
    }
