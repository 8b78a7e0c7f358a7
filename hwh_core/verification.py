"""Whether artifacts still follow from their inputs, settings and code, read from their manifests.

Folders of reference results (results/reference/<preset>) keep the small results of a run: no weights or stores, and few
maps. What their manifests name and the folder does not hold is counted as not kept, and says nothing against an
artifact. Neither do the weights of trained models that a preset with ``keep_weights: false`` deletes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .config import PresetConfig
from .files import sha256_of
from .progress import progress
from .provenance import ROOT, code_hash, program_hash, standing_in
from .scripting import UserError

SUFFIX = ".manifest.json"
WEIGHTS = ".safetensors"
# Sections of a preset whose models have folders of that name below results/<preset>; those that it trains.
FAMILIES = ("controlled", "pretrained", "hwh")
TRAINED = ("controlled", "hwh")

# What every manifest holds, and as what.
MANIFEST = {"sha256": str, "inputs": dict, "settings": dict, "script": str, "code_hash": str | None}

# Folder below results/ that holds reference results, by preset.
REFERENCE = "reference"
# Below results/<preset>, what says how a run went and nothing of its results; also hidden files, and folders of these
# names, which are gone when a model is finished.
ABOUT_THE_RUN = ("logs", "benchmarks", "report.html", "report.log", "report.zip")
PASSING = {"checkpoints", "snapshots"}
# Kinds of reasons and what they mean, in the order in which they are counted.
KINDS = {
    "artifact": "the artifact or a file made with it was changed, was moved or is gone",
    "manifest": "no manifest says what it was made from",
    "input": "an input has changed or is gone",
    "settings": "settings differ from the preset",
    "code": "the code that made it has changed",
    "source": "made from an artifact that no longer follows",
}


class Reason(NamedTuple):
    """Why an artifact no longer follows: one of :data:`KINDS`, and the reason in words."""

    kind: str
    text: str


@dataclass
class Finding:
    """One artifact and the reasons why it no longer follows; none when it does.

    ``not_kept`` are the files that its manifest names and that were left behind on purpose: by a folder of reference
    results, or weights by a preset that does not keep them. ``untraced`` are the inputs from the same results folder
    that are not there and that no manifest covers, so that what changed before them is not seen.
    """

    artifact: Path
    causes: list[Reason] = field(default_factory=list)
    not_kept: list[Path] = field(default_factory=list)
    untraced: list[Path] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        """The reasons in words."""
        return [reason.text for reason in self.causes]

    @property
    def follows(self) -> bool:
        """Whether the artifact is what its inputs, settings and code give."""
        return not self.causes


def is_weights(path: Path) -> bool:
    """Whether a file, named relative to the folder of its model, is weights or belongs to a checkpoint."""
    return path.suffix == WEIGHTS or "checkpoints" in path.parts


def read_manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """Manifests below ``folder`` by the path of their artifact. Raises :class:`UserError` for a damaged one."""
    found = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            for key, kind in MANIFEST.items():
                if not isinstance(manifest[key], kind):
                    raise TypeError(f"{key} is {manifest[key]!r:.40}")
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
        if not prefix and isinstance(preset, dict) and key in preset:
            # The preset's own seed, say: that a model has the same one excuses no other.
            candidates = [preset[key]]
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
        self.shapes = {
            (scale.name, model.name): preset.hwh.shape_of(scale, model.architecture).model_dump(mode="json")
            for scale in preset.hwh.scales
            for model in scale.models
        }
        self.root = root
        self.reference = folder.resolve().parent.name == REFERENCE
        self._hashes: dict[Path, str] = {}
        self._makers = dict(self._made())

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
            # A variant's shape is that of its scale with the variant's own sizes.
            shape = self.shapes.get(tuple(below[:2]))
            scales = [scale for scale in part["hwh"]["scales"] if scale["name"] == below[0]]
            part["hwh"] = {"scales": [scale | ({"shape": shape} if shape else {}) for scale in scales]}
        return part

    def _made(self) -> Iterator[tuple[Path, Path]]:
        """Every file that a manifest covers, with its artifact: the artifact itself and what was made beside it."""
        for artifact, manifest in self.manifests.items():
            for name in manifest.get("beside", {}):
                yield artifact.with_name(name).resolve(), artifact
        for artifact in self.manifests:
            yield artifact.resolve(), artifact

    def _input(self, name: str) -> Path:
        """Where a file that a manifest names lies: below the root, and of reference results in their own folder."""
        parts = Path(name).parts
        if self.reference and parts[:2] == ("results", self.folder.resolve().name):
            return self.folder.joinpath(*parts[2:])
        return self.root / name

    def _maker(self, path: Path) -> Path | None:
        """The artifact that a file is, was made beside, or lies in."""
        resolved = path.resolve()
        return next((self._makers[p] for p in (resolved, *resolved.parents) if p in self._makers), None)

    def _weights_are_gone(self, path: Path) -> bool:
        """Whether a path is weights of a trained model, or their folder, that a preset deleted as it says."""
        inside, folder = path.resolve(), self.folder.resolve()
        if self.preset["keep_weights"] or not any(inside.is_relative_to(folder / family) for family in TRAINED):
            return False
        if path.suffix == WEIGHTS:
            return not path.exists()
        return not path.suffix and not any(path.glob(f"*{WEIGHTS}"))

    def _kept(self, path: Path) -> bool:
        """Whether a file can be compared; of a folder, reference results may keep a part only."""
        return path.exists() and not (self.reference and path.is_dir()) and not self._weights_are_gone(path)

    def _file_reasons(self, finding: Finding, manifest: dict[str, Any]) -> Iterator[Reason]:
        """Files that are gone or differ; adds to ``finding`` what was not kept."""
        artifact = finding.artifact
        files = [("artifact", artifact, manifest["sha256"], "it", "was changed after it had been made")]
        for name, expected in manifest.get("beside", {}).items():
            files.append(("artifact", artifact.with_name(name), expected, f"{name}, made with it,", "was changed"))
        for name, expected in manifest["inputs"].items():
            files.append(("input", self._input(name), expected, f"input {name}", "has changed"))
        for kind, path, expected, name, changed in files:
            if self._kept(path):
                if self._hash(path) != expected:
                    yield Reason(kind, f"{name} {changed}")
            elif self.reference or self._weights_are_gone(path):
                finding.not_kept.append(path)
                # What is not here can still be held against the manifest of the step that made it.
                made = self.manifests.get(self._makers.get(path.resolve(), path))
                if made is not None and made["artifact"] == path.name and made["sha256"] != expected:
                    yield Reason(kind, f"{name} was another one than {path.name}{SUFFIX} describes")
            else:
                yield Reason(kind, f"{name} is gone")

    def _is_covered(self, path: Path) -> bool:
        """Whether a file below the folder is a manifest, is named by one, or says nothing of results."""
        inside = path.relative_to(self.folder)
        about_the_run = inside.parts[0] in ABOUT_THE_RUN or not PASSING.isdisjoint(inside.parts)
        return about_the_run or path.name.startswith(".") or path.name.endswith(SUFFIX) or self._maker(path) is not None

    def _own_reasons(self, finding: Finding, manifest: dict[str, Any]) -> Iterator[Reason]:
        artifact = finding.artifact
        made = Path(manifest.get("path", artifact))
        # An absolute one was made by hand, and a folder of results may be copied to another place.
        if not made.is_absolute() and self._input(str(made)).resolve() != artifact.resolve():
            yield Reason("artifact", f"it was made as {made} and stands in another's place")
        yield from self._file_reasons(finding, manifest)
        settings = manifest["settings"]
        whole = {"settings": settings} if "name" in settings else settings
        differences = settings_differences(whole, self._part(artifact))
        if differences:
            yield Reason("settings", f"settings differ from the preset: {', '.join(differences)}")
        script = manifest["script"]
        if manifest["code_hash"] is not None:
            if not (ROOT / script).is_file():
                yield Reason("code", f"its program {script} is gone")
            elif program_hash(script, settings) != manifest["code_hash"]:
                yield Reason("code", f"the code that {script} runs has changed")
        for module, expected in manifest.get("modules", {}).items():
            if not (ROOT / module).is_file() or code_hash(module) != expected:
                yield Reason("code", f"{module}, which {script} loads, has changed")

    def counted_as_before(self) -> set[str]:
        """Source files behind the artifacts that count as an earlier form of theirs; see ``equivalent_code.json``."""
        programs = {manifest["script"] for manifest in self.manifests.values() if manifest["code_hash"] is not None}
        return {file for program in programs if (ROOT / program).is_file() for file in standing_in(program)}

    def check(self) -> list[Finding]:
        """One finding an artifact, sorted by path; an artifact made from one that no longer follows says so.

        A file that no manifest names is a finding too, and no complaint against what was made from it.
        """
        findings, sources = {}, {}
        inside = self.folder.resolve()
        for artifact, manifest in progress(self.manifests.items(), "checking manifests", len(self.manifests)):
            finding = findings[artifact] = Finding(artifact)
            finding.causes += self._own_reasons(finding, manifest)
            paths = [self._input(name) for name in manifest["inputs"]]
            makers = [self._maker(path) for path in paths]
            sources[artifact] = [maker for maker in dict.fromkeys(makers) if maker not in (None, artifact)]
            finding.untraced += [
                path
                for path, maker in zip(paths, makers, strict=True)
                if maker is None and not path.exists() and path.resolve().is_relative_to(inside)
            ]
        stale = {artifact for artifact, finding in findings.items() if not finding.follows}
        while stale:
            reached = set()
            for artifact, finding in findings.items():
                for source in (source for source in sources[artifact] if source in stale):
                    if finding.follows:
                        reached.add(artifact)
                    finding.causes.append(Reason("source", f"made from stale {source}"))
            stale = reached
        for path in self.folder.rglob("*"):
            if path.is_file() and not self._is_covered(path):
                findings[path] = Finding(path, [Reason("manifest", KINDS["manifest"])])
        return [findings[artifact] for artifact in sorted(findings)]
