"""Norms of queries and keys by frequency group, from which earlier work reads bands (appendix B.5).

|c_r| <= scaling |q_r| |k_r| bounds how much a group can add to a logit; whether attention uses it, norms do not say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwh_kernels.rfis_rpd_reference import Pairing, split_pairs

from ..files import atomic_write, read_json, write_json
from ..progress import progress as show_progress
from .capture import LayerCapture, stream_layers
from .errors import ProbeError

ARRAYS = ("q_norm", "k_norm", "scaling", "inv_freq", "layer_index")


@dataclass(frozen=True)
class Norms:
    """Root mean squares over positions, float32 [sample, layer, head, frequency]; keys repeated for their query heads.

    ``scaling`` [L] is what the model multiplies dot products of rotated groups with; ``inv_freq`` [F] in radians a
    token, 0 for a group without rotation: where layers differ, those of the layer that reaches lowest. Heads that a
    layer does not have are NaN.
    """

    q_norm: np.ndarray
    k_norm: np.ndarray
    scaling: np.ndarray
    inv_freq: np.ndarray
    layer_index: np.ndarray
    description: dict[str, Any] = field(default_factory=dict)

    def save(self, npz: str | Path) -> None:
        """Write the arrays and, last, their description beside them."""
        npz = Path(npz)
        with atomic_write(npz) as temporary:
            np.savez_compressed(temporary, **{name: getattr(self, name) for name in ARRAYS})
        write_json(npz.with_suffix(".json"), self.description)

    @classmethod
    def load(cls, npz: str | Path) -> Norms:
        """Read what :meth:`save` wrote."""
        with np.load(npz, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAYS}
        return cls(**arrays, description=read_json(Path(npz).with_suffix(".json")))


def group_norms(values: Tensor, frequencies: int, pairing: Pairing) -> Tensor:
    """Root mean square over positions of the length of each group: values [H, T, d] -> [H, F], F + 1 with a rest."""
    first, second = split_pairs(values, frequencies, pairing)
    squares = first.square() + second.square()
    if values.shape[-1] > 2 * frequencies:
        rest = values[..., 2 * frequencies :].square().sum(dim=-1, keepdim=True)
        squares = torch.cat([squares, rest], dim=-1)
    return squares.mean(dim=1).sqrt()


class NormCollector:
    """Norms of the layers of one sample as they come."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, float, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, layer: LayerCapture) -> None:
        """Norms of one captured attention group, of the first sample of its batch."""
        one, frequencies = layer.sample(0), layer.inv_freq.numel()
        q, k = (group_norms(values, frequencies, layer.pairing) for values in (one.q, one.k))
        k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
        inv_freq = np.pad(layer.inv_freq.double().cpu().numpy(), (0, q.shape[1] - frequencies))
        scaling = layer.scaling * layer.attention_scaling**2
        self.layers.append((layer.layer, scaling, inv_freq, q.cpu().numpy(), k.cpu().numpy()))

    def norms(self) -> Norms:
        """All layers, groups of one behind one another on the head axis.

        Raises :class:`ProbeError` where there is none, or where layers differ in their number of frequencies.
        """
        if not self.layers:
            raise ProbeError("model: none of its layers rotates queries and keys, so there are no frequencies")
        if len({inv_freq.size for _, _, inv_freq, _, _ in self.layers}) > 1:
            raise ProbeError("model: its layers differ in their frequencies; norms need the same number in all")
        index = sorted({layer for layer, *_ in self.layers})
        groups = [[one for one in self.layers if one[0] == layer] for layer in index]
        q_norm, k_norm = (_stacked([np.concatenate([one[at] for one in group]) for group in groups]) for at in (3, 4))
        tables = [inv_freq for _, _, inv_freq, _, _ in self.layers]
        return Norms(
            q_norm=q_norm[None],
            k_norm=k_norm[None],
            scaling=np.array([group[0][1] for group in groups]),
            inv_freq=min(tables, key=lambda table: float(np.min(table, where=table > 0, initial=np.inf))),
            layer_index=np.array(index),
        )


def _stacked(layers: list[np.ndarray]) -> np.ndarray:
    """Arrays [heads, F] of all layers as one float32 array; heads that a layer does not have are NaN."""
    heads = max(map(len, layers))
    padded = [np.pad(one, ((0, heads - len(one)), (0, 0)), constant_values=np.nan) for one in layers]
    return np.stack(padded).astype(np.float32)


def join_norms(parts: Sequence[Norms], description: dict[str, Any]) -> Norms:
    """Norms of several samples of one model as one."""
    q_norm, k_norm = (np.concatenate([getattr(part, name) for part in parts]) for name in ("q_norm", "k_norm"))
    return replace(parts[0], q_norm=q_norm, k_norm=k_norm, description={"num_samples": len(q_norm), **description})


def measure_norms(
    model: torch.nn.Module, samples: Tensor | np.ndarray, num_queries: int, *, progress: bool = True
) -> Norms:
    """Norms of all RoPE heads on samples [n, T]: queries of the last ``num_queries`` positions, keys of all.

    Errors as in :mod:`hwh_core.probes.capture` and of :meth:`NormCollector.norms`.
    """
    started = time.monotonic()
    parts = []
    for sample in show_progress(samples, "norms of q and k", unit="sample") if progress else samples:
        collector = NormCollector()
        stream_layers(model, torch.as_tensor(sample)[None], num_queries, collector.add)
        parts.append(collector.norms())
    seconds = round(time.monotonic() - started, 3)
    about = {"length": int(samples.shape[1]), "num_queries": num_queries, "seconds": seconds}
    return join_norms(parts, about)
