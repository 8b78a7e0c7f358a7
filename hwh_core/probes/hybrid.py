"""The probe of our own models: what each head reads, near or far, and RFIS and RPD of those that rotate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..architectures import describe_allocation
from ..files import write_table
from ..heads import HeadGroup, LayerSpec
from ..progress import progress as show_progress
from .contexts import Example, synthetic_examples
from .errors import ProbeError
from .hybrid_capture import GroupWeights, stream_weights
from .hybrid_rope import rope_maps
from .influence import (
    SINKS,
    WINDOWS,
    HeadProfiles,
    NeedleShares,
    distance_bins,
    mean_distance,
    median_distance,
)
from .jobs import setting
from .maps import ProbeMaps
from .measure import BATCH_TOKENS

HEADS_FILE, BINS_FILE, MAPS_FILE = "head_influence.csv", "head_influence_bins.csv", "rope_heads.npz"


@dataclass
class _Group:
    """What is gathered about one head group."""

    group: HeadGroup
    profiles: HeadProfiles
    needles: NeedleShares = field(default_factory=NeedleShares)


@dataclass(frozen=True)
class HybridProbe:
    """``heads``: one row a head; ``bins``: one row a head and bin of distances; ``maps``: RFIS and RPD."""

    heads: pd.DataFrame
    bins: pd.DataFrame
    maps: ProbeMaps

    def save(self, folder: Path) -> list[Path]:
        """Write the three artifacts below ``folder`` and return their paths; the maps' description comes last."""
        write_table(self.heads, folder / HEADS_FILE)
        write_table(self.bins, folder / BINS_FILE)
        self.maps.save(folder / MAPS_FILE)
        return [folder / name for name in (HEADS_FILE, BINS_FILE, MAPS_FILE)]


class _Gatherer:
    """Gathers the weights of all head groups over windows of prose and over prompts with a needle."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.groups: dict[tuple[int, int], _Group] = {}
        self.max_error = 0.0

    def prose(self, captured: GroupWeights) -> None:
        """Profiles of a batch of windows."""
        key = (captured.layer, captured.place)
        if key not in self.groups:
            self.groups[key] = _Group(captured.group, HeadProfiles(captured.group.heads, self.length))
        for weights in captured.weights:
            self.groups[key].profiles.add(weights, captured.query_positions)
        self.max_error = max(self.max_error, captured.error)

    def needle(self, captured: GroupWeights, gold: torch.Tensor) -> None:
        """Needle shares of one prompt."""
        self.groups[captured.layer, captured.place].needles.add(captured.weights[0], gold)
        self.max_error = max(self.max_error, captured.error)

    def tables(self, layers: list[LayerSpec]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of the two tables, without what is the same for the whole model."""
        heads, bins = [], []
        places = [(index, place) for index, layer in enumerate(layers) for place in range(len(layer))]
        allocation = dict(zip(places, describe_allocation(layers), strict=True))
        for (layer, place), gathered in sorted(self.groups.items()):
            group, profiles, needles = gathered.group, gathered.profiles, gathered.needles
            shares, near = profiles.profile(), profiles.near_shares()
            sink, negative = profiles.sink_share(), profiles.negative_share()
            (last, error), (question, _) = needles.mean_and_error("last"), needles.mean_and_error("question")
            for head in range(group.heads):
                key = {
                    "layer": layer, "group": place, "head": head, "kind": group.kind,
                    "position_encoding": allocation[layer, place]["position_encoding"],
                }  # fmt: skip
                heads.append(
                    {
                        **key,
                        "head_dim": group.head_dim,
                        "window_tokens": group.window,
                        "mean_distance_tokens": mean_distance(shares[head]),
                        "median_distance_tokens": median_distance(shares[head]),
                        **{f"share_within_{w}_tokens": near[i, head] for i, w in enumerate(WINDOWS)},
                        "sink_share": sink[head],
                        "negative_share": negative[head],
                        "needle_share": last[head],
                        "needle_share_stderr": error[head],
                        "needle_share_question": question[head],
                        "queries_counted": int(profiles.counted[head]),
                    }
                )
                bins += [
                    {**key, "distance_from_tokens": low, "distance_below_tokens": high,
                     "share": float(shares[head, low:high].sum())}
                    for low, high in distance_bins(self.length)
                ]  # fmt: skip
        frame = pd.DataFrame(heads)
        return frame.astype({"window_tokens": "Int64"}), pd.DataFrame(bins)


def probe_hybrid(settings: dict[str, Any], model_folder: Path, documents: Path) -> HybridProbe:
    """Probe a trained model of the HwH family at its training length, on held-out prose.

    Settings {scale, training_length, model: {name, seed, and what :func:`~hwh_core.modeling.build_model` needs},
    probe, band, held_out_prose_source, seed}. Distances are measured at the last ``probe.num_queries`` positions of
    ``probe.num_samples`` windows; needle shares on ``probe.num_contexts`` prompts with one planted fact, at the last
    token (after which the answer begins) and as the mean over the tokens of the question. Raises
    :class:`~hwh_core.probes.errors.ProbeError` where something does not fit.
    """
    from .pretrained import load_model, load_tokenizer
    from .text import prose_documents, token_windows

    started = time.monotonic()
    length, seed = setting(settings, "training_length"), setting(settings, "seed")
    count, num_queries = setting(settings, "probe", "num_samples"), setting(settings, "probe", "num_queries")
    texts = prose_documents(documents, setting(settings, "held_out_prose_source"))
    # The model first: loading it makes its kind known, without which the tokenizer warns of an unknown model.
    model, tokenizer = load_model(model_folder), load_tokenizer(model_folder)
    if num_queries > length:
        raise ProbeError(f"hwh.probe.num_queries: {num_queries} are more than the training length {length}; lower it")
    windows = token_windows(texts, tokenizer, length, count, seed)
    examples = _needles(texts, tokenizer, length, setting(settings, "probe", "num_contexts"), seed)
    name = setting(settings, "model", "name")
    heads, bins, about = _influence(model, windows, examples, num_queries, name)
    maps = rope_maps(settings, model, windows, num_queries)
    key = {
        "scale": setting(settings, "scale"), "model": name, "architecture": setting(settings, "model", "architecture"),
        "seed": setting(settings, "model", "seed"),
    }  # fmt: skip
    for table in (heads, bins):
        for place, (column, value) in enumerate(key.items()):
            table.insert(place, column, value)
    description = {
        **maps.description,
        **key,
        "seed": seed,
        "model_seed": key["seed"],
        "training_length": length,
        "text_source": settings["held_out_prose_source"],
        "influence": {**about, "num_samples": count, "num_queries": num_queries, "num_contexts": len(examples)},
        "seconds": round(time.monotonic() - started, 3),
    }
    return HybridProbe(
        heads.assign(needle_share_if_even=about["needle_share_if_even"]), bins, replace(maps, description=description)
    )


def _needles(texts: list[str], tokenizer: Any, length: int, count: int, seed: int) -> list[Example]:
    try:
        return synthetic_examples(texts, tokenizer, length, count, seed)
    except ProbeError as error:
        raise ProbeError(f"hwh.probe: no prompt with a needle at the training length {length} ({error})") from None


def _influence(
    model: Any, windows: np.ndarray, examples: list[Example], num_queries: int, name: str
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """The tables of a model, and what they were measured with."""
    gatherer = _Gatherer(windows.shape[1])
    batches = torch.from_numpy(windows).split(max(1, BATCH_TOKENS // windows.shape[1]))
    for batch in show_progress(batches, f"influence in {name}", unit="batch"):
        stream_weights(model, batch, num_queries, gatherer.prose)
    even = []
    for example in show_progress(examples, f"needles in {name}", unit="prompt"):
        prompt, gold = example.prompt(), torch.from_numpy(example.gold_positions())
        even.append(len(gold) / len(prompt))
        stream_weights(
            model, torch.tensor([prompt]), len(example.question), lambda found, gold=gold: gatherer.needle(found, gold)
        )
    heads, bins = gatherer.tables(model.config.layers)
    about = {
        "sinks": SINKS,
        "needle_share_if_even": float(np.mean(even)),
        "max_relative_error": gatherer.max_error,
        "delta_net_backend": "torch",
    }
    return heads, bins, about
