"""Lists of files with their sha256, by which a source of text is pinned."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import DataError


def read_manifest(path: Path) -> dict[str, str]:
    """``{path: sha256}`` of a manifest of ``<sha256>  <path>`` lines (the output of sha256sum); ``#`` starts a comment.

    Raises :class:`DataError` when the file is missing or a line has another form.
    """
    if not path.is_file():
        raise DataError(f"manifest {path} does not exist; it lists '<sha256>  <path>' of each document")
    entries: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)
        if match is None:
            raise DataError(f"manifest {path}, line {number}: expected '<sha256>  <path>', found {line[:60]!r}")
        entries[match[2]] = match[1]
    if not entries:
        raise DataError(f"manifest {path} names no document")
    return entries
