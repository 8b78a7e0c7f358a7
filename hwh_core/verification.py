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
# Sections of a preset whose models have folders of that name below results/<preset>.
FAMILIES = ("controlled", "pretrained", "hwh")


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


def _differing(value: dict[str, Any], entry: dict[str, Any], path: str) -> list[str]:
    """Keys that two groups share and in which they differ, as dotted paths."""
    wrong = []
    for key in value:
        if key not in entry or value[key] == entry[key]:
            continue
        if isinstance(value[key], dict) and isinstance(entry[key], dict):
            wrong += _differing(value[key], entry[key], f"{path}{key}.")
        else:
            wrong.append(f"{path}{key}")
    return wrong


def settings_differences(settings: dict[str, Any], preset: Any, prefix: str = "") -> list[str]:
    """Keys of a job's settings that no longer agree with the preset or a part of it (both as plain JSON data).

    Settings are made of parts of the preset under the keys that they have there; one that has several places is held
    against the nearest. A group with a ``name`` is held against the entry of that name, and what such an entry lacks
    against the rest. A key that the preset does not know (something computed by the workflow) is left alone.
    """
    wrong = []
    for key, value in settings.items():
        candidates = list(_nodes(preset, key))
        if value in candidates:
            continue
        if not isinstance(value, dict):
            wrong += [f"{prefix}{key}"] if candidates else []
            continue
        path = f"{prefix}{key}."
        if "name" in value:
            entries = list(_named(preset, value["name"]))
            if not entries:
                wrong.append(f"{path}name")
                continue
            nearest = min(entries, key=lambda entry: len(_differing(value, entry, path)))
            wrong += _differing(value, nearest, path)
            rest = {part: value[part] for part in value if part not in nearest}
            wrong += settings_differences(rest, preset, path)
        elif groups := [candidate for candidate in candidates if isinstance(candidate, dict)]:
            wrong += min((_differing(value, group, path) for group in groups), key=len)
        else:
            wrong += settings_differences(value, preset, path)
    return wrong


class Verifier:
    """Checks the manifests of one results folder; hashes of inputs are computed once."""

    def __init__(self, folder: Path, preset: PresetConfig, root: Path) -> None:
        """``folder`` is results/<preset>; relative paths in manifests are looked up below ``root``."""
        self.manifests = read_manifests(folder)
        if not self.manifests:
            raise UserError(f"no manifest (*{SUFFIX}) lies below {folder}; run the workflow first")
        self.folder = folder
        self.preset = preset.model_dump(mode="json")
        self.root = root
        self._hashes: dict[Path, str] = {}

    def _hash(self, path: Path) -> str:
        resolved = path.resolve()
        if resolved not in self._hashes:
            self._hashes[resolved] = sha256_of(resolved)
        return self._hashes[resolved]

    def _part(self, artifact: Path) -> dict[str, Any]:
        """The preset without the other families (and scales) than the one in whose folder the artifact lies."""
        family, *below = artifact.relative_to(self.folder).parts
        if family not in FAMILIES:
            return self.preset
        part = {key: value for key, value in self.preset.items() if key not in FAMILIES or key == family}
        if family == "hwh":
            part["hwh"] = {"scales": [scale for scale in part["hwh"]["scales"] if scale["name"] == below[0]]}
        return part

    def _own_reasons(self, artifact: Path, manifest: dict[str, Any]) -> Iterator[str]:
        if not artifact.exists():
            yield "it is gone"
        elif self._hash(artifact) != manifest["sha256"]:
            yield "it was changed after it had been made"
        for name, expected in manifest.get("beside", {}).items():
            path = artifact.with_name(name)
            if not path.exists():
                yield f"{name}, made with it, is gone"
            elif self._hash(path) != expected:
                yield f"{name}, made with it, was changed"
        for name, expected in manifest["inputs"].items():
            path = self.root / name
            if not path.exists():
                yield f"input {name} is gone"
            elif self._hash(path) != expected:
                yield f"input {name} has changed"
        settings = manifest["settings"]
        whole = {"settings": settings} if "name" in settings else settings
        differences = settings_differences(whole, self._part(artifact))
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
