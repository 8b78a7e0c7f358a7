"""Documents on disk: one JSON object a line, ``{"id", "source", "title", "text"}``, compressed with Zstandard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from .errors import DataError

FIELDS = ("id", "source", "title", "text")
# Level 6 is close to the best ratio of the fast levels; one frame, so that equal documents give equal files.
LEVEL = 6


class DocumentWriter:
    """Writes documents to an open binary stream and counts them.

    The bytes depend on the documents alone: no thread count, time or file name enters the frame.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(
            stream, closefd=False
        )
        self.documents = 0
        self.text_bytes = 0

    def write(self, document: dict[str, Any]) -> None:
        """Append one document. Raises :class:`DataError` for text that is empty or cannot be encoded as UTF-8."""
        text_bytes = check_text(document["text"], f"document {document['id']!r} of source {document['source']!r}")
        line = json.dumps({field: document[field] for field in FIELDS}, ensure_ascii=False) + "\n"
        self._compressor.write(line.encode("utf-8"))
        self.documents += 1
        self.text_bytes += text_bytes

    def close(self) -> None:
        """Finish the Zstandard frame; a file without it is refused by the reader."""
        self._compressor.close()


def check_text(text: object, where: str) -> int:
    """Number of UTF-8 bytes of a document's text; ``where`` names it in the :class:`DataError` if it is unusable."""
    if not isinstance(text, str):
        raise DataError(f"{where}: its text is {type(text).__name__}, not a string; correct the text column")
    if not text.strip():
        raise DataError(f"{where} is empty; remove it or give it text")
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds a lone surrogate at character {error.start}, which UTF-8 cannot store; remove it"
        ) from None


def decode_text(data: bytes, where: str) -> str:
    """Text of a file: UTF-8 (a byte order mark is dropped), line ends as ``\\n``.

    Raises :class:`DataError` naming ``where`` and the offending byte when ``data`` is not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); "
            f"convert it, for example with iconv -t UTF-8, or leave it out of the source"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def load_documents(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a ``.jsonl.zst`` file that this project wrote.

    Raises :class:`DataError` when the file is missing, cut short, damaged, or a line is no document.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"document file {path} does not exist; the step before this one makes it")
    with open(path, "rb") as stream:
        for number, line in enumerate(zstandard_lines(stream, f"document file {path}"), start=1):
            yield _document(line, path, number)


def zstandard_lines(stream: BinaryIO, where: str) -> Iterator[bytes]:
    """Lines of a Zstandard stream of one or more frames.

    Raises :class:`DataError` naming ``where`` when the stream is damaged, or when it ends inside a frame: a copy that
    was cut short would otherwise look like a smaller complete one.
    """
    rest = b""
    frame = None
    while chunk := stream.read(1 << 16):
        while chunk:
            if frame is None or frame.eof:
                frame = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            try:
                rest += frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise DataError(f"{where} is damaged ({error}); replace it or build it anew") from None
            chunk = frame.unused_data if frame.eof else b""
        *lines, rest = rest.split(b"\n")
        yield from lines
    if frame is None or not frame.eof:
        raise DataError(f"{where} is cut short; replace it or build it anew")
    if rest:
        yield rest


def _document(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        raise DataError(f"document file {path} is damaged in line {number}; delete it and build it anew") from None
    if not isinstance(document, dict) or set(document) != set(FIELDS):
        raise DataError(f"document file {path}, line {number}: expected the keys {', '.join(FIELDS)}; build it anew")
    return document
