"""Checking the settings that the evaluation programs are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..config import EvaluationConfig, NiahConfig, Rows
from .errors import EvaluationError


def require(settings: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The settings, if they have all keys. Raises :class:`EvaluationError` naming the first that is missing."""
    for key in keys:
        if key not in settings:
            raise EvaluationError(f"--settings: key {key!r} is missing; needed are {', '.join(keys)}")
    return settings


def _validate(adapter: TypeAdapter, value: Any, where: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([where, *map(str, first["loc"])])
        raise EvaluationError(f"--settings: {key} = {first.get('input')!r}: {first['msg']}") from None


def evaluation_settings(value: Any) -> EvaluationConfig:
    """``evaluation`` of a preset."""
    return _validate(TypeAdapter(EvaluationConfig), value, "evaluation")


def niah_settings(value: Any) -> NiahConfig:
    """``evaluation.niah`` of a preset."""
    return _validate(TypeAdapter(NiahConfig), value, "niah")


def rows_settings(value: Any) -> Any:
    """``evaluation.rows`` of a preset."""
    return _validate(TypeAdapter(Rows), value, "rows")
