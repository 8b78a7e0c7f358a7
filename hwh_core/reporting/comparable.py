"""Numbers of several models stand side by side only where all were measured on the same things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from .selection import ReportError

# Metrics of whole texts, which are cut into windows: another window gives another number.
WINDOWED_METRICS = ("word_perplexity", "byte_perplexity", "bits_per_byte")
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Same:
    """A column that must hold one value for all models, and what to do where it does not.

    ``recorded``: it must hold a value as well; else models that record none may stand beside one another.
    """

    column: str
    mend: str
    recorded: bool = True


SAME_ROWS = Same("rows_sha256", "evaluate these models again on the same rows")
SAME_VERSION = Same("task_version", "evaluate these models again with one version of lm-eval and of its tasks")
SAME_BOS = Same("add_bos", "evaluate these models again with one evaluation.add_bos")
SAME_WINDOW = Same("max_length", "evaluate these models again with one window")
# Grids measured before prompts had a checksum have none.
SAME_PROMPTS = Same("prompts_sha256", "evaluate these models again on the same prompts", recorded=False)
SAME_FORM = Same("task_version", "evaluate these models again on one form of the prompts", recorded=False)


def _shown(value: object, column: str) -> str:
    if pd.isna(value):
        return NOT_RECORDED
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)[:12] if column.endswith("sha256") else str(value)


def values_by_model(rows: pd.DataFrame, column: str) -> dict[object, list[str]]:
    """Names of the models that hold each value of ``column``; None stands for no value."""
    values = rows[column] if column in rows else pd.Series(index=rows.index, dtype=object)
    held: dict[object, dict[str, None]] = {}
    for value, model in zip(values, rows["model"], strict=True):
        held.setdefault(None if pd.isna(value) else value, {})[str(model)] = None
    return {value: list(models) for value, models in held.items()}


def raise_if_mixed(rows: pd.DataFrame, same: Same, about: str) -> None:
    """Raise :class:`ReportError` where models differ in a column, or where one records nothing in it that must.

    ``about`` names the rows in the error: what was measured, and at which scale.
    """
    held = values_by_model(rows, same.column)
    if len(held) > 1 or (same.recorded and None in held and rows["model"].nunique() > 1):
        raise ReportError(f"{about}: {same.column} is {_listed(held, same.column)}; {same.mend}")


def _listed(held: Mapping[object, list[str]], column: str) -> str:
    return ", ".join(f"{_shown(value, column)} for {' and '.join(models)}" for value, models in held.items())
