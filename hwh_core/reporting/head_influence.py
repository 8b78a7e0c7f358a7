"""What the heads of our own models read: which models stand for it, values by seed, and lines for the report (ours).

The paper designs its hybrid so that heads without position encoding retrieve and Gated DeltaNet heads stay local, and
measures neither on trained hybrids. Nothing here is a claim of the paper, so nothing here enters the ledger's verdicts.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..config import HwHModel, HwHScale, PresetConfig
from ..heads import FULL_ATTENTION, GATED_DELTANET, SLIDING_WINDOW
from . import selection
from .hybrid_readings import difference, level
from .intervals import NOT_NEGATIVE, Interval, Range, ranking_verdict
from .results import Results
from .selection import ARCHITECTURE_TITLES
from .task_scores import SeedValue, SeedValues

NOPE, ROPE, WINDOW, GDN = "nope", "rope", "window", "gdn"
KIND_TITLES = {
    NOPE: "full attention without position (NoPE)",
    ROPE: "full attention with RoPE",
    WINDOW: "sliding window (RoPE)",
    GDN: "Gated DeltaNet",
}
SHARE: Range = (0.0, 1.0)
LOCAL = "share_within_128_tokens"
LOCAL_TOKENS = 128
# First tokens that the probe leaves out of distances.
SINKS = 4


def add_kinds(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``head_kind``, one of :data:`KIND_TITLES`."""
    rotates = table["position_encoding"] == "rope"
    kinds = np.select(
        [table["kind"] == GATED_DELTANET, table["kind"] == SLIDING_WINDOW, rotates, table["kind"] == FULL_ATTENTION],
        [GDN, WINDOW, ROPE, NOPE], default="",
    )  # fmt: skip
    return table.assign(head_kind=kinds)


def kinds_in(table: pd.DataFrame) -> list[str]:
    """Kinds of heads in a table of :func:`add_kinds`, in the order of :data:`KIND_TITLES`."""
    return [kind for kind in KIND_TITLES if (table["head_kind"] == kind).any()]


def by_seed(heads: pd.DataFrame, architecture: str, kind: str, column: str) -> SeedValues:
    """Mean over the heads of one kind with its standard error over heads, by seed; undefined heads are left out."""
    rows = heads[(heads["architecture"] == architecture) & (heads["head_kind"] == kind)].dropna(subset=[column])
    values = {}
    for seed, group in rows.groupby("seed")[column]:
        n = len(group)
        values[int(seed)] = SeedValue(float(group.mean()), float(group.std(ddof=1) / math.sqrt(n)) if n > 1 else 0.0, n)
    return values


def best_by_seed(heads: pd.DataFrame, architecture: str, kind: str) -> list[float]:
    """Needle share of the best head of each model."""
    rows = heads[(heads["architecture"] == architecture) & (heads["head_kind"] == kind)]
    return rows.groupby("seed")["needle_share"].max().tolist()


def _shown(interval: Interval | None, possible: Range, digits: int) -> str:
    if interval is None:
        return "undefined"
    cut = interval.within(possible)
    return f"{cut.estimate:.{digits}f} [{cut.low:.{digits}f}, {cut.high:.{digits}f}]"


ANSWERS = {"reproduced": "yes", "not_reproduced": "no, the reverse", "inconclusive": "not decided"}


def _answer(gap: Interval) -> str:
    """Whether a difference lies above 0; with one seed it is never decided, since seeds may differ by more."""
    return f"{ANSWERS[ranking_verdict(gap)]}{'' if gap.n_seeds > 1 else ', one seed'}"


def _kind_text(heads: pd.DataFrame, architecture: str, kind: str) -> str:
    needle = by_seed(heads, architecture, kind, "needle_share")
    gain = by_seed(heads.assign(gain=heads["needle_share"] - heads["needle_share_if_even"]), architecture, kind, "gain")
    near, median = (level(by_seed(heads, architecture, kind, name)) for name in (LOCAL, "median_distance_tokens"))
    best = " and ".join(f"{share:.3f}" for share in best_by_seed(heads, architecture, kind))
    return (
        f"{KIND_TITLES[kind]}: needle share {_shown(level(needle), SHARE, 3)}, best head of each model {best} "
        f"(do these heads retrieve, above an even spread: {_answer(level(gain))}), median distance "
        f"{_shown(median, NOT_NEGATIVE, 0)} tokens, within {LOCAL_TOKENS} tokens {_shown(near, SHARE, 2)}"
    )


def _comparison(heads: pd.DataFrame, architecture: str) -> list[str]:
    """Whether full-attention heads read more of the needle than their local partners, and these read nearer."""
    kinds = kinds_in(heads[heads["architecture"] == architecture])
    answers = []
    for full in (NOPE, ROPE):
        for local in (GDN, WINDOW):
            if full not in kinds or local not in kinds:
                continue
            names = ("NoPE" if full == NOPE else "RoPE", "Gated DeltaNet" if local == GDN else "sliding-window")
            for column, first, second, question in (
                ("needle_share", full, local, f"do {names[0]} heads read more of the needle than {names[1]} heads"),
                (LOCAL, local, full, f"do {names[1]} heads read nearer than {names[0]} heads"),
            ):
                gap = difference(
                    by_seed(heads, architecture, first, column), by_seed(heads, architecture, second, column)
                )
                if gap is not None:
                    answers.append(f"{question}: {_answer(gap)} (difference {_shown(gap, (-1.0, 1.0), 3)})")
    return answers


def _band_text(results: Results, scale: HwHScale, models: list[HwHModel]) -> str:
    """Where RPD of the heads that rotate has its band, one number a seed; empty where no head rotates."""
    found, lengths, predicted = [], [], None
    for model in models:
        band = results.rope_heads(scale, model).get("band")
        if band is None:
            continue
        entry, predicted = band["factors"]["1"], band["predicted"]["covariance"]
        place = "no band" if entry["peak"] is None else f"{entry['verdict']} at group {entry['peak']:.2f}"
        lengths.append(int(band["length"]))
        found.append(f"{place} (seed {model.seed})")
    if not found:
        return ""
    windows = f" for windows of {lengths[0]} tokens" if lengths[0] != scale.length else ""
    beside = "" if predicted is None else f"; predicted{windows} {predicted:.2f}"
    return f"RPD of its rotating heads: {', '.join(found)}{beside}"


def notes(results: Results) -> list[str]:
    """What the report says beyond the paper: one line an architecture, or that nothing was run."""
    preset = results.preset
    scale, models = selection.probed(preset)
    if not models:
        return ["What the heads of the trained hybrids read: not run in this preset (`hwh.probe`)."]
    heads = add_kinds(results.head_influence(scale, models))
    single = any(sum(other.architecture == model.architecture for other in models) == 1 for model in models)
    alone = " One seed says nothing of the spread over seeds, so it decides none of the questions." if single else ""
    lines = [f"{_method(preset, scale, heads)}{alone}"]
    for architecture in selection.PROBED_ARCHITECTURES:
        title = ARCHITECTURE_TITLES[architecture]
        chosen = [model for model in models if model.architecture == architecture]
        if not chosen:
            lines.append(f"What the heads of {title} read: not run.")
            continue
        kinds = kinds_in(heads[heads["architecture"] == architecture])
        parts = [_kind_text(heads, architecture, kind) for kind in kinds]
        parts += _comparison(heads, architecture)
        parts.append(_band_text(results, scale, chosen))
        seeds = f"{len(chosen)} seed{'s' * (len(chosen) > 1)}"
        lines.append(f"What the heads of {title} read ({seeds}): {'; '.join(part for part in parts if part)}.")
    return lines


def _method(preset: PresetConfig, scale: HwHScale, heads: pd.DataFrame) -> str:
    probe = preset.hwh.probe
    even = heads["needle_share_if_even"].mean()
    seen = np.arange(scale.length - probe.num_queries, scale.length) + 1 - SINKS
    even_local = np.minimum(1.0, LOCAL_TOKENS / seen).mean()
    return (
        f"What the heads of the trained models read, scale {scale.name}, at its training length of {scale.length} "
        "tokens. Needle share: part of the influence on the last token of a question that comes from a planted fact, "
        f"both in words like RULER's, which are in no training text ({probe.num_contexts} prompts). Distances: last "
        f"{probe.num_queries} positions of {probe.num_samples} windows of held-out prose, without the first {SINKS} "
        f"tokens. If all tokens weighed alike, the needle share would be {even:.3f}, and {even_local:.2f} would come "
        f"from within {LOCAL_TOKENS} tokens. Influence is the attention weight, and for Gated DeltaNet the weight of a "
        "value in the recurrence's output, which leaves out what q, k, gates and convolutions carry. Means over heads "
        "with 95% intervals over heads and seeds."
    )
