"""The files of launch configurations: their entries, fallback keys and hashes, as flash-linear-attention reads."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Key = Sequence[Any]
Configuration = Mapping[str, Any]


def key_hash(key: Key) -> str:
    """Name of an entry: md5 of the key as compact JSON."""
    text = json.dumps(list(key), separators=(",", ":"), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def fallback_key(key: Key) -> list[Any]:
    """The key with zeros for its numbers, which no launch has: what mode ``fuzzy`` matches for all others."""
    return [0 if isinstance(value, int | float) and not isinstance(value, bool) else value for value in key]


def fallbacks(entries: Iterable[tuple[Key, Configuration]]) -> dict[str, tuple[list[Any], Configuration]]:
    """For each kind of key the configuration that won most often (the first of those that did), by hash."""
    kinds: dict[str, list[Any]] = {}
    votes: dict[str, Counter[str]] = {}
    for key, configuration in entries:
        general = fallback_key(key)
        name = key_hash(general)
        kinds[name] = general
        votes.setdefault(name, Counter())[json.dumps(configuration, sort_keys=True)] += 1
    return {name: (kinds[name], json.loads(votes[name].most_common(1)[0][0])) for name in kinds}


def read(path: Path) -> list[tuple[list[Any], dict[str, Any]]]:
    """(key, configuration) of each entry of a file, in its order; nothing if there is no such file."""
    if not path.is_file():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    return [(entry["autotune_key"], entry["config"]) for entry in data["autotune_entries"].values()]


def render(kernel: str, triton: str | None, entries: Iterable[tuple[Key, Configuration]], shipped: Path | None) -> str:
    """Text of ``kernel``'s file: fallbacks first, then ``entries`` of measured keys by key.

    A fallback comes from the fallbacks of the file ``shipped``, else from what won most often. Entries come first in a
    fuzzy match by their place in the file, so the order matters.
    """
    measured = [(list(key), dict(configuration)) for key, configuration in entries]
    general = fallbacks(measured)
    for key, configuration in read(shipped) if shipped is not None else []:
        if list(key) == fallback_key(key):
            general[key_hash(key)] = (list(key), configuration)
    ordered = [*general.values(), *sorted(measured, key=lambda entry: json.dumps(entry[0]))]
    data = {
        "kernel_name": kernel,
        "triton_version": triton,
        "autotune_entries": {
            key_hash(key): {"autotune_key": list(key), "config": configuration} for key, configuration in ordered
        },
    }
    return json.dumps(data, indent=1) + "\n"
