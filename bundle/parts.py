"""A stream of bytes as files of limited size, each with its sha256; standard library only."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import BundleError

MIB = 2**20


class PartWriter(io.RawIOBase):
    """Writes what it is given to ``<stem>.part000``, ``<stem>.part001``, ... of at most ``part_bytes`` bytes each.

    ``parts`` lists them after :meth:`close`: name, bytes, sha256.
    """

    def __init__(self, folder: Path, stem: str, part_bytes: int) -> None:
        super().__init__()
        if part_bytes < 1:
            raise BundleError(f"part size {part_bytes}: expected at least one byte")
        self.folder, self.stem, self.part_bytes = folder, stem, part_bytes
        self.parts: list[dict[str, Any]] = []
        self._stream: io.BufferedWriter | None = None
        self._written = 0
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        """True: this is a stream to write to."""
        return True

    def _finish(self) -> None:
        if self._stream is not None:
            self._stream.close()
            name = Path(self._stream.name).name
            self.parts.append({"name": name, "bytes": self._written, "sha256": self._hash.hexdigest()})
            self._stream = None

    def write(self, data: Any) -> int:
        """Write all of ``data``; returns its number of bytes."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            if self._stream is None or self._written == self.part_bytes:
                self._finish()
                path = self.folder / f"{self.stem}.part{len(self.parts):03d}"
                self._stream = path.open("wb")
                self._written, self._hash = 0, hashlib.sha256()
            piece = view[done : done + self.part_bytes - self._written]
            self._stream.write(piece)
            self._hash.update(piece)
            self._written += len(piece)
            done += len(piece)
        return done

    def close(self) -> None:
        """End the last part."""
        self._finish()
        super().close()


class PartReader(io.RawIOBase):
    """Reads files one after the other as one stream."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._waiting = list(paths)
        self._stream: io.BufferedReader | None = None

    def readable(self) -> bool:
        """True: this is a stream to read from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the current part reaches; 0 after the last part."""
        while True:
            if self._stream is None:
                if not self._waiting:
                    return 0
                self._stream = self._waiting.pop(0).open("rb")
            count = self._stream.readinto(buffer)
            if count:
                return count
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Close the part that is open."""
        if self._stream is not None:
            self._stream.close()
        super().close()


def check_parts(folder: Path, parts: Sequence[dict[str, Any]]) -> list[Path]:
    """Paths of the parts in ``folder``, after size and sha256 of each were compared with ``parts``.

    Raises :class:`BundleError` that lists every part that is missing or damaged.
    """
    wrong, paths = [], []
    for part in parts:
        path = folder / part["name"]
        if path.name != part["name"]:
            raise BundleError(
                f"part name {part['name']!r} is no plain file name; take the list of parts as it was packed"
            )
        paths.append(path)
        if not path.is_file():
            wrong.append(f"{path.name} is missing")
        elif path.stat().st_size != part["bytes"]:
            wrong.append(f"{path.name} has {path.stat().st_size} bytes, expected {part['bytes']}")
        else:
            with open(path, "rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
            if actual != part["sha256"]:
                wrong.append(f"{path.name} is damaged (sha256 {actual[:12]}..., expected {part['sha256'][:12]}...)")
    if wrong:
        raise BundleError(f"{folder}: {'; '.join(wrong)}; copy these files again")
    return paths
