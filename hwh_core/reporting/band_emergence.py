"""When the band of the controlled Transformers appears, in words: for the figure and the notes of the ledger."""

from __future__ import annotations

import pandas as pd

from ..gpband.emergence import SAME_PLACE, emergence_of
from . import selection
from .results import Results


def count_text(count: float) -> str:
    """A number of tokens, short: ``0``, ``655k``, ``1.31M``, ``15B``."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{suffix}"
    return f"{count:.0f}"


def emergence_text(rows: pd.DataFrame) -> str:
    """From how many tokens on the rows of a curve show a band that stays, and where they do not, in one clause."""
    found, tokens = emergence_of(rows), sorted(rows["tokens"])
    if found.first is None:
        return f"no band at any of the {len(tokens)} measured points up to {count_text(tokens[-1])} tokens"
    if found.stays is None:
        return f"a band first at {count_text(found.first)} tokens, but none at the last point, {count_text(tokens[-1])}"
    remarks = [f"none at {count_text(count)}" for count in tokens if count < found.stays][-1:]
    if found.vanished:
        remarks.append(f"a first one at {count_text(found.first)} did not stay")
    text = f"a band from {count_text(found.stays)} tokens on" + (f" ({'; '.join(remarks)})" if remarks else "")
    if found.settles != found.stays:
        text += f", within {SAME_PLACE:g} group of its last place from {count_text(found.settles)} on"
    return text


def notes(results: Results) -> list[str]:
    """What the report says beyond the paper: one line a model with a curve, or that none was run."""
    models = results.preset.controlled.curve_models
    if not models:
        return ["The band against tokens seen: not run in this preset (`controlled.curve`)."]
    lines = []
    for model in models:
        rows = results.curve(model).sort_values("tokens")
        last = rows.iloc[-1]
        place = f"at group {last['peak_group']:.2f}" if last["verdict"] == "peak" else "without a band"
        lines.append(
            f"The band against tokens seen, {selection.condition_of(model).title}, seed {model.seed}: "
            f"{emergence_text(rows)}; at the end ({count_text(last['tokens'])} tokens, "
            f"{last['loss_nats_per_token']:.3f} nats/token on the probed text) {place}, predicted "
            f"{last['predicted_group_covariance']:.2f}. One model: nothing is known of the spread over seeds."
        )
    return lines
