"""Manifests: from which inputs, settings, code and machine an artifact came."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from .files import sha256_of, write_json

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"hwh_core": ROOT / "hwh_core", "hwh_kernels": ROOT / "kernels"}
# Checks settings, writes files and manifests, shows progress, chooses a device: no value of a result comes from here
# (defaults of the schema are resolved in the settings that a job is given), so an edit there reruns nothing.
PLUMBING = (
    "hwh_core/config/",
    "hwh_core/files.py",
    "hwh_core/locks.py",
    "hwh_core/scripting.py",
    "hwh_core/provenance.py",
    "hwh_core/progress.py",
    "hwh_core/devices.py",
    "hwh_core/memory_estimate.py",
    "hwh_core/memory_plan.py",
)
# What a program runs only where its settings hold a key. Where they do not, an edit there makes nothing anew.
OPTIONAL_CODE = {
    "scripts/train.py": {"retrieval_mix": ("hwh_core/data/retrieval_", "hwh_core/retrieval_split.py")},
}
# Files that were edited without any result changing, each with the test that shows it: they count as what they were.
EQUIVALENTS = Path(__file__).with_name("equivalent_code.json")
# The clock of the day may be set back during weeks of work, which would make durations negative; this one is not set.
_EPOCH = time.time() - time.monotonic()
RECORDED_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pandas", "lm-eval", "datasets",
    "snakemake", "triton", "flash-linear-attention", "fla-core", "gguf", "matplotlib",
)  # fmt: skip


def module_file(module: str) -> Path | None:
    """The source file of one of the project's modules, or None when ``module`` is not ours."""
    head, *rest = module.split(".")
    if head not in PACKAGES:
        return None
    base = PACKAGES[head].joinpath(*rest)
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _module_name(path: Path) -> str | None:
    for name, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts and parts[-1] == "__init__" else parts
            return ".".join((name, *parts))
    return None


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


class _DropDocstrings(ast.NodeTransformer):
    """Removes docstrings; comments are not part of a syntax tree to begin with."""

    def _strip(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _strip


def _canonical(part: Any) -> str:
    """Text of a syntax tree, the same in every version of Python: ast.dump shows fields that newer ones added."""
    if isinstance(part, ast.AST):
        filled = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
        return f"{type(part).__name__}({', '.join(f'{name}={_canonical(value)}' for name, value in filled)})"
    if isinstance(part, list):
        return f"[{', '.join(map(_canonical, part))}]"
    return repr(part)


@cache
def syntax_hash(path: Path) -> str:
    """sha256 of a source file's syntax tree, without comments, docstrings and layout."""
    tree = _DropDocstrings().visit(ast.parse(path.read_text(encoding="utf-8")))
    return hashlib.sha256(_canonical(tree).encode()).hexdigest()


@cache
def _imports(path: Path) -> frozenset[str]:
    """The project's modules that a file imports anywhere (function bodies included)."""
    found: set[str] = set()
    name = _module_name(path)
    package: list[str] = []
    if name is not None:
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(module for module in found if module_file(module) is not None)


def import_closure(path: Path, ends: tuple[str, ...] = ()) -> list[Path]:
    """All source files of the project that ``path`` runs, itself included, sorted.

    Importing ``a.b.c`` also runs the package files of ``a`` and ``a.b``. From a file whose path in the repository
    starts with one of ``ends``, imports of other such files only are followed.
    """
    seen: set[Path] = set()
    waiting = [path.resolve()]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        at_an_end = _relative_name(current).startswith(ends)
        for module in _imports(current):
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                file = module_file(".".join(parts[:end]))
                if file is not None and (not at_an_end or _relative_name(file).startswith(ends)):
                    waiting.append(file)
    return sorted(seen)


def _relative_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def data_files(path: Path) -> list[Path]:
    """Files beside Python that a module loads: those of its DATA_FILES, glob patterns below its folder; sorted."""
    patterns = [
        pattern
        for node in _tree(path).body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "DATA_FILES" for target in node.targets)
        for pattern in ast.literal_eval(node.value)
    ]
    return sorted({found for pattern in patterns for found in path.parent.glob(pattern)})


class Equivalent(NamedTuple):
    """A source file that gives what an earlier form of it gave.

    ``file`` is relative to the repository root; ``was`` and ``now`` are :func:`syntax_hash` of the earlier form (None
    for a file that was not there) and of the present one; ``shown_by`` is the test that holds both against each other.
    ``only_for``: programs and modules to which the statement is confined, since others do differ by it; empty: all.
    """

    file: str
    was: str | None
    now: str
    why: str
    shown_by: str
    only_for: Sequence[str] = ()


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """What :data:`EQUIVALENTS` declares."""
    return tuple(Equivalent(**entry) for entry in json.loads(EQUIVALENTS.read_text(encoding="utf-8")))


def declared(file: Path, paths: Iterable[str]) -> Equivalent | None:
    """What is declared of the present state of a file and holds for results of all of ``paths``; None if nothing is.

    A declaration is of one state of the file: after a further edit the file counts as itself again.
    """
    found, name, paths = syntax_hash(file), _relative_name(file), set(paths)
    matching = (entry for entry in equivalents() if entry.file == name and entry.now == found)
    return next((entry for entry in matching if not entry.only_for or paths <= set(entry.only_for)), None)


def counted_hash(file: Path, paths: Iterable[str]) -> str | None:
    """:func:`syntax_hash` of a file, or that of the earlier form which counts for ``paths`` by :func:`declared`."""
    entry = declared(file, paths)
    return syntax_hash(file) if entry is None else entry.was


def standing_in(script: str) -> set[str]:
    """Files that a program runs and that count as an earlier form; paths relative to the repository root."""
    run = import_closure(ROOT / script, ends=PLUMBING)
    return {entry.file for entry in (declared(file, [script]) for file in run) if entry is not None}


@cache
def code_hash(*paths: str, only: tuple[str, ...] | None = None, without: tuple[str, ...] = PLUMBING) -> str:
    """Hash of everything that the given files run (import closure, by syntax tree): 16 hexadecimal digits.

    Paths are relative to the repository root. An edit in a comment or docstring leaves the hash as it is. Templates
    and other files that a module names in DATA_FILES belong to it, by their content. A file of
    :data:`EQUIVALENTS` counts as what it was: results that took weeks outlive work on the code that made them. With
    ``only``, files whose path starts with none of these prefixes are left out, with ``without`` those whose path starts
    with one of these and what only they import: no result must be made anew since the writing of a manifest was mended.
    """
    closure = sorted({file for path in paths for file in import_closure(ROOT / path, ends=without)})
    content: dict[Path, str | None] = {file: counted_hash(file, paths) for file in closure}
    content |= {file: sha256_of(file) for module in closure for file in data_files(module)}
    lines = [
        f"{found}  {name}"
        for name, found in ((_relative_name(file), found) for file, found in content.items())
        if found is not None and (only is None or name.startswith(only)) and not name.startswith(without)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def program_hash(script: str, settings: Mapping[str, Any]) -> str:
    """Hash of all that a program runs with these settings; ``script`` is relative to the repository root."""
    optional = OPTIONAL_CODE.get(script, {})
    unused = [prefix for key, prefixes in optional.items() if not settings.get(key) for prefix in prefixes]
    return code_hash(script, without=(*PLUMBING, *unused))


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide results, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, Any]:
    """What the process runs on: system, processor, cores, accelerator (only if torch is loaded already)."""
    import sys

    info: dict[str, Any] = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        info["accelerator"] = torch.cuda.get_device_name(0)
        info["accelerators"] = torch.cuda.device_count()
    return info


def _with_copies(artifact: Path, beside: Iterable[Path]) -> list[Path]:
    """``beside`` with what is always written with a table (.parquet) or maps (.json) among it and the artifact."""
    beside = list(beside)
    copies = {".csv": ".parquet", ".npz": ".json"}
    made = [path.with_suffix(copies[path.suffix]) for path in (artifact, *beside) if path.suffix in copies]
    return beside + [path for path in made if path.is_file()]


def write_manifest(
    artifact: str | Path,
    *,
    inputs: list[Path],
    settings: dict[str, Any],
    started: float,
    seed: int | None = None,
    beside: Iterable[Path] = (),
    modules: Iterable[str] = (),
    extra: dict[str, Any] | None = None,
    script: str | None = None,
) -> Path:
    """Write ``<artifact>.manifest.json`` beside an artifact that is complete; return its path.

    ``started`` is ``time.time()`` at the start of the work; ``beside`` are files and folders that were made with it and
    lie in its folder (the Parquet copy of a table and the description of maps need no mention); ``script`` the program
    under scripts/ that made it (its code hash is recorded), by default the running one; ``modules`` files that the
    program loads by name, which its own hash does not hold.
    """
    import sys

    artifact = Path(artifact)
    source = Path(script) if script else Path(sys.argv[0])
    source = source if source.is_absolute() else (ROOT / source if (ROOT / source).exists() else source.resolve())
    inside = source.suffix == ".py" and source.resolve().is_relative_to(ROOT)
    program = source.resolve().relative_to(ROOT).as_posix() if inside else source.name
    manifest = {
        "artifact": artifact.name,
        # What was moved to another artifact's place, manifest and all, is told by this.
        "path": str(artifact),
        "sha256": sha256_of(artifact),
        "beside": {
            path.relative_to(artifact.parent).as_posix(): sha256_of(path) for path in _with_copies(artifact, beside)
        },
        "inputs": {str(path): sha256_of(path) for path in inputs},
        "settings": settings,
        "script": program,
        "code_hash": program_hash(program, settings) if inside else None,
        "modules": {module: code_hash(module) for module in modules},
        "versions": package_versions(),
        "machine": machine(),
        "seed": seed,
        "wall_seconds": round(time.monotonic() + _EPOCH - started, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **(extra or {}),
    }
    path = artifact.parent / f"{artifact.name}.manifest.json"
    write_json(path, manifest)
    return path
