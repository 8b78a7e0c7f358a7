"""Held-out text as token windows for probes, with the tokenizer of the model that is probed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ProbeError

CHARACTERS_PER_TOKEN = 8
"""Upper estimate: that much text is tokenised for a window, so that long documents are not tokenised whole."""


def prose_documents(path: str | Path, source: str) -> list[str]:
    """Texts of one source among the held-out documents. Raises :class:`ProbeError` when there is none."""
    from ..data.documents import load_documents

    texts, others = [], set()
    for document in load_documents(path):
        if document["source"] == source:
            texts.append(document["text"])
        else:
            others.add(document["source"])
    if not texts:
        raise ProbeError(
            f"held_out_prose_source: {path} has no document of source {source!r}; sources there: {sorted(others)}"
        )
    return texts


def start_token(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence token as a list, where the tokenizer puts one before a text; otherwise empty."""
    ids = tokenizer("a")["input_ids"]
    bos = tokenizer.bos_token_id
    return [bos] if bos is not None and ids and ids[0] == bos else []


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids without special tokens and without warnings about length."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def shuffled_pieces(texts: list[str], characters: int, generator: np.random.Generator) -> Iterator[str]:
    """Pieces of at most ``characters`` from documents in random order, each document once a round, without end.

    A piece of a longer document begins at a random paragraph or line.
    """
    while True:
        for index in generator.permutation(len(texts)):
            text = texts[index]
            if len(text) > characters:
                start = int(generator.integers(0, len(text) - characters + 1))
                newline = text.rfind("\n", 0, start)
                start = newline + 1 if newline >= 0 and start - newline < characters // 4 else start
                text = text[start : start + characters]
            yield text


def token_windows(texts: list[str], tokenizer: Any, length: int, count: int, seed: int) -> np.ndarray:
    """``count`` windows of exactly ``length`` tokens, int64 [count, length]; a pure function of its arguments.

    Documents are drawn in random order; those shorter than a window are joined by blank lines. Tokenizers that put a
    beginning-of-sequence token before a text put one before every window. Raises :class:`ProbeError` when all
    documents together are shorter than one window.
    """
    prefix = start_token(tokenizer)
    characters = CHARACTERS_PER_TOKEN * length
    if sum(len(encode(tokenizer, text[:characters])) for text in texts) < length:
        raise ProbeError(
            f"length: {length} tokens are more than the text holds ({len(texts)} documents); lower it or add text"
        )
    generator = np.random.default_rng(seed)
    pieces = shuffled_pieces(texts, characters, generator)
    windows = np.empty((count, length), np.int64)
    for row in windows:
        ids = list(prefix)
        while len(ids) < length:
            joint = encode(tokenizer, "\n\n") if len(ids) > len(prefix) else []
            ids += joint + encode(tokenizer, next(pieces))
        row[:] = ids[:length]
    return windows
