"""QRscore and LDscore: what the heads of a pretrained model do with a question and with nearby tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..files import atomic_write, read_json, write_json
from ..progress import progress as show_progress
from .capture import LayerCapture, stream_layers
from .contexts import Example

MINIMUM_MASS = 1e-4
"""LDscore of a query is undefined where less attention than this lies outside of the sink tokens."""

CALIBRATION_DEVIATIONS = 2.0
PER_SAMPLE = ("qr", "qr_calibrated", "ld")


@dataclass(frozen=True)
class BehaviorScores:
    """Per head: ``qr``, ``qr_calibrated`` [sample, layer, head]; ``ld`` [sample, layer, head, window, sink]."""

    qr: np.ndarray
    qr_calibrated: np.ndarray
    ld: np.ndarray
    windows: np.ndarray
    sinks: np.ndarray
    description: dict[str, Any] = field(default_factory=dict)

    def save(self, npz: str | Path) -> None:
        """Write behavior.npz and, last, behavior.json beside it."""
        with atomic_write(npz) as temporary:
            np.savez_compressed(temporary, **self.arrays())
        write_json(Path(npz).with_suffix(".json"), self.description)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays as they go into the .npz file."""
        return {name: getattr(self, name) for name in (*PER_SAMPLE, "windows", "sinks")}

    @classmethod
    def load(cls, npz: str | Path) -> BehaviorScores:
        """Read what :meth:`save` wrote."""
        with np.load(npz, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return cls(**arrays, description=read_json(Path(npz).with_suffix(".json")))


def qr_score(p: Tensor, gold: Tensor) -> Tensor:
    """QRscore [H]: attention mass on the gold key positions, mean over queries; p [H, Q, T]."""
    return p[..., gold].sum(dim=-1).mean(dim=-1)


def calibrated_qr_score(attention: Tensor, null: Tensor, gold: Tensor) -> Tensor:
    """QRscore of one gold document after calibration [H], following the public detection code of QRHead.

    ``attention`` and ``null`` [H, T] are attention to each key, mean over queries, under the question and under a
    question without content; ``gold`` the positions of the document. Their difference is taken per token; tokens below
    the document's mean - 2 standard deviations (of a sample) count 0; the rest is summed.
    """
    difference = attention[:, gold] - null[:, gold]
    if gold.numel() < 2:
        return difference.sum(dim=-1)
    lowest = difference.mean(dim=-1, keepdim=True) - CALIBRATION_DEVIATIONS * difference.std(dim=-1, keepdim=True)
    return torch.where(difference < lowest, torch.zeros_like(difference), difference).sum(dim=-1)


def ld_score(p: Tensor, query_positions: Tensor, window: int, sinks: int) -> tuple[Tensor, int]:
    """LDscore [H] and the number of (head, query) for which it is undefined; p [H, Q, T], keys at positions 0..T-1.

    The share of attention outside of the first ``sinks`` keys that lies on the ``window`` newest ones, mean over the
    queries for which it is defined; NaN for a head without such a query.
    """
    keys = torch.arange(p.shape[-1], device=p.device)
    distance = query_positions[:, None] - keys[None, :]
    beyond = (keys >= sinks)[None, :] & (distance >= 0)
    near = beyond & (distance < window)
    mass = torch.einsum("hqt,qt->hq", p, beyond.to(p.dtype))
    local = torch.einsum("hqt,qt->hq", p, near.to(p.dtype))
    defined = mass >= MINIMUM_MASS
    ratio = torch.where(defined, local / mass.clamp_min(MINIMUM_MASS), torch.zeros_like(mass))
    counts = defined.sum(dim=-1)
    score = torch.where(counts > 0, ratio.sum(dim=-1) / counts.clamp_min(1), math.nan)
    return score, int((~defined).sum())


class BehaviorCollector:
    """Scores the layers of one prompt as they come. Without gold tokens QRscore is undefined."""

    def __init__(self, example: Example, windows: Sequence[int], sinks: Sequence[int]) -> None:
        self.example, self.windows, self.sinks = example, list(windows), list(sinks)
        self.gold = torch.from_numpy(example.gold_positions())
        self.started = time.monotonic()
        self.layers: list[int] = []
        self.qr: list[np.ndarray] = []
        self.attention: list[Tensor] = []
        self.ld: list[np.ndarray] = []
        self.undefined = 0

    def add(self, layer: LayerCapture) -> None:
        """Raw QRscore and LDscore of one captured attention group, and its attention for the calibration."""
        p = layer.sample(0).probabilities()
        self.layers.append(layer.layer)
        if self.gold.numel():
            self.qr.append(qr_score(p, self.gold.to(p.device)).cpu().numpy())
            self.attention.append(p.mean(dim=1).cpu())
        else:
            self.qr.append(np.full(p.shape[0], np.nan))
        grid = np.empty((p.shape[0], len(self.windows), len(self.sinks)))
        for i, window in enumerate(self.windows):
            for j, sinks in enumerate(self.sinks):
                score, undefined = ld_score(p, layer.query_positions, window, sinks)
                grid[:, i, j] = score.cpu().numpy()
                self.undefined += undefined
        self.ld.append(grid)

    def scores(
        self, model: torch.nn.Module, num_queries: int, calibrate: bool, nope: Literal["skip", "include"] = "skip"
    ) -> BehaviorScores:
        """The scores of this prompt; the calibration takes a second forward pass, under a question without content."""
        if calibrate and self.gold.numel():
            calibrated = self._calibrated(model, num_queries, nope)
        else:
            calibrated = [np.full_like(qr, np.nan) for qr in self.qr]
        qr, ld = self._by_layer(self.qr), self._by_layer(self.ld)
        description = {
            "num_samples": 1,
            "num_queries": num_queries,
            "layer_index": sorted(set(self.layers)),
            "lengths": [len(self.example.prompt())],
            "gold_tokens": [int(self.gold.numel())],
            "gold_start": [self.example.gold[0][0] if self.example.gold else None],
            "calibrated": calibrate,
            "undefined": {
                "ld_queries": self.undefined,
                "ld_scores": int(np.isnan(ld).sum()),
                "ld_scores_total": int(ld.size),
                "qr_scores": int(np.isnan(qr).sum()),
            },
            "minimum_mass": MINIMUM_MASS,
            "seconds": round(time.monotonic() - self.started, 3),
        }
        return BehaviorScores(
            qr=qr.astype(np.float32), qr_calibrated=self._by_layer(calibrated).astype(np.float32),
            ld=ld.astype(np.float32), windows=np.array(self.windows), sinks=np.array(self.sinks),
            description=description,
        )  # fmt: skip

    def _calibrated(
        self, model: torch.nn.Module, num_queries: int, nope: Literal["skip", "include"]
    ) -> list[np.ndarray]:
        null: list[Tensor] = []

        def mean_attention(layer: LayerCapture) -> None:
            null.append(layer.sample(0).probabilities().mean(dim=1).cpu())

        stream_layers(model, torch.tensor([self.example.prompt(null=True)]), num_queries, mean_attention, nope)
        # Both prompts begin with the same context, so gold positions are the same in both.
        documents = [torch.arange(start, stop) for start, stop in self.example.gold]
        return [
            sum(calibrated_qr_score(real, empty, document) for document in documents).numpy()
            for real, empty in zip(self.attention, null, strict=True)
        ]

    def _by_layer(self, groups: list[np.ndarray]) -> np.ndarray:
        """Values [H, ...] of every head group as [1, L, H, ...], NaN for heads that a layer does not have."""
        index = sorted(set(self.layers))
        placed = list(zip(self.layers, groups, strict=True))
        rows = [np.concatenate([values for at, values in placed if at == layer]) for layer in index]
        values = np.full((1, len(rows), max(map(len, rows)), *rows[0].shape[1:]), np.nan)
        for place, row in enumerate(rows):
            values[0, place, : len(row)] = row
        return values


def join_scores(parts: Sequence[BehaviorScores]) -> BehaviorScores:
    """Scores of several prompts as one, in their order."""
    about = [part.description for part in parts]
    description = {
        **about[0],
        "num_samples": sum(one["num_samples"] for one in about),
        **{key: [value for one in about for value in one[key]] for key in ("lengths", "gold_tokens", "gold_start")},
        "undefined": {key: sum(one["undefined"][key] for one in about) for key in about[0]["undefined"]},
        "seconds": round(sum(one["seconds"] for one in about), 3),
    }
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in PER_SAMPLE}
    return replace(parts[0], **joined, description=description)


def behavior_scores(
    model: torch.nn.Module,
    examples: list[Example],
    num_queries: int,
    windows: list[int],
    sinks: list[int],
    calibrate: bool = True,
    progress: bool = True,
) -> BehaviorScores:
    """QRscore, raw and calibrated, and LDscore of all RoPE heads over the last ``num_queries`` positions of a prompt.

    Without ``calibrate`` the calibrated score is NaN. Undefined values are NaN and counted in the description.
    Errors as in :mod:`hwh_core.probes.capture`.
    """
    parts = []
    for example in show_progress(examples, "QRscore and LDscore", unit="sample") if progress else examples:
        collector = BehaviorCollector(example, windows, sinks)
        stream_layers(model, torch.tensor([example.prompt()]), num_queries, collector.add)
        parts.append(collector.scores(model, num_queries, calibrate))
    return join_scores(parts)
