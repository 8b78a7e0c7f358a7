"""Writing files so that nothing half-written is ever left looking complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


class OutputError(OSError):
    """An output could not be written (full disk, read-only folder); the message names the file."""


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it is fsync'd and renamed to ``path``.

    The temporary name keeps the suffix of ``path`` (numpy and matplotlib choose formats by it). On any exception the
    temporary file is removed and an older ``path`` is left as it was. Raises :class:`OutputError` for operating-system
    errors such as a full disk.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=f".tmp{path.suffix}", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        os.chmod(temporary, 0o666 & ~_umask())
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
        temporary = None
    except Exception as error:
        refused = _refused(path, error)
        if refused is None:
            raise
        raise refused from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success its files are fsync'd and it replaces ``path``."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        os.chmod(temporary, 0o777 & ~_umask())
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
        _sync(path.parent)
        temporary = None
    except Exception as error:
        refused = _refused(path, error)
        if refused is None:
            raise
        raise refused from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


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
        return hashlib.file_digest(stream, "sha256").hexdigest()
