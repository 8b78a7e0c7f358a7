"""Merging sources into training and held-out documents."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..files import atomic_write, sha256_of, write_json
from .documents import DocumentWriter, load_documents
from .errors import DataError

SPLITS = ("train", "held_out")


def digest(*parts: str) -> bytes:
    """16 bytes that stand for a text: equal for equal texts on every machine and Python."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8")
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    return state.digest()


class _Scan:
    """What the first pass keeps of every document: 48 bytes, so that 10^8 documents fit into memory."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._texts = bytearray()
        self._ranks = bytearray()
        self.sources: list[int] = []

    def add(self, document: dict[str, Any], source: int, seed: int) -> None:
        self._ids += digest(document["id"])
        self._texts += digest(document["text"])
        self._ranks += digest(str(seed), document["id"])
        self.sources.append(source)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids, texts and ranks as uint64 [documents, 2]."""
        return tuple(  # type: ignore[return-value]
            np.frombuffer(bytes(data), dtype=">u8").astype(np.uint64).reshape(-1, 2)
            for data in (self._ids, self._texts, self._ranks)
        )


def first_occurrences(keys: np.ndarray) -> np.ndarray:
    """bool [n]: whether row i of ``keys`` [n, 2] is the first of its value."""
    order = np.lexsort((np.arange(len(keys)), keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.zeros(len(keys), dtype=bool)
    first[order] = new
    return first


def choose_held_out(ranks: np.ndarray, fraction: float) -> np.ndarray:
    """bool [n]: the ``ceil(fraction n)`` documents of smallest rank [n, 2], but never all and, of two or more, one.

    The rank is a hash of seed and id, so the choice depends neither on the order of documents nor on their text.
    """
    number = min(math.ceil(fraction * len(ranks)), len(ranks) - 1)
    chosen = np.zeros(len(ranks), dtype=bool)
    chosen[np.lexsort((ranks[:, 1], ranks[:, 0]))[:number]] = True
    return chosen


def build_documents(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    held_out_fraction: float,
    minimum_bytes: int,
    seed: int,
    progress: Callable[[Iterable[dict[str, Any]], str], Iterable[dict[str, Any]]] = lambda documents, _: documents,
) -> dict[str, Any]:
    """Merge document files, drop repeated texts, split by document; returns what ``documents.json`` holds.

    Writes ``train.jsonl.zst``, ``held_out.jsonl.zst`` and, last, ``documents.json`` into ``output``. Every source is
    split on its own, so each is held out in proportion. Two passes, so memory does not grow with the text. Raises
    :class:`DataError` when ids repeat, when fewer than ``minimum_bytes`` of text remain or nothing can be held out.
    """
    output = Path(output)
    names, held_out, kept, repeated = _plan(sources, held_out_fraction, seed, progress)
    record: dict[str, Any] = {"seed": seed, "held_out_fraction": held_out_fraction, "minimum_bytes": minimum_bytes}
    counts = {split: {name: {"documents": 0, "text_bytes": 0} for name in names} for split in SPLITS}
    # An old summary must not stand beside new documents if this run is interrupted between two files.
    (output / "documents.json").unlink(missing_ok=True)
    with ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            temporary = stack.enter_context(atomic_write(output / f"{split}.jsonl.zst"))
            writers[split] = DocumentWriter(stack.enter_context(open(temporary, "wb")))
        for index, document in enumerate(progress(_all(sources), "writing")):
            if kept[index]:
                split = "held_out" if held_out[index] else "train"
                before = writers[split].text_bytes
                writers[split].write(document)
                entry = counts[split][document["source"]]
                entry["documents"] += 1
                entry["text_bytes"] += writers[split].text_bytes - before
        total = sum(writer.text_bytes for writer in writers.values())
        if total < minimum_bytes:
            raise DataError(
                f"data.minimum_bytes: the sources hold {total} bytes of text without repetitions, but {minimum_bytes} "
                f"are asked for; add a source or lower minimum_bytes"
            )
        for writer in writers.values():
            writer.close()
    record["text_bytes"] = total
    record["documents"] = sum(writer.documents for writer in writers.values())
    record["repeated_documents"] = repeated
    record["splits"] = {
        split: {
            "file": f"{split}.jsonl.zst",
            "sha256": sha256_of(output / f"{split}.jsonl.zst"),
            "documents": writers[split].documents,
            "text_bytes": writers[split].text_bytes,
            "sources": counts[split],
        }
        for split in SPLITS
    }
    write_json(output / "documents.json", record)
    return record


def _all(sources: Sequence[str | Path]) -> Iterator[dict[str, Any]]:
    for path in sources:
        yield from load_documents(path)


def _plan(
    sources: Sequence[str | Path], fraction: float, seed: int, progress: Callable[..., Iterable[dict[str, Any]]]
) -> tuple[list[str], np.ndarray, np.ndarray, int]:
    """First pass: names of sources, and for every document whether it is held out and whether it is kept."""
    scan = _Scan()
    names: dict[str, int] = {}
    for document in progress(_all(sources), "reading"):
        scan.add(document, names.setdefault(document["source"], len(names)), seed)
    if not scan.sources:
        raise DataError("data.sources: no document at all; add a source")
    ids, texts, ranks = scan.arrays()
    unique = first_occurrences(ids)
    if not unique.all():
        position = int(np.flatnonzero(~unique)[0])
        repeated_id = next(document["id"] for i, document in enumerate(_all(sources)) if i == position)
        raise DataError(f"data.sources: two documents have the id {repeated_id!r}; give sources distinct names")
    kept = first_occurrences(texts)
    held_out = np.zeros(len(kept), dtype=bool)
    source_of = np.asarray(scan.sources)
    for number in names.values():
        members = np.flatnonzero(kept & (source_of == number))
        if len(members):
            held_out[members] = choose_held_out(ranks[members], fraction)
    if not held_out.any():
        raise DataError("data.sources: every source holds a single document, so none can be held out; add documents")
    return list(names), held_out, kept, int((~kept).sum())
