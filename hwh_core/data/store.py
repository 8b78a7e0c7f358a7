"""The token store: all tokens of a split in one memory-mapped file, with an index that says what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import atomic_directory, write_json
from .errors import DataError

if TYPE_CHECKING:
    import tokenizers

FORMAT = "hwh-token-store"
VERSION = 1
DOCUMENT = np.dtype([("offset", "<u8"), ("source", "<u2")])
_BATCH_BYTES = 4 << 20


class TokenStore:
    """Read access to a token store; the tokens stay on disk.

    Attributes: ``tokens`` (memory map, uint16 or uint32, [tokens]); ``document_offsets`` ([documents + 1], document i
    is ``tokens[offsets[i]:offsets[i + 1]]`` and ends in the end-of-text token); ``sources`` (names);
    ``document_sources`` ([documents], positions in ``sources``); ``vocab_size``; ``eos_token_id``;
    ``tokenizer_fingerprint``; ``sha256`` (of ``tokens.bin``); ``index`` (the whole index).
    """

    def __init__(self, folder: Path, index: dict[str, Any], tokens: np.ndarray, table: np.ndarray) -> None:
        self.folder = folder
        self.index = index
        self.tokens = tokens
        self.document_offsets = table["offset"]
        self.document_sources = table["source"][:-1]
        self.sources: list[str] = index["sources"]
        self.vocab_size: int = index["vocab_size"]
        self.eos_token_id: int = index["eos_token_id"]
        self.tokenizer_fingerprint: str = index["tokenizer_fingerprint"]
        self.sha256: str = index["sha256"]

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a store and check that its files fit its index (sizes, not contents: see :meth:`verify`).

        Raises :class:`DataError` when a file is missing, is cut short or was written by another version.
        """
        folder = Path(folder)
        try:
            index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"token store {folder} holds no index.json; run the tokenization step") from None
        except ValueError as error:
            raise DataError(f"token store {folder}: index.json is damaged ({error}); delete the store") from None
        if index.get("format") != FORMAT or index.get("version") != VERSION:
            raise DataError(
                f"token store {folder} has format {index.get('format')!r} version {index.get('version')!r}, expected "
                f"{FORMAT!r} version {VERSION}; tokenize the documents anew"
            )
        dtype = np.dtype(index["dtype"])
        _check_size(folder / "tokens.bin", index["tokens"] * dtype.itemsize)
        tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r", shape=(index["tokens"],))
        try:
            table = np.load(folder / "documents.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"token store {folder}: documents.npy is damaged ({error}); tokenize anew") from None
        if table.dtype != DOCUMENT or table.shape != (index["documents"] + 1,):
            raise DataError(f"token store {folder}: documents.npy does not fit index.json; tokenize anew")
        return cls(folder, index, tokens, table)

    def verify(self) -> None:
        """Read everything and compare with the index. Raises :class:`DataError` if any byte has changed."""
        for name, expected in (("tokens.bin", self.sha256), ("documents.npy", self.index["documents_sha256"])):
            with open(self.folder / name, "rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
            if actual != expected:
                raise DataError(
                    f"token store {self.folder}: sha256 of {name} is {actual[:16]}..., its index says "
                    f"{expected[:16]}...; the file was changed or damaged: delete the store and tokenize anew"
                )

    def check_tokenizer(self, folder: str | Path) -> None:
        """Raise :class:`DataError` unless the tokenizer in ``folder`` is the one that made this store."""
        from .tokenizer import tokenizer_fingerprint

        actual = tokenizer_fingerprint(folder)
        if actual != self.tokenizer_fingerprint:
            raise DataError(
                f"tokenizer {folder} (fingerprint {actual[:16]}) does not fit token store {self.folder} (made with "
                f"{self.tokenizer_fingerprint[:16]}); tokenize the documents with it or use the store's own tokenizer"
            )

    def documents(self, source: str | None = None) -> np.ndarray:
        """int64 [documents, 2]: first token and end of each document, its end-of-text token left out.

        ``source`` selects the documents of one source; raises :class:`DataError` when the store has none of it.
        """
        if source is None:
            chosen = np.arange(len(self.document_sources))
        elif source not in self.sources:
            raise DataError(f"token store {self.folder} has no source {source!r}; it has {', '.join(self.sources)}")
        else:
            chosen = np.flatnonzero(self.document_sources == self.sources.index(source))
        starts = self.document_offsets[chosen].astype(np.int64)
        ends = self.document_offsets[chosen + 1].astype(np.int64) - 1
        return np.stack([starts, ends], axis=1)


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise DataError(f"token store {path.parent} holds no {path.name}; run the tokenization step")
    actual = path.stat().st_size
    if actual != expected:
        raise DataError(
            f"{path} has {actual} bytes, but index.json says {expected}; the store is incomplete: delete it and "
            f"tokenize anew"
        )


def write_store(
    documents: Iterable[dict[str, Any]],
    tokenizer: tokenizers.Tokenizer,
    folder: str | Path,
    *,
    vocab_size: int,
    eos_token_id: int,
    fingerprint: str,
    on_batch: Callable[[int], None] = lambda text_bytes: None,
) -> dict[str, Any]:
    """Tokenize documents into a new store at ``folder`` and return its index.

    Each document is encoded without special tokens (text that spells one is encoded as text) and ended by
    ``eos_token_id``. Documents are encoded in parallel on all cores, in batches of a few megabytes; ``on_batch`` is
    called with the bytes of text of each. Tokens are little-endian uint16 when the vocabulary allows it, else uint32.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    dtype = np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")
    sources: dict[str, int] = {}
    offsets: list[int] = [0]
    source_of: list[int] = []
    text_bytes = 0
    state = hashlib.sha256()
    with atomic_directory(folder) as temporary:
        with open(temporary / "tokens.bin", "wb") as stream:
            for batch, batch_bytes in _batches(documents):
                encoded = tokenizer.encode_batch_fast([d["text"] for d in batch], add_special_tokens=False)
                for document, encoding in zip(batch, encoded, strict=True):
                    ids = np.asarray([*encoding.ids, eos_token_id], dtype=np.int64)
                    if ids.max() >= vocab_size:
                        raise DataError(
                            f"document {document['id']!r} got token {ids.max()}, but vocab_size is {vocab_size}"
                        )
                    data = ids.astype(dtype).tobytes()
                    stream.write(data)
                    state.update(data)
                    offsets.append(offsets[-1] + len(ids))
                    source_of.append(sources.setdefault(document["source"], len(sources)))
                text_bytes += batch_bytes
                on_batch(batch_bytes)
        if not source_of:
            raise DataError(f"token store {folder}: there is no document to tokenize; check the split of the documents")
        table = np.zeros(len(offsets), dtype=DOCUMENT)
        table["offset"] = offsets
        table["source"][:-1] = source_of
        np.save(temporary / "documents.npy", table, allow_pickle=False)
        with open(temporary / "documents.npy", "rb") as stream:
            documents_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        index = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": dtype.str,
            "tokens": offsets[-1],
            "documents": len(source_of),
            "sources": list(sources),
            "text_bytes": text_bytes,
            "vocab_size": vocab_size,
            "eos_token_id": eos_token_id,
            "tokenizer_fingerprint": fingerprint,
            "sha256": state.hexdigest(),
            "documents_sha256": documents_sha256,
        }
        write_json(temporary / "index.json", index)
    return index


def _batches(documents: Iterable[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document["text"].encode("utf-8"))
        if size >= _BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size
