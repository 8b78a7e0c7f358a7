"""RFIS and RPD maps of one model: checked once, so that everything after can trust shapes and values."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BandError

MAP_AXES = "[sample, layer, head, frequency]"
# Values are Jensen-Shannon divergences over ln 2, so they lie in [0, 1); rounding may leave a hair outside.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Maps:
    """Per-sample maps, float64 [n, L, H, F], with the model's frequencies and the null.

    ``inv_freq`` [F] in radians a position, falling, zeros at the end for groups without rotation; ``null`` [L, F] the
    closed-form g(r) of each layer; ``sample_weight`` [n]; ``layer_index`` [L]. The maps at initialisation are None
    for models whose initial weights are unknown. Layers of a hybrid may hold fewer heads than the array: the heads
    that are not there are 0 in all maps and False in ``present`` [L, H].
    """

    rfis: np.ndarray
    rpd: np.ndarray
    inv_freq: np.ndarray
    null: np.ndarray
    sample_weight: np.ndarray
    layer_index: np.ndarray
    present: np.ndarray
    rfis_initial: np.ndarray | None = None
    rpd_initial: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(samples, layers, heads, frequencies)."""
        return self.rpd.shape

    def mean_over_heads(self, values: np.ndarray) -> np.ndarray:
        """Mean of maps [n, L, H, F] over the heads that each layer has: [n, L, F]."""
        return values.sum(axis=2) / self.present.sum(axis=1)[:, None]

    @cached_property
    def layer_rpd(self) -> np.ndarray:
        """RPD, mean over heads: [n, L, F]."""
        return self.mean_over_heads(self.rpd)

    @cached_property
    def layer_rfis(self) -> np.ndarray:
        """RFIS, mean over heads: [n, L, F]."""
        return self.mean_over_heads(self.rfis)


def _check_map(
    name: str, values: Any, shape: tuple[int, ...] | None = None, present: np.ndarray | None = None
) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 4:
        raise BandError(f"{name}: expected {MAP_AXES}, got shape {array.shape}")
    if shape is not None and array.shape != shape:
        raise BandError(
            f"{name}: shape {array.shape} differs from that of rpd, {shape}; probe both on the same samples"
        )
    array = array.astype(np.float64)
    absent = np.isnan(array).all(axis=(0, 3)) if present is None else ~present
    array = np.where(absent[:, :, None] & np.isnan(array), 0.0, array)
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise BandError(f"{name}: {bad} of {array.size} values are NaN or infinite; probe the model again")
    low, high = array.min(initial=0.0), array.max(initial=0.0)
    if low < -TOLERANCE or high > 1 + TOLERANCE:
        raise BandError(
            f"{name}: values lie in [{low:.4g}, {high:.4g}], expected [0, 1): are these divergences over ln 2?"
        )
    return np.clip(array, 0.0, 1.0)


def check_maps(
    rfis: Any,
    rpd: Any,
    inv_freq: Any,
    null: Any,
    *,
    rfis_initial: Any = None,
    rpd_initial: Any = None,
    sample_weight: Any = None,
    layer_index: Any = None,
) -> Maps:
    """Check all arrays against one another; ``null`` may be [F] (one for all layers) or [L, F].

    Raises :class:`BandError` naming the array, what it holds and what was expected.
    """
    measured = np.asarray(rpd)
    rpd = _check_map("rpd", rpd)
    # A head that is NaN on every sample and frequency is one that its layer does not have.
    present = ~np.isnan(measured).all(axis=(0, 3))
    rfis = _check_map("rfis", rfis, rpd.shape, present)
    samples, layers, heads, groups = rpd.shape
    if samples < 2:
        raise BandError(f"rpd: {samples} sample(s); a confidence interval over samples needs at least 2, probe more")
    if layers < 1 or heads < 1:
        raise BandError(f"rpd: shape {rpd.shape} holds no layer or no head; expected {MAP_AXES}")
    if not present.any(axis=1).all():
        raise BandError(
            f"rpd: layer {int(present.any(axis=1).argmin())} of the array is NaN in every head; leave it out"
        )
    if (rfis_initial is None) != (rpd_initial is None):
        raise BandError("rfis_initial, rpd_initial: one is there without the other; store both or neither")
    if rpd_initial is not None:
        rpd_initial = _check_map("rpd_initial", rpd_initial, rpd.shape, present)
        rfis_initial = _check_map("rfis_initial", rfis_initial, rpd.shape, present)

    inv_freq = np.asarray(inv_freq, dtype=np.float64)
    if inv_freq.shape != (groups,):
        raise BandError(f"inv_freq: shape {inv_freq.shape}, expected ({groups},) as the last axis of rpd")
    rotated = int((inv_freq > 0).sum())
    ordered = (
        np.isfinite(inv_freq).all() and (inv_freq[rotated:] == 0).all() and (np.diff(inv_freq[:rotated]) < 0).all()
    )
    if not ordered:
        raise BandError(
            "inv_freq: expected positive frequencies falling with the index, then zeros for unrotated groups"
        )

    null = np.asarray(null, dtype=np.float64)
    if null.shape not in ((groups,), (layers, groups)):
        raise BandError(f"null: shape {null.shape}, expected ({groups},) or ({layers}, {groups})")
    null = np.broadcast_to(null, (layers, groups))
    if not (np.isfinite(null).all() and (null[:, :rotated] > 0).all()):
        raise BandError(
            "null: expected finite values above 0 for every rotated group (mean of 1 - cos over visible pairs)"
        )

    weight = np.ones(samples) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (samples,) or not np.isfinite(weight).all() or not (weight > 0).all():
        raise BandError(f"sample_weight: expected {samples} finite weights above 0, got shape {weight.shape}")
    index = np.arange(layers) if layer_index is None else np.asarray(layer_index)
    if index.shape != (layers,) or len(set(index.tolist())) != layers:
        raise BandError(f"layer_index: expected {layers} different layers, got {index.tolist()}")
    return Maps(rfis, rpd, inv_freq, null, weight, index.astype(int), present, rfis_initial, rpd_initial)


def read_npz(path: str | Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """All arrays of an .npz file (never pickles). Raises :class:`BandError` naming the file and what is wrong."""
    path = Path(path)
    if not path.is_file():
        raise BandError(f"{path} does not exist; run the step that measures the model first")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BandError(f"{path} cannot be read as an .npz file ({error}); measure the model again") from None
    missing = [key for key in required if key not in arrays]
    if missing:
        raise BandError(f"{path}: array {missing[0]!r} is missing, found {sorted(arrays)}; measure the model again")
    return arrays


def read_description(path: str | Path, required: tuple[str, ...]) -> dict[str, Any]:
    """The .json beside an .npz file. Raises :class:`BandError` naming the file and the missing key."""
    path = Path(path).with_suffix(".json")
    if not path.is_file():
        raise BandError(f"{path} does not exist; it is written beside the .npz file of the same name")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BandError(f"{path} is not valid JSON ({error}); measure the model again") from None
    for key in required:
        if not isinstance(value, dict) or key not in value:
            raise BandError(f"{path}: key {key!r} is missing; measure the model again")
    return value


def load_maps(path: str | Path) -> Maps:
    """Read and check a probe file; errors name the file."""
    arrays = read_npz(path, ("rfis", "rpd", "inv_freq", "null"))
    try:
        return check_maps(
            arrays["rfis"],
            arrays["rpd"],
            arrays["inv_freq"],
            arrays["null"],
            rfis_initial=arrays.get("rfis_initial"),
            rpd_initial=arrays.get("rpd_initial"),
            sample_weight=arrays.get("sample_weight"),
            layer_index=arrays.get("layer_index"),
        )
    except BandError as error:
        raise BandError(f"{path}: {error}") from None
