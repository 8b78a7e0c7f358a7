"""What a preset needs from outside, and where it lies below ``resources/`` once it is fetched.

Names hold a hash of what they stand for: presets that mean other things by one name never share a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import PurePosixPath
from typing import Any

from .config import PresetConfig


def canonical(value: Any) -> str:
    """Settings (models of the schema among them) as canonical JSON: what a job is told, and what decides a rerun."""

    def plain(item: Any) -> Any:
        if hasattr(item, "model_dump"):
            return item.model_dump(mode="json")
        if isinstance(item, dict):
            return {key: plain(entry) for key, entry in item.items()}
        if isinstance(item, (list, tuple)):
            return [plain(entry) for entry in item]
        return item

    return json.dumps(plain(value), sort_keys=True)


def pinned(name: str, *values: Any) -> str:
    """``name`` with a hash of what it stands for."""
    text = json.dumps([canonical(value) for value in values])
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def text_sources(preset: PresetConfig) -> dict[str, Any]:
    """Entries of ``data.sources`` by name; the text lies in ``sources/<name>.jsonl.zst``."""
    return {pinned(source.name, source): source for source in preset.data.sources}


def pretrained_weights(preset: PresetConfig) -> dict[str, Any]:
    """Entries of ``pretrained.models`` by name; the weights lie in ``pretrained/<name>``.

    Weights drawn at random come with the tokenizer of their preset.
    """
    return {
        pinned(model.name, model.source, preset.preset if model.source.kind == "random" else ""): model
        for model in preset.pretrained.models
    }


def hub_samples(preset: PresetConfig) -> dict[str, dict[str, Any]]:
    """The file of the hub that behaviour scores are measured on, by name (none or one); it lies in ``samples/<name>``.

    None where samples are made of held-out prose or files are named.
    """
    from .probes.samples import HUB_FILES

    source = preset.pretrained.behavior.sample_source()
    if source is None or source[1] or source[0] not in HUB_FILES:
        return {}
    pin = dataclasses.asdict(HUB_FILES[source[0]])
    return {pinned(pin["name"], pin) + PurePosixPath(pin["file"]).suffix: pin}


def rows_folder(preset: PresetConfig) -> str:
    """Name of the folder of evaluation rows in ``evaluation/``."""
    rows = preset.evaluation.rows
    return f"rows-{rows.sha256[:12]}" if rows.kind == "pypi" else f"rows-{rows.kind}-{preset.preset}"
