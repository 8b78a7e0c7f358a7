"""Fetching one source of text, of whatever kind, into one file of documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..config import Source
from ..files import atomic_write
from .documents import DocumentWriter
from .errors import DataError
from .settings import parse_entry


def parse_source(settings: dict[str, Any]) -> Any:
    """One entry of ``data.sources`` as a checked object. Raises :class:`DataError` naming the key."""
    return parse_entry(Source, settings, "source settings")


def source_documents(source: Any, *, root: Path, downloads: Path) -> Iterator[dict[str, str]]:
    """Documents ``{"id", "source", "title", "text"}`` of a source, in an order that is the same every time.

    ``root`` is where relative paths start, ``downloads`` where fetched archives and repositories are kept.
    """
    if source.kind == "pypi":
        from .source_pypi import pypi_documents

        return pypi_documents(source, downloads)
    if source.kind == "hub":
        from .source_hub import hub_documents

        return hub_documents(source)
    if source.kind == "git":
        from .source_git import git_documents

        return git_documents(source, root, downloads)
    from .source_files import files_documents

    return files_documents(source, root)


def write_source(documents: Iterable[dict[str, str]], name: str, output: str | Path) -> dict[str, int]:
    """Write the documents of a source to ``output`` (``.jsonl.zst``); returns counts of documents and text bytes.

    Raises :class:`DataError` when there is none; ``output`` is then left as it was.
    """
    with atomic_write(output) as temporary, open(temporary, "wb") as stream:
        writer = DocumentWriter(stream)
        for document in documents:
            writer.write(document)
        if not writer.documents:
            raise DataError(f"source {name!r} holds no document; correct its members, paths or pattern")
        writer.close()
    return {"documents": writer.documents, "text_bytes": writer.text_bytes}
