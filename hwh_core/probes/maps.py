"""RFIS and RPD maps of one model on one set of samples, and the files that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..files import atomic_write, write_json
from .errors import ProbeError

PER_SAMPLE = ("rfis", "rpd", "sample_weight")
REQUIRED = ("rfis", "rpd", "inv_freq", "null", "sample_weight", "layer_index")
OPTIONAL = ("rfis_initial", "rpd_initial", "layer_inv_freq")


@dataclass(frozen=True)
class ProbeMaps:
    """Maps before any average over samples.

    ``rfis`` and ``rpd`` float32 [sample, layer, head, frequency]; ``inv_freq`` float64 [F] in radians a token as read
    from the loaded model, 0 for a group without rotation; ``null`` float64 [F] (or [L, F] where layers differ), the
    closed-form g(r) of these query and key positions; ``sample_weight`` float64 [n]; ``layer_index`` int [L].
    Heads that a layer of a hybrid does not have are NaN. ``description`` is what probe.json holds. Where layers rotate
    with different frequencies (Gemma 3), ``layer_inv_freq`` [L, F] has those of each, and ``inv_freq`` the lowest.
    """

    rfis: np.ndarray
    rpd: np.ndarray
    inv_freq: np.ndarray
    null: np.ndarray
    sample_weight: np.ndarray
    layer_index: np.ndarray
    description: dict[str, Any] = field(default_factory=dict)
    rfis_initial: np.ndarray | None = None
    rpd_initial: np.ndarray | None = None
    layer_inv_freq: np.ndarray | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays as they go into the .npz file."""
        arrays = {name: getattr(self, name) for name in REQUIRED}
        arrays |= {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}
        return arrays

    def every_layer_has_all_heads(self) -> bool:
        """False for hybrids whose layers hold different numbers of heads with RoPE."""
        return not np.isnan(self.rpd).all(axis=(0, 3)).any()

    def save(self, npz: str | Path, json: str | Path | None = None) -> None:
        """Write the maps and, last, their description (beside them, by default with the suffix .json)."""
        npz = Path(npz)
        with atomic_write(npz) as temporary:
            np.savez_compressed(temporary, **self.arrays())
        write_json(npz.with_suffix(".json") if json is None else json, self.description)

    @classmethod
    def load(cls, npz: str | Path) -> ProbeMaps:
        """Read maps and, where it exists, the description beside them. Raises :class:`ProbeError`."""
        from ..files import read_json

        npz = Path(npz)
        if not npz.is_file():
            raise ProbeError(f"{npz} does not exist; probe the model first")
        with np.load(npz, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        missing = [name for name in REQUIRED if name not in arrays]
        if missing:
            raise ProbeError(f"{npz}: array {missing[0]!r} is missing; probe the model again")
        record = npz.with_suffix(".json")
        known = {name: arrays[name] for name in (*REQUIRED, *OPTIONAL) if name in arrays}
        return cls(**known, description=read_json(record) if record.is_file() else {})


def join_maps(parts: Sequence[ProbeMaps]) -> ProbeMaps:
    """Maps of several runs of one model as one, samples in the order of ``parts``; without maps at initialisation.

    Raises :class:`ProbeError` where the runs differ in layers, frequencies or length.
    """
    first = parts[0]
    for part in parts[1:]:
        for name in ("inv_freq", "layer_inv_freq", "null", "layer_index"):
            one, other = getattr(part, name), getattr(first, name)
            if (one is None) != (other is None) or (one is not None and not np.array_equal(one, other)):
                raise ProbeError(f"samples: {name} of the model changes from sample to sample; take equal lengths")
    about = [part.description for part in parts]
    description = {
        **about[0],
        "num_samples": sum(one["num_samples"] for one in about),
        "max_logit_error": max(one["max_logit_error"] for one in about),
        "seconds": round(sum(one["seconds"] for one in about), 3),
        "undefined": sum(one["undefined"] for one in about),
    }
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in PER_SAMPLE}
    return replace(first, **joined, description=description)
