"""Norms of queries and keys by frequency group, from which earlier work reads bands (appendix B.5).

|c_r| <= scaling |q_r| |k_r| bounds how much a group can add to a logit; whether attention uses it, norms do not say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwh_kernels.rfis_rpd_reference import Pairing, split_pairs

from ..files import atomic_write, write_json
from ..progress import progress as show_progress
from .capture import LayerCapture, stream_layers
from .errors import ProbeError

ARRAYS = ("q_norm", "k_norm", "scaling", "inv_freq", "layer_index")


@dataclass(frozen=True)
class Norms:
    """Root mean squares over positions, float32 [sample, layer, head, frequency]; keys repeated for their query heads.

    ``scaling`` [L] is what the model multiplies dot products of rotated groups with; ``inv_freq`` [F] in radians a
    token, 0 for a group without rotation.
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


def group_norms(values: Tensor, frequencies: int, pairing: Pairing) -> Tensor:
    """Root mean square over positions of the length of each group: values [H, T, d] -> [H, F], F + 1 with a rest."""
    first, second = split_pairs(values, frequencies, pairing)
    squares = first.square() + second.square()
    if values.shape[-1] > 2 * frequencies:
        rest = values[..., 2 * frequencies :].square().sum(dim=-1, keepdim=True)
        squares = torch.cat([squares, rest], dim=-1)
    return squares.mean(dim=1).sqrt()


def measure_norms(
    model: torch.nn.Module, samples: Tensor | np.ndarray, num_queries: int, *, progress: bool = True
) -> Norms:
    """Norms of all RoPE heads on samples [n, T]: queries of the last ``num_queries`` positions, keys of all.

    Errors as in :mod:`hwh_core.probes.capture`; raises :class:`ProbeError` for layers that differ in their shape.
    """
    started = time.monotonic()
    q_norms, k_norms = [], []
    layers: list[tuple[int, float, Tensor]] = []
    for sample in show_progress(samples, "norms of q and k", unit="sample") if progress else samples:
        found: list[tuple[np.ndarray, np.ndarray]] = []
        layers.clear()

        def add(layer: LayerCapture, found: list = found) -> None:
            one, frequencies = layer.sample(0), layer.inv_freq.numel()
            q, k = (group_norms(values, frequencies, layer.pairing) for values in (one.q, one.k))
            found.append((q.cpu().numpy(), k.repeat_interleave(q.shape[0] // k.shape[0], dim=0).cpu().numpy()))
            layers.append((layer.layer, layer.scaling * layer.attention_scaling**2, layer.inv_freq))

        stream_layers(model, torch.as_tensor(sample)[None], num_queries, add)
        if not found:
            raise ProbeError("model: none of its layers rotates queries and keys, so there are no frequencies")
        if len({q.shape for q, _ in found}) > 1:
            raise ProbeError("model: its layers differ in heads or frequencies; norms need the same in all")
        q_norms.append(np.stack([q for q, _ in found]))
        k_norms.append(np.stack([k for _, k in found]))
    inv_freq = layers[0][2].double().cpu().numpy()
    groups = q_norms[0].shape[-1]
    return Norms(
        q_norm=np.stack(q_norms).astype(np.float32),
        k_norm=np.stack(k_norms).astype(np.float32),
        scaling=np.array([scaling for _, scaling, _ in layers]),
        inv_freq=np.pad(inv_freq, (0, groups - len(inv_freq))),
        layer_index=np.array([index for index, _, _ in layers]),
        description={
            "num_samples": len(samples),
            "length": int(samples.shape[1]),
            "num_queries": num_queries,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
