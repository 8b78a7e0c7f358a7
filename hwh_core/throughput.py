"""Tokens a second that a training can be expected to reach, from the committed benchmarks. Needs no torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import ModelShape
from .memory_estimate import Training
from .scripting import UserError
from .training.flops import PEAK_FLOPS, model_flops_per_token, peak_flops

# Share of a card's peak where nothing of that size was measured: less than any measured training reaches.
ASSUMED_SHARE = 0.2
ASSUMED_CARD = "NVIDIA H200"
# Of trainings in float32 on two processor cores: what those of results/reference/laptop reached.
CPU_FLOPS, CPU_CORES = 17e9, 2
_FIGURE = re.compile(r"train\.\w+?_\d{4,}_(?!hf_|fla_)(\w+)_tokens_per_second|paper\.\d+m_(\w+)_tokens_per_second")


@dataclass(frozen=True)
class Measurement:
    """A training that was timed on one card: ``tokens`` a step, of ``real_text`` or drawn at random."""

    architecture: str
    shape: ModelShape
    length: int
    vocab_size: int
    tokens: int
    tokens_per_second: float
    card: str
    real_text: bool = False


@dataclass(frozen=True)
class Speed:
    """Expected tokens a second of one device, and what that rests on in a few words."""

    tokens_per_second: float
    basis: str


def measurements(folder: Path) -> list[Measurement]:
    """Timed trainings in ``train.json`` and ``paper.json`` of ``folder``; those on a CPU are left out."""
    found = []
    for name in ("train.json", "paper.json"):
        path = folder / name
        result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"card": "CPU", "figures": []}
        for figure in result["figures"] if result["card"] != "CPU" else []:
            if match := _FIGURE.fullmatch(figure["id"]):
                sizes = figure["sizes"]
                found.append(
                    Measurement(
                        architecture=match[1] or match[2],
                        shape=ModelShape(**sizes["shape"]),
                        length=sizes["length"],
                        vocab_size=sizes["vocab_size"],
                        tokens=sizes["rows"] * sizes["length"],
                        tokens_per_second=figure["value"],
                        card=result["card"],
                        real_text=match[2] is not None,
                    )
                )
    return found


def flops_per_token(training: Training) -> float:
    """Model FLOPs a token of a training."""
    return model_flops_per_token(
        training.layers,
        hidden_size=training.shape.hidden_size,
        intermediate_size=training.shape.intermediate_size,
        vocab_size=training.vocab_size,
        length=training.length,
    )


def _share_of_peak(measured: Measurement, training: Training) -> float:
    """Of a measurement at the shape of ``training``."""
    same = Training(measured.architecture, measured.shape, measured.length, measured.vocab_size, training.training)
    return measured.tokens_per_second * flops_per_token(same) / (peak_flops(measured.card) or math.inf)


def expected_speed(training: Training, measured: Sequence[Measurement], card: str | None = None) -> Speed:
    """Speed on ``card`` (None: the one of the measurements, else :data:`ASSUMED_CARD`), or on a CPU in float32.

    In this order: this architecture at this shape and length as it was measured; the least share of the peak of those
    measured at this shape and length; :data:`ASSUMED_SHARE`. Another card is credited with the same share of its own
    peak. Raises :class:`UserError` for a card whose peak is not known.
    """
    if training.training.precision == "float32":
        return Speed(CPU_FLOPS / flops_per_token(training), "assumed, two cores")
    card = card or next((one.card for one in measured), ASSUMED_CARD)
    peak = peak_flops(card)
    if peak is None:
        raise UserError(f"the peak of card {card!r} is not known; expected a name with one of {', '.join(PEAK_FLOPS)}")
    # A variant of an architecture has the sizes of its family.
    shape = ModelShape(**training.shape.model_dump(exclude={"variant"}))
    alike = [m for m in measured if (m.shape, m.length) == (shape, training.length)]
    own = [m for m in alike if m.architecture == training.architecture and m.vocab_size == training.vocab_size]
    if own:
        # On this card, then on real text, with the micro-batches of the paper preset; of several the nearest in size.
        size = training.micro_batch_tokens
        nearest = min(own, key=lambda m: (m.card != card, not m.real_text, abs(math.log(m.tokens / size))))
        if nearest.card == card:
            return Speed(nearest.tokens_per_second, "measured")
        share, basis = _share_of_peak(nearest, training), f"share measured on {nearest.card}"
    elif alike:
        slowest = min(alike, key=lambda m: _share_of_peak(m, training))
        share, basis = _share_of_peak(slowest, training), f"share of {slowest.architecture}"
    else:
        share, basis = ASSUMED_SHARE, f"assumed share {ASSUMED_SHARE:.0%}"
    return Speed(share * peak / flops_per_token(training), basis)
