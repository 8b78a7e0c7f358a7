"""Reading a preset file, and what is said about one that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .base import COMMIT_PATTERN
from .preset import PresetConfig


class ConfigError(ValueError):
    """A preset cannot be used; the message names the file, the key, the value and what was expected."""


# What is longer is no mistyped value but a part of the file, which hides the reason.
SHOWN_CHARACTERS = 100


def _shown(value: object) -> str:
    """`` = <value>`` where that helps to find it: nothing for sections and long lists, long text cut."""
    if isinstance(value, dict):
        return ""
    text = repr(value)
    if len(text) <= SHOWN_CHARACTERS:
        return f" = {text}"
    return "" if isinstance(value, list | tuple) else f" = {text[:SHOWN_CHARACTERS]}..."


def _describe(error: ValidationError, origin: str) -> str:
    # A misspelt key is unknown, and the one that was meant is missing: the misspelt one is what the user must find.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{origin}: unknown key {key!r}; remove it or mend its spelling (config/README.md lists all keys){more}"
    if first["type"] == "missing":
        return f"{origin}: key {key!r} is missing; config/README.md says what it holds{more}"
    mend = ""
    if first.get("ctx", {}).get("pattern") == COMMIT_PATTERN:
        mend = (
            "; give the 40 hexadecimal digits of a commit, which stand on the repository's page on the hub under "
            "commits/main (of git: git ls-remote)"
        )
    elif first["type"] == "too_short":
        mend = "; add what is missing"
    reason = first["msg"].removeprefix("Value error, ")
    # What must agree between sections names its keys itself.
    place = f"key {key!r}{_shown(first.get('input'))}: " if first["loc"] else ""
    return f"{origin}: {place}{reason}{mend}{more}"


def validate_preset(data: dict, origin: str) -> PresetConfig:
    """Check a loaded preset; ``origin`` names the file in the error. Raises :class:`ConfigError`."""
    try:
        return PresetConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_describe(error, origin)) from None


def read_preset(path: str | Path) -> dict[str, Any]:
    """The mapping in a preset file (YAML), not checked further.

    Raises :class:`ConfigError` for one that cannot be read, and for a key that stands twice in one section: YAML would
    keep the last without a word.
    """
    import yaml

    class OnceLoader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            lines: dict[str, int] = {}
            # Those that `<<` brings stand elsewhere, and may be replaced here.
            inside = range(node.start_mark.index, node.end_mark.index)
            for key in (key for key, _ in node.value if key.start_mark.index in inside):
                line, name = key.start_mark.line + 1, str(key.value)
                if name in lines:
                    raise ConfigError(
                        f"{path}: key {name!r} stands twice in one section, in lines {lines[name]} and {line}; remove "
                        "one of them"
                    )
                lines[name] = line
            return super().construct_mapping(node, deep)

    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"preset file {path} does not exist; presets lie in config/ (config.yaml, smoke.yaml, ...)")
    try:
        data = OnceLoader(path.read_text(encoding="utf-8")).get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"preset file {path} is not valid YAML in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"preset file {path} holds no mapping of keys; see config/README.md")
    return data


def load_preset(path: str | Path) -> PresetConfig:
    """Read and check one preset file (YAML). Raises :class:`ConfigError` with one clear sentence."""
    return validate_preset(read_preset(path), str(path))
