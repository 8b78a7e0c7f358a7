"""Numbers of several models stand side by side only where all were measured on the same things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from .selection import ReportError
from .task_scores import Column

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


def raise_if_tasks_mixed(scores: pd.DataFrame, where: str) -> None:
    """Raise :class:`ReportError` where models were given a task with other rows, in another version or after another
    beginning; ``where`` says in the error which models stand together."""
    for task, rows in scores.groupby("task"):
        for same in (SAME_ROWS, SAME_VERSION, SAME_BOS):
            raise_if_mixed(rows, same, f"task {task!r} of {where}")


def raise_if_columns_mixed(scores: pd.DataFrame, columns: Iterable[Column], where: str) -> None:
    """Raise :class:`ReportError` where different tasks would fill one column of several models.

    A model without any of them is not run, which mixes nothing.
    """
    for column in columns:
        held: dict[object, list[str]] = {}
        for model, rows in scores[scores["metric"] == column.metric].groupby("model", sort=False):
            task = column.filled_by(rows["task"])
            if task is not None:
                held.setdefault(task, []).append(str(model))
        if len(held) > 1:
            raise ReportError(
                f"column {column.title!r} of {where}: the task is {_listed(held, 'task')}; evaluate these models again "
                "on one of these tasks"
            )


def raise_if_truncated(rows: pd.DataFrame, about: str) -> None:
    """Raise :class:`ReportError` for a score of which prompts were cut, or that does not say how many were."""
    held = values_by_model(rows[rows["num_truncated"] != 0], "num_truncated")
    if held:
        raise ReportError(
            f"{about}: num_truncated is {_listed(held, 'num_truncated')}, expected 0; evaluate these models again on "
            "prompts that fit"
        )


def _listed(held: Mapping[object, list[str]], column: str) -> str:
    return ", ".join(f"{_shown(value, column)} for {' and '.join(models)}" for value, models in held.items())
