"""RFIS and RPD of a controlled model along its training, each step with the maps at initialisation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .errors import ProbeError
from .jobs import probe_length, setting, with_initial
from .maps import ProbeMaps


def model_folders(steps: list[int], initial: Path, snapshots: Path, model: Path) -> dict[int, Path]:
    """Model folder by step: the first step is the model at initialisation, the last the trained one.

    Raises :class:`ProbeError` where a snapshot is missing.
    """
    from ..training.snapshots import snapshot_folder

    folders = {step: snapshot_folder(snapshots, step) for step in steps[1:-1]}
    for step, folder in folders.items():
        if not folder.is_dir():
            raise ProbeError(
                f"{folder} does not exist: the training left no snapshot after step {step}; train the model again with "
                "this step among its snapshot_steps"
            )
    return {steps[0]: initial, **folders, steps[-1]: model}


def probe_curve(
    settings: dict[str, Any], initial: Path, snapshots: Path, model: Path, store_folder: Path
) -> Iterator[tuple[int, ProbeMaps]]:
    """(step, maps) for every step of the curve, on the samples and at the length of the probe at factor 1.

    Settings {model, probe, steps, tokens_per_step, seed}. Descriptions also hold ``step``, ``tokens`` (seen so far)
    and ``loss``, the mean next-token loss on the samples in nats a token.
    """
    from hwh_kernels.rfis_rpd import choose_backend, work_elements

    from ..data.loader import sequences_for_probe
    from ..data.store import TokenStore
    from ..training.trainer import held_out_loss
    from .measure import BATCH_TOKENS, measure_maps
    from .pretrained import load_model

    seed, steps = setting(settings, "seed"), setting(settings, "steps")
    tokens_per_step, name = setting(settings, "tokens_per_step"), setting(settings, "model", "name")
    count, num_queries = setting(settings, "probe", "num_samples"), setting(settings, "probe", "num_queries")
    length = probe_length(1.0, setting(settings, "model", "length"), num_queries)
    folders = model_folders(steps, initial, snapshots, model)
    samples = sequences_for_probe(TokenStore.open(store_folder), length, count, seed)
    before: ProbeMaps | None = None
    backend = "auto"
    for step, folder in folders.items():
        loaded = load_model(folder)
        if before is None:
            groups = [module for _, _, module in loaded.attention_groups()]
            a_step = sum(
                work_elements(module.num_heads, num_queries, length, module.head_dim // 2) for module in groups
            )
            device = next(loaded.parameters()).device
            backend = choose_backend("auto", device, len(folders) * count * a_step)
        maps = measure_maps(loaded, None, samples, num_queries, backend, description=f"{name}, step {step}")
        before = maps if before is None else before
        loss = held_out_loss(loaded, samples, max(1, BATCH_TOKENS // length), contextlib.nullcontext)
        described = with_initial(maps, before, settings, 1.0)
        more = {"step": step, "tokens": step * tokens_per_step, "loss": loss}
        yield step, replace(described, description={**described.description, **more})
