"""Writing files so that nothing half-written is ever left looking complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .locks import only_writer
from .progress import progress

if TYPE_CHECKING:
    import pandas


class OutputError(OSError):
    """An output could not be written (full disk, read-only folder); the message names the file."""


# Bytes whose hash is one step of a progress bar, how many steps need none (some 20 seconds), bytes read at a time.
HASHED_AT_ONCE, HASHED_SILENTLY, HASHED_BLOCK = 2**30, 16, 2**20
# Less free space than this after a failed write means that the disk was full: libraries report that in many ways.
_FULL_BYTES = 2**20


def _refused(path: Path, error: Exception) -> OutputError | None:
    """What to raise when writing ``path`` failed with ``error``: None where the operating system had no part in it."""
    if isinstance(error, OSError):
        return OutputError(error.errno, f"cannot write {path}: {error.strerror or error}; nothing was kept")
    # torch and safetensors tell of a full disk in errors of their own.
    if shutil.disk_usage(path.parent).free < _FULL_BYTES:
        return OutputError(errno.ENOSPC, f"cannot write {path}: {os.strerror(errno.ENOSPC)}; nothing was kept")
    return None


def sync(path: Path) -> None:
    """Have the file or the entries of the folder ``path`` on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file or a folder with all in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_at_once(path: Path) -> None:
    """Delete a file or folder so that a kill on the way leaves nothing, and never a part, under its name."""
    gone = path.with_name(f".{path.name.lstrip('.')}.gone")
    remove(gone)
    if path.exists():
        os.replace(path, gone)
        remove(gone)


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into an :class:`OutputError` that names ``path``."""
    try:
        yield
    except Exception as error:
        refused = _refused(path, error)
        if refused is None:
            raise
        raise refused from error


@contextmanager
def _temporary_name(path: Path) -> Iterator[Path]:
    """A free name beside ``path`` that no other process uses; what stands there at the end is removed.

    It is the same every time, so a killed process leaves one file or folder at most, until the next one comes.
    """
    stem = f".{path.name}"
    with only_writer(path.with_name(f"{stem}.lock"), path) as alone:
        # Without locks two processes may write at once: each under its own name, or one would finish the other's half.
        name = f"{stem}.tmp{path.suffix}" if alone else f"{stem}.{os.getpid()}.tmp{path.suffix}"
        temporary = path.with_name(name)
        remove(temporary)
        try:
            yield temporary
        finally:
            with suppress(OSError):
                remove(temporary)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it is fsync'd and renamed to ``path``.

    The temporary name keeps the suffix of ``path`` (numpy and matplotlib choose formats by it). On any exception the
    temporary file is removed and an older ``path`` is left as it was. A second process that writes ``path`` waits.
    Raises :class:`OutputError` for operating-system errors such as a full disk.
    """
    path = Path(path)
    with errors_name(path), _temporary_name(path) as temporary:
        temporary.touch()
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success all in it is fsync'd and it replaces ``path``.

    As with :func:`atomic_write`, a failure leaves an older ``path`` as it was, and a second process waits. A kill just
    between the two renames leaves no ``path``, never a part of one.
    """
    path = Path(path)
    old = path.with_name(f".{path.name}.old")
    with errors_name(path), _temporary_name(path) as temporary:
        if old.exists() and not path.exists():
            os.replace(old, path)
        remove(old)
        temporary.mkdir()
        yield temporary
        for entry in temporary.rglob("*"):
            if not entry.is_symlink():
                sync(entry)
        sync(temporary)
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(temporary, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        sync(path.parent)
        # Deleted under another name: killed on the way it must not leave half a folder under the final one.
        remove(old)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON (UTF-8, two spaces, keys in the given order) through :func:`atomic_write`.

    NaN and infinities are refused, since other readers of JSON do not know them: use None.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_table(table: pandas.DataFrame, path: str | Path) -> None:
    """Write a tidy table as ``path`` (must end in .csv) and, beside it, as .parquet."""
    path = Path(path)
    if path.suffix != ".csv":
        raise ValueError(f"write_table: {path} must end in .csv")
    with atomic_write(path.with_suffix(".parquet")) as temporary:
        table.to_parquet(temporary, index=False)
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False)


def sha256_of(path: str | Path) -> str:
    """sha256 of a file, or of a folder: of the sorted lines '<sha256>  <relative path>' of its files."""
    path = Path(path)
    if path.is_dir():
        lines = [
            f"{sha256_of(file)}  {file.relative_to(path).as_posix()}"
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    with open(path, "rb") as stream:
        blocks = -(-path.stat().st_size // HASHED_AT_ONCE)
        if blocks < HASHED_SILENTLY:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        for _ in progress(range(blocks), f"sha256 of {path.name}", unit="GiB"):
            left = HASHED_AT_ONCE
            while left and (data := stream.read(min(left, HASHED_BLOCK))):
                digest.update(data)
                left -= len(data)
        # What was written to it meanwhile, as above.
        while data := stream.read(HASHED_BLOCK):
            digest.update(data)
        return digest.hexdigest()
