"""Whether artifacts still follow from their inputs, settings and code, read from their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import PresetConfig
from .files import sha256_of
from .progress import progress
from .provenance import ROOT, code_hash
from .scripting import UserError

SUFFIX = ".manifest.json"


@dataclass
class Finding:
    """One artifact and the reasons why it no longer follows; none when it does."""

    artifact: Path
    reasons: list[str] = field(default_factory=list)

    @property
    def follows(self) -> bool:
        """Whether the artifact is what its inputs, settings and code give."""
        return not self.reasons


def read_manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """Manifests below ``folder`` by the path of their artifact. Raises :class:`UserError` for a damaged one."""
    found = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            manifest["sha256"], manifest["inputs"], manifest["settings"], manifest["script"], manifest["code_hash"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no manifest ({error}); delete it and its artifact and run again") from None
        found[path.with_name(path.name.removesuffix(SUFFIX))] = manifest
    return found


def _nodes(tree: Any, key: str) -> Iterator[Any]:
    """All values that stand under ``key`` anywhere in nested dicts and lists."""
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        for child in tree:
            yield from _nodes(child, key)


def _named(tree: Any, name: str) -> Iterator[dict[str, Any]]:
    """All dicts of the tree whose ``name`` is the given one."""
    if isinstance(tree, dict):
        if tree.get("name") == name:
            yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for child in tree:
            yield from _named(child, name)


def settings_differences(settings: dict[str, Any], preset: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys of a job's settings that no longer agree with the preset (both as plain JSON data).

    Settings are made of parts of the preset, under the keys that they have there. A key that the preset does not know
    (something computed by the workflow) is left alone; a group with a ``name`` is compared with the entry of that name.
    """
    wrong = []
    for key, value in settings.items():
        path = f"{prefix}{key}"
        candidates = list(_nodes(preset, key))
        if not candidates or value in candidates:
            continue
        if not isinstance(value, dict):
            wrong.append(path)
        elif "name" in value:
            entries = list(_named(preset, value["name"]))
            if not entries:
                wrong.append(f"{path}.name")
            else:
                wrong += min((_entry_differences(value, entry, preset, path) for entry in entries), key=len)
        elif any(isinstance(candidate, dict) for candidate in candidates):
            wrong += settings_differences(value, preset, f"{path}.")
    return wrong


def _entry_differences(value: dict[str, Any], entry: dict[str, Any], preset: dict[str, Any], path: str) -> list[str]:
    """Keys of ``value`` that differ from the preset's entry of that name, or, absent there, from the whole preset."""
    own = [f"{path}.{key}" for key in value if key in entry and value[key] != entry[key]]
    rest = {key: part for key, part in value.items() if key not in entry}
    return own + settings_differences(rest, preset, f"{path}.")


class Verifier:
    """Checks the manifests of one results folder; hashes of inputs are computed once."""

    def __init__(self, folder: Path, preset: PresetConfig, root: Path) -> None:
        """``folder`` is results/<preset>; relative paths in manifests are looked up below ``root``."""
        self.manifests = read_manifests(folder)
        if not self.manifests:
            raise UserError(f"no manifest (*{SUFFIX}) lies below {folder}; run the workflow first")
        self.preset = preset.model_dump(mode="json")
        self.root = root
        self._hashes: dict[Path, str] = {}

    def _hash(self, path: Path) -> str:
        resolved = path.resolve()
        if resolved not in self._hashes:
            self._hashes[resolved] = sha256_of(resolved)
        return self._hashes[resolved]

    def _own_reasons(self, artifact: Path, manifest: dict[str, Any]) -> Iterator[str]:
        if not artifact.exists():
            yield "it is gone"
        elif self._hash(artifact) != manifest["sha256"]:
            yield "it was changed after it had been made"
        for name, expected in manifest["inputs"].items():
            path = self.root / name
            if not path.exists():
                yield f"input {name} is gone"
            elif self._hash(path) != expected:
                yield f"input {name} has changed"
        differences = settings_differences(manifest["settings"], self.preset)
        if differences:
            yield f"settings differ from the preset: {', '.join(differences)}"
        script = manifest["script"]
        if manifest["code_hash"] is not None:
            if not (ROOT / script).is_file():
                yield f"its program {script} is gone"
            elif code_hash(script) != manifest["code_hash"]:
                yield f"the code that {script} runs has changed"

    def check(self) -> list[Finding]:
        """One finding an artifact, sorted by path; an artifact made from one that no longer follows says so."""
        findings = {}
        for artifact, manifest in progress(self.manifests.items(), "checking manifests", len(self.manifests)):
            findings[artifact] = Finding(artifact, list(self._own_reasons(artifact, manifest)))
        by_path = {artifact.resolve(): artifact for artifact in findings}
        stale = {artifact for artifact, finding in findings.items() if not finding.follows}
        while stale:
            reached = set()
            for artifact, manifest in self.manifests.items():
                sources = [by_path.get((self.root / name).resolve()) for name in manifest["inputs"]]
                for source in dict.fromkeys(s for s in sources if s in stale and s != artifact):
                    if findings[artifact].follows:
                        reached.add(artifact)
                    findings[artifact].reasons.append(f"made from {source}, which no longer follows")
            stale = reached
        return [findings[artifact] for artifact in sorted(findings)]
