"""One checked entry of the configuration, as programs get it through --settings."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from .errors import DataError


def parse_entry(kind: Any, values: dict[str, Any], where: str) -> Any:
    """``values`` as an object of a type of ``hwh_core.config``.

    Raises :class:`DataError` that starts with ``where`` and names the key; an unknown key is named before a missing
    one, since a misspelt key is both.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"]) or "kind"
        what = "is not known; remove it or correct its spelling" if first["type"] == "extra_forbidden" else first["msg"]
        raise DataError(f"{where}: key {key!r}: {what}") from None
