"""Results of a run as an archive, and back into a folder; standard library only."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import records
from .archive import Entry, read_manifest, unpack_archive, write_archive
from .errors import BundleError

STEM = "results"
# Quick rather than small: a machine that is paid by the minute packs them.
LEVEL = 1
# Compiled kernels: a run that goes on starts in seconds with them, in minutes without.
KERNEL_CACHE = ".cache/triton"
WEIGHTS = frozenset((".safetensors", ".pt", ".bin"))


def _is_weights(name: str) -> bool:
    return "checkpoints" in Path(name).parts or (Path(name).suffix in WEIGHTS and Path(name).name != "tokens.bin")


def _unchanged(path: Path, record: Mapping[str, Any] | None) -> bool:
    if record is None:
        return False
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) != (record["bytes"], record["mtime_ns"]):
        return False
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == record["sha256"]


def result_files(root: Path, preset: str, bundled: Mapping[str, Any], *, weights: bool) -> list[str]:
    """Relative paths of what a run made below ``results/<preset>``, sorted.

    What came with the bundle (``bundled``: its files) and has not changed is left out, and so are temporary names and,
    without ``weights``, weights and checkpoints. With ``weights`` compiled kernels come along, for they serve a run
    that goes on just as checkpoints do.
    """
    found = []
    for path in sorted((root / "results" / preset).rglob("*")):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or path.is_symlink() or any(part.startswith(".") for part in Path(name).parts):
            continue
        if (weights or not _is_weights(name)) and not _unchanged(path, bundled.get(name)):
            found.append(name)
    if weights:
        cached = (root / KERNEL_CACHE).rglob("*")
        found += sorted(path.relative_to(root).as_posix() for path in cached if path.is_file())
    return found


def pack_results(
    root: Path, output: Path, bundle: Mapping[str, Any], *, weights: bool, part_bytes: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Pack what a run made below ``root`` into ``output`` as ``results.part000`` ... and ``results.json``.

    ``bundle`` is the manifest of the bundle, ``facts`` (state, exit code, targets) goes into the manifest of the
    results, which is returned. Snakemake's records of this preset go along: by them the next run knows what is done.
    """
    preset = bundle["preset"]
    names = result_files(root, preset, bundle["files"], weights=weights)
    # Records of outputs outside results/<preset> are those of the bundle, which every run unpacks.
    names += records.records_of(root, lambda output: output.startswith(f"results/{preset}/"))
    everything = {
        "kind": "results",
        "preset": preset,
        "commit": bundle["commit"],
        "root": os.path.realpath(root),
        "weights": weights,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **facts,
    }
    entries = {name: Entry(root / name) for name in names}
    return write_archive(entries, output, STEM, part_bytes, level=LEVEL, facts=everything)


def restore_results(folder: Path, root: Path, preset: str) -> dict[str, Any]:
    """Unpack the results in ``folder`` (or beside the file that is named) over ``root``; returns their manifest.

    Raises :class:`BundleError` when they are of another preset, or cannot be read.
    """
    folder = folder if folder.is_dir() else folder.parent
    found = read_manifest(folder, STEM)
    if found.get("kind") != "results" or found.get("preset") != preset:
        raise BundleError(
            f"--results {folder}: these are {found.get('kind')} of preset {found.get('preset')!r}, but this bundle "
            f"runs {preset!r}; name the folder of results of the same preset"
        )
    manifest = unpack_archive(folder, STEM, root)
    moved = [name for name in manifest["files"] if name.startswith((f"{records.RECORDS}/", f"{records.UNFINISHED}/"))]
    records.move_records(root, moved, manifest["root"])
    return manifest
