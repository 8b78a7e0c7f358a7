"""Files of questions in forms that their reader does not take: packed ones, and lines with Unicode line separators.

JSON allows U+2028, U+2029 and U+0085 inside strings, where ``str.splitlines`` ends a line. Such files, ``.gz`` ones and
``.jsonl.zst`` are written anew for the time of reading: unpacked, and with these characters as JSON escapes, which are
the same string.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.documents import zstandard_lines
from ..scripting import UserError
from .contexts import Example
from .errors import ProbeError
from .samples import Source, take_samples

ESCAPES = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\x85\u2028\u2029"}
OF_TEXT = ("text", "ruler")


def take_samples_of_files(
    source: Source, tokenizer: Any, length: int, count: int, seed: int
) -> tuple[list[Example], dict[str, Any]]:
    """As :func:`~hwh_core.probes.samples.take_samples`, from packed files of questions too, whose names errors hold."""
    # Text is read line by line and unpacked by its own reader.
    files = () if source.kind in OF_TEXT else source.files
    with readable_files(files) as read:
        if not read:
            return take_samples(source, tokenizer, length, count, seed)
        try:
            examples, about = take_samples(replace(source, files=read), tokenizer, length, count, seed)
        except UserError as error:
            message = str(error)
            for path, copy in zip(files, read, strict=True):
                message = message.replace(str(copy), str(path))
            raise ProbeError(message) from None
    return examples, about | {"files": [str(path) for path in files]}


@contextmanager
def readable_files(files: tuple[Path, ...]) -> Iterator[tuple[Path, ...]]:
    """The same files, or copies of some that can be read; they are gone after. Raises :class:`ProbeError`."""
    with tempfile.TemporaryDirectory(prefix="hwh-samples-") as folder:
        yield tuple(_readable(path, Path(folder, str(number))) for number, path in enumerate(files))


def _readable(path: Path, folder: Path) -> Path:
    if path.suffix not in (".gz", ".jsonl") and not path.name.endswith(".jsonl.zst"):
        return path
    copy = folder / path.name.removesuffix(".gz").removesuffix(".zst")
    lines_differ = copy.suffix == ".jsonl"
    if path.suffix == ".jsonl":
        with open(path, "rb") as stream:
            if not any(character in line for line in stream for character in ESCAPES):
                return path
    folder.mkdir()
    try:
        with open(copy, "wb") as target:
            if path.suffix == ".gz" and not lines_differ:
                with gzip.open(path) as packed:
                    shutil.copyfileobj(packed, target)
            for line in _lines(path) if lines_differ else ():
                for character, escape in ESCAPES.items():
                    line = line.replace(character, escape)
                target.write(line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ProbeError(f"{path} is damaged or cut short ({error}); replace it") from None
    return copy


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as stream:
        if path.suffix == ".zst":
            yield from (line + b"\n" for line in zstandard_lines(stream, str(path)))
        elif path.suffix == ".gz":
            with gzip.open(stream) as packed:
                yield from packed
        else:
            yield from stream
