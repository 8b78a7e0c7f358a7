"""Files as an archive of parts with a manifest, and back; standard library only.

The parts, joined, are a tar file. What is compressed already lies in it as it is; the rest is one member,
``packed.tar.xz``. Token stores of 16-bit integers become about half as large. The manifest ``<stem>.json`` lists parts
and files with their sha256, and of files the time of modification in nanoseconds, by which Snakemake decides.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from .errors import BundleError
from .parts import PartReader, PartWriter, check_parts

FORMAT = 1
PACKED = "packed.tar.xz"
# Compressed already, or random bits such as weights: xz would take minutes and save nothing.
STORED_SUFFIXES = frozenset(
    (".whl", ".zst", ".gz", ".xz", ".zip", ".npz", ".png", ".parquet", ".safetensors", ".gguf", ".pt")
)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One file of an archive: where it lies now, and the time of modification to record (default: its own)."""

    source: Path
    mtime_ns: int | None = None


def check_name(name: str) -> str:
    """``name`` itself; raises :class:`BundleError` unless it is a relative path that stays below its folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.as_posix() != name:
        raise BundleError(f"the archive holds the unsafe file name {name!r}; it is not unpacked, take another copy")
    return name


class _HashingReader:
    """What tarfile reads of a file, hashed on the way, so that the sha256 is that of the bytes packed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.hash = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.hash.update(data)
        return data


def _add(archive: tarfile.TarFile, name: str, entry: Entry) -> dict[str, Any]:
    with open(entry.source, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{entry.source} is no regular file; only regular files are packed")
        info = tarfile.TarInfo(name)
        info.size = status.st_size
        info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        mtime_ns = status.st_mtime_ns if entry.mtime_ns is None else entry.mtime_ns
        info.mtime = mtime_ns // 10**9
        reader = _HashingReader(stream)
        archive.addfile(info, reader)
    return {"sha256": reader.hash.hexdigest(), "bytes": info.size, "mtime_ns": mtime_ns}


def write_archive(
    entries: Mapping[str, Entry], folder: Path, stem: str, part_bytes: int, *, level: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write ``entries`` (relative POSIX path -> file) to ``folder`` as ``<stem>.part000`` ... and ``<stem>.json``.

    ``part_bytes`` is the greatest size of a part in bytes, ``level`` that of xz (0 to 9), ``facts`` goes into the
    manifest, which is returned. The manifest is put in place last: parts without one are no archive. An earlier
    archive of that name is replaced. Raises :class:`BundleError` for a part size below one byte.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{stem}-*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{stem}-", dir=folder) as temporary:
        manifest = _write_parts(entries, Path(temporary), stem, part_bytes, level)
        manifest = {"format": FORMAT, **facts, **manifest}
        (Path(temporary) / f"{stem}.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        # An earlier archive is given up only now that this one is whole.
        (folder / f"{stem}.json").unlink(missing_ok=True)
        for old in folder.glob(f"{stem}.part[0-9][0-9][0-9]*"):
            old.unlink()
        for name in [*(part["name"] for part in manifest["parts"]), f"{stem}.json"]:
            os.replace(Path(temporary) / name, folder / name)
    return manifest


def _write_parts(entries: Mapping[str, Entry], folder: Path, stem: str, part_bytes: int, level: int) -> dict[str, Any]:
    files: dict[str, Any] = {}
    order = sorted(check_name(name) for name in entries)
    stored = [name for name in order if PurePosixPath(name).suffix in STORED_SUFFIXES]
    with PartWriter(folder, stem, part_bytes) as writer:
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as outer:
            with tempfile.TemporaryFile(dir=folder) as packed:
                with (
                    lzma.open(packed, "wb", preset=level) as compressed,
                    tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as inner,
                ):
                    for name in order:
                        if name not in stored:
                            files[name] = _add(inner, name, entries[name])
                info = tarfile.TarInfo(PACKED)
                info.size = packed.tell()
                packed.seek(0)
                outer.addfile(info, packed)
            for name in stored:
                files[name] = _add(outer, name, entries[name])
        writer.close()
        parts = writer.parts
    return {"parts": parts, "files": dict(sorted(files.items()))}


def read_manifest(folder: Path, stem: str) -> dict[str, Any]:
    """The manifest ``<stem>.json`` of ``folder``. Raises :class:`BundleError` when it is absent or no manifest."""
    path = folder / f"{stem}.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path} is missing; copy all files of the archive, {stem}.json included") from None
    except ValueError as error:
        raise BundleError(f"{path} is damaged ({error}); copy it again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise BundleError(
            f"{path}: format is {found!r}, expected {FORMAT}; pack again with the same version of the code"
        )
    return manifest


def _write(stream: IO[bytes], name: str, record: Mapping[str, Any], goal: Path, mode: int) -> None:
    path = goal / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(goal.resolve()):
        raise BundleError(f"{path.parent} is a link that leaves {goal}; unpack into another folder")
    temporary = path.with_name(f".{path.name}.unpacking")
    digest = hashlib.sha256()
    with open(temporary, "wb") as target:
        while block := stream.read(_BLOCK):
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != record["sha256"]:
        temporary.unlink()
        raise BundleError(f"{name}: its sha256 is not that of the manifest; copy the archive again")
    os.chmod(temporary, 0o755 if mode & 0o100 else 0o644)
    os.utime(temporary, ns=(record["mtime_ns"], record["mtime_ns"]))
    os.replace(temporary, path)


def _unpack(archive: tarfile.TarFile, waiting: dict[str, Any], goal: Path, *, inside: bool) -> None:
    for info in archive:
        if not info.isreg():
            raise BundleError(f"the archive holds {info.name!r}, which is no regular file; take another copy")
        stream = archive.extractfile(info)
        assert stream is not None
        if info.name == PACKED and not inside:
            with (
                lzma.open(stream, "rb") as compressed,
                tarfile.open(fileobj=compressed, mode="r|") as inner,
            ):
                _unpack(inner, waiting, goal, inside=True)
            continue
        record = waiting.pop(check_name(info.name), None)
        if record is None:
            raise BundleError(f"the archive holds {info.name!r}, which its manifest does not list; take another copy")
        if info.size != record["bytes"]:
            raise BundleError(f"{info.name}: {info.size} bytes, its manifest says {record['bytes']}; take another copy")
        _write(stream, info.name, record, goal, info.mode)


def unpack_archive(folder: Path, stem: str, goal: Path) -> dict[str, Any]:
    """Check all parts of the archive ``stem`` in ``folder``, unpack them below ``goal``, return the manifest.

    Files that are there already are replaced, one by one and whole. Raises :class:`BundleError` for a missing or
    damaged part, a path that would leave ``goal``, a link, or a file that differs from the manifest.
    """
    manifest = read_manifest(folder, stem)
    paths = check_parts(folder, manifest["parts"])
    goal.mkdir(parents=True, exist_ok=True)
    waiting = dict(manifest["files"])
    try:
        with PartReader(paths) as reader, tarfile.open(fileobj=reader, mode="r|") as outer:
            _unpack(outer, waiting, goal, inside=False)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise BundleError(f"{folder / stem}.part*: not readable as an archive ({error}); copy it again") from None
    if waiting:
        raise BundleError(f"{folder / stem}.part*: {sorted(waiting)[0]} and {len(waiting) - 1} more files are absent")
    return manifest
