"""RFIS and RPD of all attention heads of a model on a set of samples."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hwh_kernels.rfis_rpd import choose_backend, rfis_rpd, work_elements

from ..gpband.null import null_for_positions
from ..progress import progress as show_progress
from .capture import LayerCapture, stream_layers
from .errors import ProbeError, UnsupportedModelError
from .maps import ProbeMaps, join_maps
from .observers import adapter_for

BATCH_TOKENS = 16384
"""Tokens that go through one forward pass together; short samples share one."""


def sample_ids(samples: Any, tokenizer: Any = None) -> Tensor:
    """Samples as int64 [samples, tokens]: arrays are taken as they are, texts need a tokenizer and equal lengths."""
    if isinstance(samples, Sequence) and samples and isinstance(samples[0], str):
        if tokenizer is None:
            raise ProbeError("samples: texts were given without a tokenizer; give one, or token ids")
        rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in samples]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) != 1:
            raise ProbeError(
                f"samples: texts of {lengths[0]} to {lengths[-1]} tokens; all samples must be equally long"
            )
        samples = rows
    ids = torch.as_tensor(np.asarray(samples), dtype=torch.int64)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ProbeError(f"samples of shape {tuple(ids.shape)}: expected token ids [samples, tokens], none of them 0")
    return ids


def _batches(ids: Tensor) -> list[Tensor]:
    return list(ids.split(max(1, BATCH_TOKENS // ids.shape[1])))


def measure_maps(
    model: torch.nn.Module,
    tokenizer: Any,
    samples: Any,
    num_queries: int,
    backend: str = "auto",
    progress: bool = True,
    description: str = "probe",
) -> ProbeMaps:
    """RFIS and RPD of the last ``num_queries`` positions of every sample, per sample, layer, head and frequency.

    ``samples`` are token ids [n, T], or texts for ``tokenizer`` (None with ids). Only attention groups with RoPE are
    measured; in a model that has none at all, the groups without position encoding are, with frequencies 0 and RPD 0.
    Several groups of a layer follow one another on the head axis. ``backend`` as in :mod:`hwh_kernels.rfis_rpd`.

    Raises :class:`~hwh_core.probes.errors.ProbeError` for samples that do not fit and the errors of
    :mod:`hwh_core.probes.capture`.
    """
    ids = check_vocabulary(model, sample_ids(samples, tokenizer))
    collectors = collectors_for(model, ids.shape[0], backend)
    batches: Iterable[Tensor] = _batches(ids)
    if progress:
        batches = show_progress(batches, description, unit="batch" if len(batches) < ids.shape[0] else "sample")
    parts = []
    for batch in batches:
        started = time.monotonic()
        collector = next(collectors)
        stream_layers(model, batch, num_queries, collector.add, collector.nope)
        parts.append(collector.maps(model, batch.shape[1], num_queries, time.monotonic() - started))
    return join_maps(parts)


def check_vocabulary(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """The same ids; raises :class:`ProbeError` where one is no token of the model."""
    vocabulary = model.get_input_embeddings().num_embeddings
    if int(ids.max()) >= vocabulary or int(ids.min()) < 0:
        raise ProbeError(
            f"samples: token {int(ids.max())} is outside the model's vocabulary of {vocabulary} tokens; the tokenizer "
            "beside the model is that of another model"
        )
    return ids


def collectors_for(model: torch.nn.Module, num_samples: int, backend: str) -> Iterator[MapCollector]:
    """A collector for each forward pass over some of ``num_samples`` samples; all use the backend of the first."""
    repeats = num_samples * getattr(model.config, "num_hidden_layers", 1)
    nope: Literal["skip", "include"] = "skip" if adapter_for(model).frequency_tables(model) else "include"
    chosen = None
    while True:
        collector = MapCollector(backend, repeats, chosen, nope)
        yield collector
        chosen = collector.chosen


class MapCollector:
    """Measures the layers of one forward pass as they come."""

    def __init__(self, backend: str, repeats: int, chosen: str | None, nope: Literal["skip", "include"]) -> None:
        self.backend = backend
        self.repeats = repeats
        self.chosen = chosen
        self.nope = nope
        self.layers: list[tuple[int, dict[str, Any], np.ndarray, np.ndarray]] = []
        self.max_logit_error = 0.0

    def add(self, layer: LayerCapture) -> None:
        """RFIS and RPD of one captured attention group."""
        batch, heads, queries, _ = layer.q.shape
        keys = layer.k.shape[2]
        if self.chosen is None:
            elements = self.repeats * work_elements(heads, queries, keys, layer.num_frequency_groups)
            try:
                self.chosen = choose_backend(self.backend, layer.q.device, elements, layer.q.dtype)
            except ValueError as error:
                raise ProbeError(str(error)) from None
        rfis, rpd = rfis_rpd(
            layer.q.flatten(0, 1), layer.k.flatten(0, 1), layer.inv_freq, layer.query_positions, layer.key_positions,
            scaling=layer.scaling, attention_scaling=layer.attention_scaling, pairing=layer.pairing,
            window=layer.window, softcap=layer.softcap, backend=self.chosen,
        )  # fmt: skip
        shape = (batch, heads, layer.num_frequency_groups)
        self.max_logit_error = max(self.max_logit_error, layer.max_logit_error)
        # Without q and k: one layer's worth of them is held at a time.
        self.layers.append(
            (
                layer.layer,
                _outline(layer),
                rfis.float().cpu().numpy().reshape(shape),
                rpd.float().cpu().numpy().reshape(shape),
            )
        )

    def maps(self, model: torch.nn.Module, length: int, num_queries: int, seconds: float) -> ProbeMaps:
        """The maps of all samples of this forward pass, each ``length`` tokens long."""
        if not self.layers:
            raise UnsupportedModelError(f"model {type(model).__name__}: it has no attention layer that could be probed")
        sizes = sorted({outline["groups"] for _, outline, _, _ in self.layers})
        if len(sizes) > 1:
            raise UnsupportedModelError(
                f"model: its attention layers have {sizes} frequency groups; they must be equal"
            )
        index = sorted({layer for layer, _, _, _ in self.layers})
        heads = [sum(o["heads"] for layer, o, _, _ in self.layers if layer == wanted) for wanted in index]
        samples = len(self.layers[0][2])
        shape = (samples, len(index), max(heads), sizes[0])
        rfis, rpd = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        filled = dict.fromkeys(index, 0)
        for layer, outline, layer_rfis, layer_rpd in self.layers:
            place = slice(filled[layer], filled[layer] + outline["heads"])
            rfis[:, index.index(layer), place] = layer_rfis
            rpd[:, index.index(layer), place] = layer_rpd
            filled[layer] += outline["heads"]
        outlines = {layer: outline for layer, outline, _, _ in reversed(self.layers)}
        tables = [_padded(outlines[layer]) for layer in index]
        nulls = [
            null_for_positions(table, o["query_positions"], o["key_positions"], o["window"])
            for table, o in zip(tables, (outlines[layer] for layer in index), strict=True)
        ]
        same = all(np.array_equal(null, nulls[0]) for null in nulls)
        lowest = min(tables, key=lambda table: float(np.min(table, where=table > 0, initial=np.inf)))
        one = outlines[index[0]]
        description = {
            "model": getattr(model, "name_or_path", "") or type(model).__name__,
            "rope_theta": rope_theta(model, one["inv_freq"]) if one["rotates"] else None,
            "head_dim": one["head_dim"],
            "num_layers": len(index),
            "num_heads": max(heads),
            "num_kv_heads": one["kv_heads"],
            "length": length,
            "training_length": None,
            "eval_length_factor": None,
            "num_queries": num_queries,
            "num_samples": samples,
            "seed": None,
            "qk_norm": has_qk_norm(model),
            "max_logit_error": self.max_logit_error,
            "backend": self.chosen,
            "seconds": round(seconds, 3),
            "undefined": int((~np.isfinite(rpd)).sum()),
            "windows": sorted({o["window"] for o in outlines.values() if o["window"] is not None}),
        }
        return ProbeMaps(
            rfis=rfis, rpd=rpd, inv_freq=lowest, null=nulls[0] if same else np.stack(nulls),
            sample_weight=np.ones(samples), layer_index=np.array(index), description=description,
            layer_inv_freq=None if all(np.array_equal(table, lowest) for table in tables) else np.stack(tables),
        )  # fmt: skip


def _outline(layer: LayerCapture) -> dict[str, Any]:
    """What is kept of a captured group once it is measured."""
    return {
        "inv_freq": layer.inv_freq.double().cpu().numpy(),
        "groups": layer.num_frequency_groups,
        "window": layer.window,
        "rotates": layer.rotates,
        "head_dim": layer.q.shape[-1],
        "heads": layer.q.shape[1],
        "kv_heads": layer.k.shape[1],
        "query_positions": layer.query_positions.cpu().numpy(),
        "key_positions": layer.key_positions.cpu().numpy(),
    }


def _padded(outline: dict[str, Any]) -> np.ndarray:
    """Frequencies [groups]: a group of unrotated dimensions has frequency 0."""
    inv_freq = outline["inv_freq"]
    return np.concatenate([inv_freq, np.zeros(outline["groups"] - inv_freq.size)])


def rope_theta(model: torch.nn.Module, inv_freq: np.ndarray) -> float | None:
    """The RoPE base that the model's config states; None where it states none or several.

    Raises :class:`UnsupportedModelError` when an unscaled table of the loaded model belongs to another base.
    """
    config = model.config
    parameters = getattr(config, "rope_parameters", None) or {}
    theta = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    if theta is None and hasattr(model, "rope_groups"):
        thetas = {module.group.rope_theta for _, _, module in model.rope_groups()}
        theta = thetas.pop() if len(thetas) == 1 else None
    if theta is None:
        return None
    if parameters.get("rope_type", "default") == "default" and inv_freq.size > 1:
        expected = float(theta) ** (-1.0 / inv_freq.size)
        found = float(inv_freq[1] / inv_freq[0])
        if not math.isclose(expected, found, rel_tol=1e-4):
            raise UnsupportedModelError(
                f"model: its config states rope_theta {theta}, but the frequencies of the loaded model fall by "
                f"{found:.6f} a step instead of {expected:.6f}; the weights were loaded with another base, or their "
                "frequencies rounded by a cast of the whole model (give the type to from_pretrained instead)"
            )
    return float(theta)


def has_qk_norm(model: torch.nn.Module) -> bool:
    """Whether any attention layer normalises q and k."""
    return any(getattr(module, "q_norm", None) is not None for module in model.modules())
