"""Causal checks of what the probes found: heads of a class without output, frequencies without rotation.

Each set stands beside random ones with as many heads (or frequency groups) in every layer. Measured are the loss on
held-out prose and how likely the planted number of a needle prompt is. Ours; the paper intervenes inside one head only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import CausalConfig
from ..evaluation.haystacks import prose_haystack
from ..evaluation.likelihood import score_pairs
from ..evaluation.niah import NiahGenerator
from ..files import write_table
from ..progress import progress as show_progress
from ..provenance import code_hash, write_manifest
from ..statistics import percentile_interval, resample_weights, top_heads
from .errors import ProbeError
from .interventions import masked_heads, rotation_off
from .pretrained import check_length
from .resume import FinishedValues, prompts_fingerprint
from .text import token_windows
from .weights import weights_fingerprint

if TYPE_CHECKING:
    import pandas as pd

CLASSES = ("retrieval", "positional")
TOP_QR, BELOW, BAND = "top 5% QR heads", "below the band", "the band"
MEASURES = {"loss": "loss (nats/token)", "needle": "needle answer (nats/token)", "exact": "needle answered (share)"}
RESAMPLES = 1000
DEPTHS = 5
MAX_ANSWER_TOKENS = 24
UNFINISHED = "causal_runs"
"""Folder beside causal.csv of the interventions that are finished while others are not."""


@dataclass(frozen=True)
class Intervention:
    """What is changed: ``places`` are heads or frequency groups by layer; ``draw`` None for the set itself.

    ``control_of`` names the set whose random control this is, else its own name.
    """

    name: str
    kind: str
    places: dict[int, tuple[int, ...]]
    draw: int | None = None

    @property
    def size(self) -> int:
        """Number of heads or frequency groups."""
        return sum(map(len, self.places.values()))

    def applied(self, model: Any) -> AbstractContextManager[None]:
        """The model with this change, inside a ``with`` block."""
        return (masked_heads if self.kind == "heads" else rotation_off)(model, self.places)


def _by_layer(heads: pd.DataFrame, chosen: np.ndarray) -> dict[int, tuple[int, ...]]:
    picked = heads[chosen].groupby("layer")["head"]
    return {int(layer): tuple(sorted(int(head) for head in numbers)) for layer, numbers in picked}


def head_sets(heads: pd.DataFrame) -> list[Intervention]:
    """Heads of each class and the top QR heads of heads.csv; sets without a head are left out."""
    sets = [
        Intervention(f"{kind} heads", "heads", _by_layer(heads, (heads["head_class"] == kind).to_numpy()))
        for kind in CLASSES
    ]
    qr = heads["qr"].to_numpy(dtype=float)
    if np.isfinite(qr).all():
        sets.append(Intervention(TOP_QR, "heads", _by_layer(heads, top_heads(qr))))
    return [one for one in sets if one.size]


def frequency_sets(heads: pd.DataFrame, bands: dict[str, Any], rotated: int) -> list[Intervention]:
    """Rotated groups below the boundary of each layer, and those within one group of the peak of its band.

    ``bands`` is bands.json; ``rotated`` the number of groups that rotate. Layers without a band are left as they are;
    those with frequencies of their own (Gemma 3) have bands of their own.
    """
    boundary = heads.groupby("layer")["boundary"].first().dropna()
    below = {int(layer): tuple(range(int(np.floor(b)) + 1, rotated)) for layer, b in boundary.items()}
    band = {
        int(row["layer"]): tuple(r for r in range(rotated) if abs(r - row["peak"]) <= 1)
        for record in (bands, *bands.get("other_frequencies", []))
        for row in record["band"]["layers"]
        if row["verdict"] == "peak"
    }
    return [one for one in (Intervention(BELOW, "rotation", below), Intervention(BAND, "rotation", band)) if one.size]


def random_like(one: Intervention, available: int, draw: int, generator: np.random.Generator) -> Intervention:
    """As many places in every layer, drawn from all ``available`` heads or groups of the layer."""
    places = {
        layer: tuple(sorted(int(p) for p in generator.choice(available, size=len(chosen), replace=False)))
        for layer, chosen in one.places.items()
    }
    return Intervention(one.name, one.kind, places, draw)


def overlap(one: Intervention, other: Intervention) -> float:
    """Share of the places of ``one`` that ``other`` has too."""
    both = sum(len(set(chosen) & set(other.places[layer])) for layer, chosen in one.places.items())
    return both / one.size


class Measurement:
    """Loss on windows of prose and log-probability of needle answers, the same samples for every intervention."""

    def __init__(self, model: Any, tokenizer: Any, texts: list[str], settings: CausalConfig, seed: int) -> None:
        check_length(model, settings.length, "causal.length")
        self.model, self.batch_tokens = model, settings.batch_tokens
        windows = token_windows(texts, tokenizer, settings.length, settings.num_windows, seed).tolist()
        self.windows = [(window[:1], window[1:]) for window in windows]
        generator = NiahGenerator(
            tokenizer, prose_haystack(texts, "held-out prose"), max_new_tokens=MAX_ANSWER_TOKENS, seed=seed
        )
        depths = [round(100 * (number % DEPTHS) / (DEPTHS - 1)) for number in range(settings.num_needles)]
        needles = [generator.make(settings.length, depth, number // DEPTHS) for number, depth in enumerate(depths)]
        self.needles = [(needle.prompt, needle.answer) for needle in needles]

    def __call__(self) -> dict[str, list[float]]:
        """Values of every measure by sample."""
        # Padding stands behind what is scored, so any token will do.
        windows, needles = (
            score_pairs(self.model, pairs, self.batch_tokens, fill=0) for pairs in (self.windows, self.needles)
        )

        def surprise(scores: list[tuple[float, bool]], pairs: list[tuple[list[int], list[int]]]) -> list[float]:
            return [-score / len(answer) for (score, _), (_, answer) in zip(scores, pairs, strict=True)]

        return {
            "loss": surprise(windows, self.windows),
            "needle": surprise(needles, self.needles),
            "exact": [float(exact) for _, exact in needles],
        }


class CausalChecks:
    """All interventions with their random controls, and the samples on which they are measured.

    ``heads`` and ``bands`` are the contents of heads.csv and bands.json of this model, ``texts`` held-out documents,
    ``rotated`` the number of frequency groups that rotate. The baseline is the intervention ``none``. Raises
    :class:`ProbeError` where there is neither a class of heads nor a band, and the errors of the needle generator.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        heads: pd.DataFrame,
        bands: dict[str, Any],
        texts: list[str],
        settings: CausalConfig,
        *,
        rotated: int,
        seed: int,
    ) -> None:
        sets = [*head_sets(heads), *frequency_sets(heads, bands, rotated)]
        if not sets:
            raise ProbeError(
                "heads.csv, bands.json: neither a class of heads nor a band was found: nothing can be taken away"
            )
        self.model = model
        self.measure = Measurement(model, tokenizer, texts, settings, seed)
        generator = np.random.default_rng(seed)
        heads_a_layer = int(heads["head"].max()) + 1
        self.runs: list[tuple[Intervention, float | None]] = [(Intervention("none", "none", {}), None)]
        for one in sets:
            available = heads_a_layer if one.kind == "heads" else rotated
            controls = [random_like(one, available, draw, generator) for draw in range(settings.random_draws)]
            self.runs += [(one, None), *((control, overlap(one, control)) for control in controls)]
        self.settings: dict[str, Any] = {
            "model": weights_fingerprint(model),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            **settings.model_dump(),
            "seed": seed,
            "samples": prompts_fingerprint([self.measure.windows, self.measure.needles]),
            "sets": prompts_fingerprint([one.name, sorted(one.places.items())] for one, _ in self.runs),
            "code": code_hash("hwh_core/probes/causal.py"),
        }
        """All that decides the result, as plain data."""

    def table(self, resume: Path | None = None, progress: bool = True) -> pd.DataFrame:
        """One row an intervention, draw, measure and sample; the model is left as it was.

        With a folder ``resume`` the values of every finished intervention are kept there, and the same call given again
        goes on after them. Raises :class:`ProbeError` where that folder holds other checks, and the errors of
        :mod:`hwh_core.probes.interventions`.
        """
        import pandas as pd

        finished = None if resume is None else FinishedValues(resume, self.settings)
        if finished is not None and (count := finished.count(len(self.runs))):
            told = f"{resume}: going on after {count} finished interventions of {len(self.runs)}"
            print(told, file=sys.stderr, flush=True)
        numbered = list(enumerate(self.runs))
        rows = []
        for index, (one, shared) in show_progress(numbered, "interventions", unit="run") if progress else numbered:
            values = None if finished is None else finished.load(index)
            if values is None:
                values = self._measured(one)
                if finished is not None:
                    finished.save(index, values)
            rows += [
                {
                    "intervention": one.name, "kind": one.kind, "places": one.size, "draw": one.draw, "overlap": shared,
                    "measure": name, "sample": sample, "value": value,
                }
                for name, found in values.items() for sample, value in enumerate(found)
            ]  # fmt: skip
        return pd.DataFrame(rows).astype({"draw": "Int64"})

    def _measured(self, one: Intervention) -> dict[str, list[float]]:
        if not one.size:
            return self.measure()
        with one.applied(self.model):
            return self.measure()


def _bootstrap(values: np.ndarray, controls: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Mean difference of ``values`` [n] and ``controls`` [draw, n] under resampling of samples and of draws: [B]."""
    samples = resample_weights(len(values), RESAMPLES, generator)
    draws = generator.multinomial(len(controls), np.full(len(controls), 1 / len(controls)), size=RESAMPLES)
    return samples @ values - np.einsum("bd,dn,bn->b", draws / len(controls), controls, samples)


def summarise(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """One row an intervention and measure: its value, the change against the unchanged model, and that against random.

    Intervals (95%) are paired bootstraps over samples; those against random sets draw these anew too. ``random_low``
    and ``random_high`` are the least and largest change of a random set.
    """
    import pandas as pd

    generator = np.random.default_rng(seed)
    rows = []
    for (name, measure), group in table[table["kind"] != "none"].groupby(["intervention", "measure"], sort=False):
        base = _samples(table[(table["kind"] == "none") & (table["measure"] == measure)])
        own = _samples(group[group["draw"].isna()])
        controls = np.stack([_samples(part) for _, part in group[group["draw"].notna()].groupby("draw")])
        change = percentile_interval(resample_weights(len(own), RESAMPLES, generator) @ (own - base))
        against = percentile_interval(_bootstrap(own, controls, generator))
        random_changes = (controls - base).mean(axis=1)
        rows.append(
            {
                "intervention": name, "kind": group["kind"].iloc[0], "measure": measure,
                "places": int(group["places"].iloc[0]), "baseline": base.mean(), "value": own.mean(),
                "change": (own - base).mean(), "change_low": change[0], "change_high": change[1],
                "random_change": random_changes.mean(), "random_low": random_changes.min(),
                "random_high": random_changes.max(), "over_random": own.mean() - controls.mean(),
                "over_random_low": against[0], "over_random_high": against[1],
                "mean_overlap": float(group["overlap"].mean()), "n_samples": len(own), "n_draws": len(controls),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _samples(rows: pd.DataFrame) -> np.ndarray:
    return rows.sort_values("sample")["value"].to_numpy(dtype=float)


def write_checks(
    table: pd.DataFrame,
    output: Path,
    *,
    inputs: Sequence[Path],
    settings: dict[str, Any],
    seed: int,
    started: float,
) -> pd.DataFrame:
    """Write what :meth:`CausalChecks.table` gave as ``output`` (.csv) and its summary beside it; return the summary."""
    summary = summarise(table, seed)
    beside = output.with_name(f"{output.stem}_summary.csv")
    write_table(summary, beside)
    write_table(table, output)
    write_manifest(output, inputs=list(inputs), settings=settings, seed=seed, started=started, beside=[beside])
    return summary


def sentences(summary: pd.DataFrame) -> Sequence[str]:
    """The summary in lines for a terminal."""
    return [
        f"{row.intervention} ({row.places}), {MEASURES[row.measure]}: {row.baseline:.3f} -> {row.value:.3f}, "
        f"random {row.baseline + row.random_change:.3f}; against random {row.over_random:+.3f} "
        f"[{row.over_random_low:+.3f}, {row.over_random_high:+.3f}]"
        for row in summary.itertuples()
    ]
