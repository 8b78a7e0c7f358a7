"""Variants of a preset side by side: size, loss and needles of each, and its loss against that of its base."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ..config import HwHModel, HwHScale
from . import comparisons, task_scores
from .intervals import Interval, combine
from .needle_grids import GRID_TITLES, additional_note, grid_title, trained_grid
from .results import Results
from .selection import ARCHITECTURE_TITLES, ReportError, models_of
from .tables import Cell, Table, seeds_cell
from .tasktables import seeds_note

PARAMETERS, LOSS, SPREAD, PERPLEXITY, DIFFERENCE = (
    "parameters (millions)", "held-out loss", "SD over seeds", "held-out perplexity", "loss difference, paired",
)  # fmt: skip
NONE = Cell("-")


def over_seeds(values: list[float]) -> Interval:
    """Mean of one value a seed with a 95% interval over seeds alone; of one seed the ends are not finite."""
    interval = combine(values, [0.0] * len(values))
    return interval if len(values) > 1 else Interval(interval.estimate, -math.inf, math.inf, 1)


def cell_of(interval: Interval, digits: int) -> Cell:
    """A cell with the ends that are finite."""
    ends = (interval.low, interval.high) if math.isfinite(interval.high - interval.low) else (None, None)
    return Cell(interval.estimate, *ends, n_seeds=interval.n_seeds, digits=digits)


def metrics_of(results: Results, scale: HwHScale, model: HwHModel) -> dict[str, Any]:
    """Parameters and held-out loss of one model (nats a token). Raises :class:`ReportError` where one is missing."""
    name = f"hwh/{scale.name}/{model.name}/metrics.json"
    metrics = results.json(name)
    for key in ("parameters", "held_out_loss"):
        value = metrics.get(key)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ReportError(f"{results.root / name}: {key} is {value!r}, expected a number; train the model again")
    return metrics


def raise_if_unlike(results: Results, scale: HwHScale, models: list[HwHModel]) -> None:
    """Raise :class:`ReportError` unless losses are of equally many windows and models of one seed saw equal batches."""
    windows: dict[object, str] = {}
    batches: dict[int, dict[object, str]] = {}
    for model in models:
        metrics = metrics_of(results, scale, model)
        windows.setdefault(metrics.get("held_out_windows"), model.name)
        data = (metrics.get("fingerprint") or {}).get("data")
        batches.setdefault(model.seed, {}).setdefault(data, model.name)
    for what, found in (("windows of held-out text", windows), *(("training data", one) for one in batches.values())):
        if len(found) > 1:
            (_, first), (_, other), *_ = found.items()
            raise ReportError(
                f"scale {scale.name!r}: {what} of {first} and {other} differ by their metrics.json, so that their "
                "losses cannot be compared; train one of them again"
            )


def losses_of(results: Results, scale: HwHScale, group: list[HwHModel]) -> dict[int, float]:
    """Held-out losses of the models of one architecture by seed. Raises :class:`ReportError` for a seed twice."""
    losses: dict[int, float] = {}
    for model in group:
        if model.seed in losses:
            raise ReportError(
                f"scale {scale.name!r} holds architecture {model.architecture!r} with seed {model.seed} twice; keep "
                "one model per architecture and seed in a scale"
            )
        losses[model.seed] = float(metrics_of(results, scale, model)["held_out_loss"])
    return losses


def loss_cells(own: dict[int, float], other: dict[int, float] | None) -> dict[str, Cell]:
    """Cells of held-out losses by seed: mean, spread, perplexity, and the difference to ``other``, seed by seed.

    Models of one seed saw the same batches and answer for the same windows, which the difference of their losses is
    free of; seeds that only one of the two has are left out of it.
    """
    losses = list(own.values())
    loss = over_seeds(losses)
    cells = {
        LOSS: cell_of(loss, 4),
        SPREAD: Cell(float(np.std(losses, ddof=1)), n_seeds=len(losses), digits=4) if len(losses) > 1 else NONE,
        PERPLEXITY: cell_of(loss.map(math.exp), 2),
        DIFFERENCE: NONE,
    }
    shared = sorted(set(own) & set(other or {}))
    if other is not None and shared:
        cells[DIFFERENCE] = cell_of(over_seeds([own[seed] - other[seed] for seed in shared]), 4)
    return cells


def make(results: Results) -> Table:
    """One row an architecture: in scales with variants what they are held against, then these; others as wholes."""
    preset = results.preset
    bases, trained = comparisons.bases_of(preset), trained_grid(preset)
    grid = GRID_TITLES[preset.evaluation.niah.variant]
    titles = {None: grid} if trained is None else {None: grid, trained: grid_title(trained)}
    needle_columns = {
        f"{title} {words} (%)": (which, longer)
        for which, title in titles.items()
        for words, longer in (("up to L", False), ("beyond L", True))
    }
    columns = [PARAMETERS, LOSS, SPREAD, PERPLEXITY, DIFFERENCE, *needle_columns]
    table = Table("variants", "Variants side by side", ["scale", "architecture", "base", "held against"], columns)
    scales = [scale for scale in preset.hwh.scales if comparisons.side_by_side(preset, scale)]
    for scale in scales:
        models = comparisons.side_by_side(preset, scale)
        raise_if_unlike(results, scale, models)
        against = comparisons.held_against(preset, scale)
        cells_of = {
            which: results.cells(scale, models) if which is None else results.additional_cells(scale, models, which)
            for which in titles
        }
        by_name = {name: models_of(scale, [name]) for name in dict.fromkeys(model.architecture for model in models)}
        losses = {name: losses_of(results, scale, group) for name, group in by_name.items()}
        for name, group in by_name.items():
            other = against.get(name)
            cells = loss_cells(losses[name], losses[other] if other else None)
            cells[PARAMETERS] = Cell(
                metrics_of(results, scale, group[0])["parameters"] / 1e6, n_seeds=len(group), digits=3
            )
            for column, (which, longer) in needle_columns.items():
                found = task_scores.needle_values(
                    cells_of[which], name, lambda n, s=scale, far=longer: (n > s.length) == far
                )
                cells[column] = seeds_cell(found, digits=1)
            labels = [ARCHITECTURE_TITLES.get(each, each) if each else "-" for each in (name, bases.get(name), other)]
            table.add((scale.name, *labels), cells)
        table.notes += _odd_ones(scale, against, bases)
        table.notes += _differences(scale, scales[0])
    niah = preset.evaluation.niah
    table.notes = [
        "Held-out loss in nats a token and its exponential, both of this preset's tokenizer and text. Intervals of "
        "losses are 95% over seeds alone, so that two seeds give wide ones and one gives none; differences are taken "
        "seed by seed, between models that saw the same batches, and are negative where the variant's loss is lower.",
        f"{grid}: RULER's wording, {niah.metric}, haystack {niah.haystack}, mean over depths and over the lengths up "
        "to the training length L or beyond it; intervals over prompts and seeds.",
        *([additional_note([trained])] if trained else []),
        *table.notes,
        *map(seeds_note, scales),
    ]
    # Under no key of a preset: `hwh verify` holds settings of these names against it.
    table.settings = {"shown_scales": [scale.name for scale in scales]}
    return table


def _settings(scale: HwHScale) -> dict[str, Any]:
    """Settings of a scale that decide what its models are and see, by dotted key; not which they are."""
    data = scale.model_dump(mode="json", exclude={"name", "claim_scale", "models"})
    return pd.json_normalize(data).to_dict("records")[0]


def _differences(scale: HwHScale, first: HwHScale) -> list[str]:
    """A note on what a scale has otherwise than the first of the table; none for that one itself."""
    own, other = _settings(scale), _settings(first)
    keys = [key for key in dict.fromkeys([*own, *other]) if own.get(key) != other.get(key)]
    if not keys:
        return []
    told = ", ".join(f"{key} {own.get(key)} (there {other.get(key)})" for key in keys)
    return [f"Scale {scale.name} differs from scale {first.name} in: {told}."]


def _odd_ones(scale: HwHScale, against: dict[str, str | None], bases: dict[str, str]) -> list[str]:
    """Notes on variants whose base the scale does not train: their difference holds more than their own change."""
    notes = []
    for name, other in against.items():
        if other != bases[name]:
            base = ARCHITECTURE_TITLES[bases[name]]
            told = "it is held against nothing"
            if other:
                told = f"it is held against {ARCHITECTURE_TITLES[other]}, from which {base} differs as well"
            notes.append(f"{name} is made from {base}, which scale {scale.name} does not train; {told}.")
    return notes
