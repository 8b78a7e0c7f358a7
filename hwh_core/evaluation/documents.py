"""Held-out prose for evaluation: excerpts for perplexity and the words of the haystack."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from .errors import EvaluationError
from .rows import ESSAYS, read_rows


def held_out_prose(path: str | Path, source: str) -> list[dict[str, Any]]:
    """Held-out documents of one source. Raises :class:`EvaluationError` if there are none."""
    from ..data.documents import load_documents

    documents = [document for document in load_documents(Path(path)) if document["source"] == source]
    if not documents:
        raise EvaluationError(f"held_out_prose_source: {path} has no documents of the source {source!r}")
    return documents


def essay_texts(folder: str | Path) -> list[str]:
    """Texts of the essays that RULER hides its needles in, from a folder of evaluation rows."""
    return [row["text"] for row in read_rows(Path(folder) / f"{ESSAYS}.jsonl")]


def excerpt(text: str, max_bytes: int) -> str:
    """The beginning of a text: at most ``max_bytes`` bytes of UTF-8, cut between words."""
    data = text.encode("utf-8")
    if len(data) <= max_bytes:
        return text
    start = data[:max_bytes].decode("utf-8", errors="ignore")
    if start[-1:].isspace() or text[len(start)].isspace():
        return start.rstrip()
    # The cut is inside a word, which goes; nothing is left of a text that begins with so long a word.
    words = start.rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""


def perplexity_documents(
    documents: list[dict[str, Any]], max_documents: int, max_bytes: int, seed: int
) -> list[dict[str, Any]]:
    """Excerpts for perplexity: ``max_documents`` articles chosen by ``seed``, ``max_bytes`` bytes altogether.

    Each chosen article gives its first ``max_bytes / max_documents`` bytes, so that many subjects are covered.
    """
    ranked = sorted(documents, key=lambda document: hashlib.sha256(f"{seed}:{document['id']}".encode()).digest())
    chosen = ranked[:max_documents]
    share = max_bytes // len(chosen)
    excerpts = [{"id": document["id"], "text": excerpt(document["text"], share)} for document in chosen]
    for document in excerpts:
        if not document["text"].strip():
            raise EvaluationError(
                f"held_out_perplexity.max_bytes: {share} bytes are too few for an excerpt of {document['id']}"
            )
    return excerpts
