"""Tokenizing a document file into a token store: by several processes, and going on where it was stopped.

Every frame of the file becomes a shard, a small token store of its own that appears when it is complete. At the end
the shards are put together; until then they lie beside the store, so a run that was killed redoes no finished one.
Memory is that of a batch a process, whatever the size of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..files import atomic_directory, remove_at_once, sha256_of, write_json
from ..locks import only_writer
from ..processes import in_processes
from ..progress import progress as shown
from .documents import Frame, frames, load_documents
from .errors import DataError
from .store import DOCUMENT, TokenStore, write_store
from .tokenizer import load_backend, tokenizer_fingerprint

if TYPE_CHECKING:
    import tokenizers

_COPY_TOKENS = 8 << 20


class _Task(NamedTuple):
    """One shard to make: a frame of a document file, a tokenizer and its fingerprint, the folder of the shard."""

    documents: Path
    frame: Frame
    tokenizer: Path
    fingerprint: str
    folder: Path


@lru_cache(maxsize=1)
def _backend(folder: Path, fingerprint: str) -> tuple[tokenizers.Tokenizer, int, int]:
    """The tokenizer with the words that it remembers, kept from shard to shard."""
    return load_backend(folder)


def _make_shard(task: _Task) -> None:
    tokenizer, eos_token_id, vocab_size = _backend(task.tokenizer, task.fingerprint)
    write_store(
        load_documents(task.documents, task.frame),
        tokenizer,
        task.folder,
        vocab_size=vocab_size,
        eos_token_id=eos_token_id,
        fingerprint=task.fingerprint,
    )


def shards_folder(output: Path) -> Path:
    """Where the shards of an unfinished store lie: beside it, since a workflow deletes what a failed job wrote."""
    return output.parent / f".{output.name}.shards"


def tokenize_documents(
    documents: Path,
    tokenizer: Path,
    output: Path,
    *,
    workers: int = 1,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda shards, total: shards,
) -> dict[str, Any]:
    """Tokenize a document file into a store at ``output`` and return its index; the same for any ``workers``.

    ``progress`` gets the shards to come and their number. Shards of other documents or another tokenizer are removed.
    Raises :class:`DataError` when documents, tokenizer or a shard are damaged.
    """
    if workers < 1:
        raise DataError(f"tokenizing needs at least one process, found {workers}")
    fingerprint = tokenizer_fingerprint(tokenizer)
    identity = hashlib.sha256(f"{sha256_of(documents)} {fingerprint}".encode()).hexdigest()[:16]
    everything = shards_folder(output)
    with only_writer(everything.with_name(f"{everything.name}.lock"), output):
        for other in everything.iterdir() if everything.is_dir() else ():
            if other.name != identity:
                remove_at_once(other)
        folder = everything / identity
        tasks = [
            _Task(documents, frame, tokenizer, fingerprint, folder / f"{number:06d}")
            for number, frame in enumerate(frames(documents))
        ]
        waiting = [task for task in tasks if not (task.folder / "index.json").is_file()]
        for _ in progress(in_processes(_make_shard, waiting, workers), len(waiting)):
            pass
        index = join_stores([task.folder for task in tasks], output)
        remove_at_once(everything)
    return index


def join_stores(folders: Sequence[Path], output: Path) -> dict[str, Any]:
    """One store of the documents of several, in their order; returns its index.

    Raises :class:`DataError` when one of them is damaged or they were made by different tokenizers.
    """
    stores = [TokenStore.open(folder) for folder in folders]
    first = stores[0]
    for store in stores:
        if (store.tokenizer_fingerprint, store.vocab_size) != (first.tokenizer_fingerprint, first.vocab_size):
            raise DataError(f"token stores {first.folder} and {store.folder} were made by different tokenizers")
    names = {name: None for store in stores for name in store.sources}
    sources = {name: number for number, name in enumerate(names)}
    documents = sum(store.index["documents"] for store in stores)
    state = hashlib.sha256()
    with atomic_directory(output) as temporary:
        table = np.lib.format.open_memmap(
            temporary / "documents.npy", mode="w+", dtype=DOCUMENT, shape=(documents + 1,)
        )
        done, tokens = 0, 0
        with open(temporary / "tokens.bin", "wb") as stream:
            for store in shown(stores, "joining shards", unit="shard"):
                own = hashlib.sha256()
                for start in range(0, len(store.tokens), _COPY_TOKENS):
                    data = store.tokens[start : start + _COPY_TOKENS].tobytes()
                    stream.write(data)
                    state.update(data)
                    own.update(data)
                if own.hexdigest() != store.sha256:
                    raise DataError(f"shard {store.folder} is damaged: sha256 of tokens.bin; delete it and run again")
                rows = table[done : done + store.index["documents"]]
                rows["offset"] = store.document_offsets[:-1] + tokens
                rows["source"] = np.asarray([sources[name] for name in store.sources])[store.document_sources]
                done += len(rows)
                tokens += len(store.tokens)
        table[-1] = (tokens, 0)
        table.flush()
        del table
        index = {
            **first.index,
            "tokens": tokens,
            "documents": documents,
            "sources": list(sources),
            "text_bytes": sum(store.index["text_bytes"] for store in stores),
            "sha256": state.hexdigest(),
            "documents_sha256": sha256_of(temporary / "documents.npy"),
        }
        write_json(temporary / "index.json", index)
    return index
