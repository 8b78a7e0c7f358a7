"""Norms of q and k beside RFIS and RPD of one model: their shares by frequency, and how far they agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import PretrainedModel
from ..statistics import spearman
from .results import Maps, Results
from .selection import ReportError


@dataclass(frozen=True)
class Shares:
    """Shares of each frequency in the sum over frequencies, [head, F] over all heads; ``layer`` the row of each head.

    ``norm`` is scaling * |q| |k|, the bound on what a frequency adds to a logit (mean over samples).
    """

    maps: Maps
    layer: np.ndarray
    norm: np.ndarray
    rfis: np.ndarray
    rpd: np.ndarray

    def by_layer(self, name: str) -> np.ndarray:
        """Mean over the heads of each layer: [layer, F]."""
        values = getattr(self, name)
        return np.stack([values[self.layer == row].mean(axis=0) for row in range(len(self.maps.layer_index))])

    def agreement(self, name: str) -> np.ndarray:
        """Spearman correlation over frequencies between the norm and ``rfis`` or ``rpd``, of every head: [head]."""
        return spearman(self.norm, getattr(self, name))


def norm_product(norms: dict[str, np.ndarray], maps: Maps, name: str) -> np.ndarray:
    """scaling * |q| |k| [layer, head, F], mean over samples, from the arrays of norms.npz of the model called ``name``.

    Raises :class:`ReportError` where they are not of the model of ``maps``.
    """
    product = (norms["q_norm"] * norms["k_norm"]).mean(axis=0) * norms["scaling"][:, None, None]
    if product.shape != maps.rpd.shape[1:] or not np.array_equal(norms["layer_index"], maps.layer_index):
        raise ReportError(
            f"norms.npz of {name} has (layers, heads, frequencies) {product.shape}, its probe {maps.rpd.shape[1:]}; "
            "make both again from one model"
        )
    return product


def shares(results: Results, model: PretrainedModel) -> Shares:
    """Read norms and maps of a model. Raises :class:`ReportError` where they are not of the same model."""
    maps = results.pretrained_maps(model)
    product = norm_product(results.norms(model), maps, model.name)
    means = {name: maps.mean(name) for name in ("rfis", "rpd")}
    present = np.isfinite(means["rpd"]).all(axis=2)

    def share(values: np.ndarray) -> np.ndarray:
        chosen = values[present].astype(float)
        total = chosen.sum(axis=1, keepdims=True)
        return np.divide(chosen, total, out=np.zeros_like(chosen), where=total > 0)

    rows = np.nonzero(present)[0]
    return Shares(maps, rows, share(product), share(means["rfis"]), share(means["rpd"]))
