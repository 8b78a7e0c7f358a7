"""The analysis of one model in one go: RFIS, RPD, QRscore, LDscore and norms of q and k, resumable by sample."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config.pretrained import LD_NUM_SINKS, LD_SINKS, LD_WINDOW, LD_WINDOWS
from ..progress import progress as show_progress
from ..provenance import code_hash
from .behavior import BehaviorCollector, BehaviorScores, join_scores
from .capture import LayerCapture, stream_layers
from .contexts import Example
from .errors import ProbeError
from .maps import ProbeMaps, join_maps
from .measure import MapCollector, check_vocabulary, collectors_for, sample_ids
from .norms import NormCollector, Norms, join_norms
from .pretrained import training_length
from .resume import PARTS, FinishedSamples, Sample, prompts_fingerprint
from .weights import check_weights, weights_fingerprint

NUM_QUERIES = 128


@dataclass(frozen=True)
class BehaviorSettings:
    """How QRscore and LDscore are taken."""

    windows: tuple[int, ...] = LD_WINDOWS
    sinks: tuple[int, ...] = LD_SINKS
    default_window: int = LD_WINDOW
    default_sinks: int = LD_NUM_SINKS
    calibrate: bool = True

    def __post_init__(self) -> None:
        for value, values, name in (
            (self.default_window, self.windows, "window"),
            (self.default_sinks, self.sinks, "sinks"),
        ):
            if value not in values or min(values) < 0:
                raise ProbeError(f"default {name}: {value} is not among {list(values)}; LDscore needs it there")


class ProbeResult(Mapping[str, np.ndarray]):
    """All arrays by their names: of ``maps`` (probe.npz), ``behavior`` (behavior.npz) and ``norms`` (norms.npz)."""

    def __init__(self, maps: ProbeMaps, behavior: BehaviorScores, norms: Norms) -> None:
        self.maps, self.behavior, self.norms = maps, behavior, norms
        self._arrays = maps.arrays() | behavior.arrays()
        self._arrays |= {name: getattr(norms, name) for name in ("q_norm", "k_norm", "scaling")}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def describe(self, **about: Any) -> ProbeResult:
        """The same result with more in its descriptions."""
        parts = (self.maps, self.behavior, self.norms)
        return ProbeResult(*(replace(part, description=part.description | about) for part in parts))

    def save(self, folder: str | Path) -> None:
        """Write probe.npz, behavior.npz and norms.npz below ``folder``, each with its .json."""
        for name, part in zip(PARTS, (self.maps, self.behavior, self.norms), strict=True):
            part.save(Path(folder) / name)


def as_examples(samples: Any, tokenizer: Any) -> list[Example]:
    """Samples with their evidence as they are; texts and token ids as contexts without evidence, all equally long."""
    if not (isinstance(samples, Sequence) and samples and isinstance(samples[0], Example)):
        samples = [Example(row, [], [], []) for row in sample_ids(samples, tokenizer).tolist()]
    lengths = sorted({len(example.prompt()) for example in samples})
    if len(lengths) > 1:
        raise ProbeError(f"samples: prompts of {lengths[0]} to {lengths[-1]} tokens; all samples must be equally long")
    return list(samples)


def run_settings(
    model: torch.nn.Module, examples: list[Example], num_queries: int, behavior: BehaviorSettings
) -> dict[str, Any]:
    """All that decides the result of :func:`probe_model`, as plain data."""
    return {
        "model": weights_fingerprint(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "samples": prompts_fingerprint([e.context, e.gold, e.question, e.null_question] for e in examples),
        "num_samples": len(examples),
        "length": len(examples[0].prompt()),
        "num_queries": num_queries,
        "windows": list(behavior.windows),
        "sinks": list(behavior.sinks),
        "calibrate": behavior.calibrate,
        "code": code_hash("hwh_core/probes/analysis.py"),
    }


def probe_model(
    model: torch.nn.Module,
    tokenizer: Any,
    samples: Any,
    num_queries: int = NUM_QUERIES,
    behavior: BehaviorSettings | None = None,
    backend: str = "auto",
    resume: str | Path | None = None,
    progress: bool = True,
) -> ProbeResult:
    """RFIS, RPD, QRscore, LDscore and norms of q and k of all heads over the last ``num_queries`` positions.

    ``samples`` are :class:`~hwh_core.probes.contexts.Example` with gold evidence, or texts for ``tokenizer`` or token
    ids [n, T] without any: their QRscore is NaN. All are equally long. Returns named arrays: ``rfis`` and ``rpd``
    [sample, layer, head, frequency], ``inv_freq`` [frequency] in radians a token as the loaded model holds it,
    ``null``, ``sample_weight``, ``layer_index``, ``qr`` and ``qr_calibrated`` [sample, layer, head], ``ld``
    [sample, layer, head, window, sink], ``windows``, ``sinks``, ``q_norm`` and ``k_norm`` [sample, layer, head,
    frequency] and ``scaling`` [layer], whose product bounds what a frequency adds to a logit.

    With a folder ``resume`` every finished sample is kept there, and the same call given again goes on after them. One
    layer's q and k are held at a time.

    Raises :class:`~hwh_core.probes.errors.ProbeError` and the errors of :mod:`hwh_core.probes.capture`.
    """
    behavior = behavior or BehaviorSettings()
    examples = as_examples(samples, tokenizer)
    for example in examples:
        check_vocabulary(model, torch.tensor([*example.prompt(), *example.null_question]))
    check_weights(model)
    settings = run_settings(model, examples, num_queries, behavior)
    finished = None if resume is None else FinishedSamples(Path(resume), settings)
    if finished is not None and (count := finished.count(len(examples))):
        print(f"{resume}: going on after {count} finished samples of {len(examples)}", file=sys.stderr, flush=True)
    collectors = collectors_for(model, len(examples), backend)
    numbered = list(enumerate(examples))
    parts = []
    for index, example in show_progress(numbered, "probe", unit="sample") if progress else numbered:
        part = None if finished is None else finished.load(index)
        if part is None:
            part = _probe_one(model, example, num_queries, behavior, next(collectors))
            if finished is not None:
                finished.save(index, part)
        parts.append(part)
    maps, scores, norms = zip(*parts, strict=True)
    maps, scores = join_maps(maps), join_scores(scores)
    about = {"settings": settings, "training_length": training_length(model)}
    defaults = {"default_window": behavior.default_window, "default_sinks": behavior.default_sinks}
    return ProbeResult(
        replace(maps, description=maps.description | about),
        replace(scores, description=scores.description | {"length": settings["length"], **defaults}),
        join_norms(norms, {"length": settings["length"], "num_queries": num_queries}),
    )


def _probe_one(
    model: torch.nn.Module, example: Example, num_queries: int, behavior: BehaviorSettings, maps: MapCollector
) -> Sample:
    """One forward pass for maps, norms and raw scores, and one for the calibration where there is evidence."""
    started = time.monotonic()
    scores, norms = BehaviorCollector(example, behavior.windows, behavior.sinks), NormCollector()

    def measure(layer: LayerCapture) -> None:
        for collector in (maps, norms, scores):
            collector.add(layer)

    prompt = example.prompt()
    stream_layers(model, torch.tensor([prompt]), num_queries, measure, maps.nope)
    measured = maps.maps(model, len(prompt), num_queries, time.monotonic() - started)
    return measured, scores.scores(model, num_queries, behavior.calibrate, maps.nope), norms.norms()
