"""Documents out of files: plain text, JSON lines (plain, gzip or Zstandard) and Parquet."""

from __future__ import annotations

import glob
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..files import sha256_of
from .documents import MAX_LINE_BYTES, check_line, check_text, decode_text, zstandard_lines
from .errors import DataError
from .manifests import read_manifest

TEXT_ENDINGS = (".txt", ".md")
ENDINGS = (".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def files_documents(source: Any, root: Path) -> Iterator[dict[str, str]]:
    """Documents of a ``files`` source; ids are ``<source>/<path>[#row]``, with paths relative to its ``folder``.

    ``folder``, and paths where it is not given, are taken from ``root``. With ``manifest`` only the files that it
    names are read, each compared with its sha256: so a copy of a repository gives the documents of a ``git`` source.
    Raises :class:`DataError` when a path fits no file, has an unknown ending, is not UTF-8 or holds an empty document,
    and when a file of the manifest is missing or another.
    """
    base = root / (source.folder or "")
    pins = None if source.manifest is None else read_manifest(root / source.manifest)
    seen = set()
    for entry, pattern in zip(source.paths, source.patterns(), strict=True):
        found = sorted(path for path in glob.glob(str(root / pattern), recursive=True) if Path(path).is_file())
        if not found:
            raise DataError(
                f"source {source.name!r}: no file fits {entry!r} (looked for {root / pattern}); correct paths"
            )
        for path in map(Path, found):
            shown = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()
            if pins is not None:
                if shown not in pins:
                    continue
                actual = sha256_of(path)
                if actual != pins[shown]:
                    raise DataError(
                        f"file {shown} of source {source.name!r}: sha256 is {actual}, but manifest {source.manifest} "
                        f"pins {pins[shown]}; correct it"
                    )
            seen.add(shown)
            yield from file_documents(path, shown, source.name, source.text_column)
    missing = sorted(set(pins or ()) - seen)
    if missing:
        raise DataError(
            f"source {source.name!r}: no path fits file {missing[0]!r} that manifest {source.manifest} names "
            f"({len(missing)} missing below {base}); correct folder, paths or manifest"
        )


def file_documents(path: Path, shown: str, source: str, text_column: str) -> Iterator[dict[str, str]]:
    """Documents of one file; ``shown`` is its name in ids and errors."""
    try:
        opened = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"file {shown} of source {source!r} cannot be read ({error.strerror}); mend that") from None
    with opened as stream:
        yield from stream_documents(stream, shown, source, text_column)


def stream_documents(stream: BinaryIO, shown: str, source: str, text_column: str) -> Iterator[dict[str, str]]:
    """Documents of an open file whose format is told by the ending of ``shown``."""
    where = f"file {shown} of source {source!r}"
    if shown.endswith(TEXT_ENDINGS):
        text = decode_text(stream.read(), where)
        check_text(text, where)
        yield {"id": f"{source}/{shown}", "source": source, "title": Path(shown).stem, "text": text}
        return
    for number, row in enumerate(_rows(stream, shown, where, text_column)):
        if text_column not in row:
            raise DataError(
                f"{where}, row {number}: no column {text_column!r} (it has {', '.join(map(str, row)) or 'none'}); "
                f"correct text_column"
            )
        text = row[text_column]
        check_text(text, f"{where}, row {number}")
        yield {
            "id": f"{source}/{shown}#{row.get('id', number)}",
            "source": source,
            "title": str(row.get("title", "")),
            "text": text,
        }


def _rows(stream: BinaryIO, shown: str, where: str, text_column: str) -> Iterator[dict[str, Any]]:
    if shown.endswith(".parquet"):
        yield from _parquet_rows(stream, where, text_column)
        return
    if shown.endswith(".jsonl"):
        lines = _lines(stream, where)
    elif shown.endswith(".jsonl.gz"):
        lines = _gzip_lines(stream, where)
    elif shown.endswith(".jsonl.zst"):
        lines = zstandard_lines(stream, where)
    else:
        raise DataError(f"{where}: unknown ending; expected one of {', '.join(sorted({*TEXT_ENDINGS, *ENDINGS}))}")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); convert it to UTF-8"
            ) from None
        except json.JSONDecodeError as error:
            raise DataError(f"{where}, line {number} is not JSON ({error.msg}); correct or remove it") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}, line {number}: expected a JSON object with the key {text_column!r}")
        yield row


def _lines(stream: BinaryIO, where: str) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield check_line(line, where)


def _gzip_lines(stream: BinaryIO, where: str) -> Iterator[bytes]:
    try:
        with gzip.open(stream, "rb") as opened:
            yield from _lines(opened, where)
    except (EOFError, OSError) as error:
        raise DataError(f"{where} is damaged or cut short ({error}); replace it") from None


def _parquet_rows(stream: BinaryIO, where: str, text_column: str) -> Iterator[dict[str, Any]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        # A stream without a file descriptor (archive members) is read as a whole.
        file = parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read()))
        names = file.schema_arrow.names
        if text_column not in names:
            raise DataError(f"{where}: no column {text_column!r} (it has {', '.join(names)}); correct text_column")
        columns = [name for name in (text_column, "id", "title") if name in names]
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise DataError(f"{where} is no complete Parquet file ({str(error).splitlines()[0]}); replace it") from None
