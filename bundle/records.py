"""Snakemake's records of finished files, so that they count as finished in another folder; standard library only.

Snakemake keeps one JSON file for each output below ``.snakemake/metadata``, named by the output's path in base64. Among
the parameters in it are absolute paths of programs. Moved as they are, they would differ from those of the new folder,
and everything would run again.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable
from pathlib import Path

RECORDS = ".snakemake/metadata"
UNFINISHED = ".snakemake/incomplete"


def output_of(record: Path, folder: Path) -> str | None:
    """Path of the output that ``record`` (a file below ``folder``) describes; None if its name is no such path."""
    text = "".join(part.removeprefix("@") for part in record.relative_to(folder).parts)
    try:
        return base64.urlsafe_b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def records_of(root: Path, wanted: Callable[[str], bool], kinds: tuple[str, ...] = (RECORDS, UNFINISHED)) -> list[str]:
    """Relative paths of the records below ``root`` whose output ``wanted`` accepts, sorted."""
    found = []
    for kind in kinds:
        for path in (root / kind).rglob("*"):
            output = output_of(path, root / kind) if path.is_file() else None
            if output is not None and wanted(output):
                found.append(path.relative_to(root).as_posix())
    return sorted(found)


def _inside_json(path: str) -> str:
    return json.dumps(path)[1:-1]


def move_records(root: Path, names: list[str], old_root: str) -> int:
    """Write ``root`` in place of ``old_root`` in the records ``names`` (relative to ``root``); returns how many change.

    Times of modification stay.
    """
    before, after = f"{_inside_json(old_root.rstrip('/'))}/", f"{_inside_json(os.path.realpath(root))}/"
    changed = 0
    for name in names:
        path = root / name
        text = path.read_text(encoding="utf-8")
        if before == after or before not in text:
            continue
        status = path.stat()
        path.write_text(text.replace(before, after), encoding="utf-8")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        changed += 1
    return changed
