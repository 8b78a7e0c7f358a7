"""Folders of finished parts that hold none yet: what a refusal or a kill before the first part leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .resume import SETTINGS, remove


def remove_if_nothing_is_finished(folder: Path) -> None:
    """Remove a folder of finished parts that holds settings, and hidden files of a killed process, only."""
    if folder.is_dir() and all(path.name == SETTINGS or path.name.startswith(".") for path in folder.iterdir()):
        remove(folder)


@contextmanager
def kept_if_begun(folder: Path) -> Iterator[None]:
    """However the work inside ends, a ``folder`` of finished parts that holds none is removed, before it and after.

    So is the folder around it, if it was not there and holds nothing else.
    """
    was_there = folder.parent.exists()
    remove_if_nothing_is_finished(folder)
    try:
        yield
    finally:
        remove_if_nothing_is_finished(folder)
        if not was_there:
            with suppress(OSError):  # holds something, or was never made
                folder.parent.rmdir()
