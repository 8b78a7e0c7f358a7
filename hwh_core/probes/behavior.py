"""QRscore and LDscore: what the heads of a pretrained model do with a question and with nearby tokens."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import atomic_write, write_json
from ..progress import progress as show_progress
from .capture import LayerCapture, stream_layers
from .contexts import Example

MINIMUM_MASS = 1e-4
"""LDscore of a query is undefined where less attention than this lies outside of the sink tokens."""

CALIBRATION_DEVIATIONS = 2.0


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
        arrays = {name: getattr(self, name) for name in ("qr", "qr_calibrated", "ld", "windows", "sinks")}
        with atomic_write(npz) as temporary:
            np.savez_compressed(temporary, **arrays)
        write_json(Path(npz).with_suffix(".json"), self.description)


def qr_score(p: Tensor, gold: Tensor) -> Tensor:
    """QRscore [H]: attention mass on the gold key positions, mean over queries; p [H, Q, T]."""
    return p[..., gold].sum(dim=-1).mean(dim=-1)


def calibrated_qr_score(attention: Tensor, null: Tensor, gold: Tensor) -> Tensor:
    """QRscore after calibration [H], following the public detection code of QRHead.

    ``attention`` and ``null`` [H, T] are attention to each key, mean over queries, under the question and under a
    question without content. Their difference is taken per token; tokens of the gold document below the document's
    mean - 2 standard deviations count 0; the rest is summed.
    """
    difference = attention[:, gold] - null[:, gold]
    deviation = difference.std(dim=-1, keepdim=True, correction=0)
    lowest = difference.mean(dim=-1, keepdim=True) - CALIBRATION_DEVIATIONS * deviation
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


class _Scorer:
    """Scores the layers of one prompt as they come."""

    def __init__(self, gold: Tensor, windows: list[int], sinks: list[int]) -> None:
        self.gold, self.windows, self.sinks = gold, windows, sinks
        self.layers: list[int] = []
        self.qr: list[np.ndarray] = []
        self.attention: list[Tensor] = []
        self.ld: list[np.ndarray] = []
        self.undefined = 0

    def add(self, layer: LayerCapture) -> None:
        p = layer.sample(0).probabilities()
        gold = self.gold.to(p.device)
        self.layers.append(layer.layer)
        self.qr.append(qr_score(p, gold).cpu().numpy())
        self.attention.append(p.mean(dim=1).cpu())
        grid = np.empty((p.shape[0], len(self.windows), len(self.sinks)))
        for i, window in enumerate(self.windows):
            for j, sinks in enumerate(self.sinks):
                score, undefined = ld_score(p, layer.query_positions, window, sinks)
                grid[:, i, j] = score.cpu().numpy()
                self.undefined += undefined
        self.ld.append(grid)


class _MeanAttention:
    """Keeps the attention of every layer to every key, mean over queries."""

    def __init__(self) -> None:
        self.attention: list[Tensor] = []

    def add(self, layer: LayerCapture) -> None:
        self.attention.append(layer.sample(0).probabilities().mean(dim=1).cpu())


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
    started = time.monotonic()
    qr, calibrated, ld, undefined = [], [], [], 0
    layers: list[int] = []
    for example in show_progress(examples, "QRscore and LDscore", unit="sample") if progress else examples:
        gold = torch.from_numpy(example.gold_positions())
        scorer = _Scorer(gold, windows, sinks)
        stream_layers(model, torch.tensor([example.prompt()]), num_queries, scorer.add)
        layers = scorer.layers
        undefined += scorer.undefined
        qr.append(np.stack(scorer.qr))
        ld.append(np.stack(scorer.ld))
        if calibrate:
            null = _MeanAttention()
            stream_layers(model, torch.tensor([example.prompt(null=True)]), num_queries, null.add)
            # Both prompts begin with the same context, so gold positions are the same in both.
            pairs = zip(scorer.attention, null.attention, strict=True)
            calibrated.append(np.stack([calibrated_qr_score(real, empty, gold).numpy() for real, empty in pairs]))
        else:
            calibrated.append(np.full_like(qr[-1], np.nan))
    description = {
        "num_samples": len(examples),
        "num_queries": num_queries,
        "layer_index": layers,
        "lengths": [len(example.prompt()) for example in examples],
        "gold_tokens": [int(example.gold_positions().size) for example in examples],
        "gold_start": [example.gold[0][0] for example in examples],
        "calibrated": calibrate,
        "undefined": {
            "ld_queries": undefined,
            "ld_scores": int(np.isnan(np.stack(ld)).sum()),
            "ld_scores_total": int(np.stack(ld).size),
        },
        "minimum_mass": MINIMUM_MASS,
        "seconds": round(time.monotonic() - started, 3),
    }
    return BehaviorScores(
        qr=np.stack(qr).astype(np.float32), qr_calibrated=np.stack(calibrated).astype(np.float32),
        ld=np.stack(ld).astype(np.float32), windows=np.array(windows), sinks=np.array(sinks), description=description,
    )  # fmt: skip
