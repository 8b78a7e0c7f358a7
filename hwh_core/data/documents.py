"""Documents on disk: one JSON object a line, ``{"id", "source", "title", "text"}``, compressed with Zstandard.

A file is a row of frames that each hold whole lines, so that several processes can read one file.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import zstandard

from .errors import DataError

FIELDS = ("id", "source", "title", "text")
# Level 6 is close to the best ratio of the fast levels. Frames end after this much text: equal documents, equal files.
LEVEL, FRAME_BYTES = 6, 64 << 20
# Of a frame's header, at most (RFC 8878, section 3.1.1.1).
_HEADER_BYTES = 18
# No document is larger; a line without end, which some kilobytes can unpack to, would fill the memory.
MAX_LINE_BYTES = 1 << 28
# Small, since each of these bytes can unpack to 32 KiB at once.
_CHUNK_BYTES = 1 << 14


class Frame(NamedTuple):
    """One frame of a document file: where it starts and its compressed size, in bytes."""

    offset: int
    size: int


class DocumentWriter:
    """Writes documents to an open binary stream and counts them.

    The bytes depend on the documents alone: no thread count, time or file name enters the frame.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frame: zstandard.ZstdCompressionWriter | None = self._new_frame()
        self._frame_bytes = 0
        self.documents = 0
        self.text_bytes = 0

    def _new_frame(self) -> zstandard.ZstdCompressionWriter:
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        return compressor.stream_writer(self._stream, closefd=False)

    def write(self, document: dict[str, Any]) -> None:
        """Append one document. Raises :class:`DataError` for text that is empty or cannot be encoded as UTF-8."""
        text_bytes = check_text(document["text"], f"document {document['id']!r} of source {document['source']!r}")
        line = json.dumps({field: document[field] for field in FIELDS}, ensure_ascii=False) + "\n"
        if self._frame is None:
            self._frame, self._frame_bytes = self._new_frame(), 0
        self._frame.write(line.encode("utf-8"))
        self.documents += 1
        self.text_bytes += text_bytes
        self._frame_bytes += text_bytes
        if self._frame_bytes >= FRAME_BYTES:
            self.close()

    def close(self) -> None:
        """Finish the Zstandard frame; a file without its end is refused by the reader."""
        if self._frame is not None:
            self._frame.close()
            self._frame = None


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


def check_line(line: bytes, where: str) -> bytes:
    """``line`` itself; raises :class:`DataError` naming ``where`` if it is too long to be a document."""
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"{where}: a line is longer than {MAX_LINE_BYTES} bytes, as no document is; replace the file")
    return line


def load_documents(path: str | Path, frame: Frame | None = None) -> Iterator[dict[str, Any]]:
    """Yield the documents of a ``.jsonl.zst`` file that this project wrote, or of one of its :func:`frames`.

    Raises :class:`DataError` when the file is missing, cut short, damaged, or a line is no document.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"document file {path} does not exist; the step before this one makes it")
    with open(path, "rb") as file:
        stream: BinaryIO = file
        where = f"document file {path}"
        if frame is not None:
            file.seek(frame.offset)
            stream = io.BytesIO(file.read(frame.size))
            where += f", frame at byte {frame.offset}"
        for number, line in enumerate(zstandard_lines(stream, where), start=1):
            yield _document(line, where, number)


def frames(path: str | Path) -> list[Frame]:
    """The frames of a document file in order, found by their block headers, without decompressing (RFC 8878).

    Raises :class:`DataError` when the file is missing, damaged or cut short.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"document file {path} does not exist; the step before this one makes it")
    found = []
    with open(path, "rb", buffering=0) as stream:
        total = os.fstat(stream.fileno()).st_size
        offset = 0
        while offset < total:
            stream.seek(offset)
            try:
                head = stream.read(_HEADER_BYTES)
                end = offset + zstandard.frame_header_size(head)
                checksum = 4 * zstandard.get_frame_parameters(head).has_checksum
            except zstandard.ZstdError as error:
                raise DataError(f"document file {path} is damaged at byte {offset} ({error}); build it anew") from None
            last = False
            while not last:
                stream.seek(end)
                header = int.from_bytes(stream.read(3), "little")
                # The last three bits of a block's header: whether it is the frame's last, and its type; 1 is a byte
                # that is repeated.
                last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
                end += 3 + (1 if kind == 1 else size)
                if end > total:
                    raise DataError(f"document file {path} is cut short; replace it or build it anew")
            end += checksum
            found.append(Frame(offset, end - offset))
            offset = end
    if not found or found[-1].offset + found[-1].size > total:
        raise DataError(f"document file {path} is cut short; replace it or build it anew")
    return found


def zstandard_lines(stream: BinaryIO, where: str) -> Iterator[bytes]:
    """Lines of a Zstandard stream of one or more frames.

    Raises :class:`DataError` naming ``where`` when the stream is damaged, when a line is over :data:`MAX_LINE_BYTES`,
    or when it ends inside a frame: a copy that was cut short would otherwise look like a smaller complete one.
    """
    rest = b""
    frame = None
    while chunk := stream.read(_CHUNK_BYTES):
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
        check_line(rest, where)
    if frame is None or not frame.eof:
        raise DataError(f"{where} is cut short; replace it or build it anew")
    if rest:
        yield rest


def _document(line: bytes, where: str, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        raise DataError(f"{where} is damaged in line {number}; delete it and build it anew") from None
    if not isinstance(document, dict) or set(document) != set(FIELDS):
        raise DataError(f"{where}, line {number}: expected the keys {', '.join(FIELDS)}; build it anew")
    return document
