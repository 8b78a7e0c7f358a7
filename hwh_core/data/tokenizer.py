"""Tokenizers: trained byte-level BPE or one of a hub, saved as Hugging Face folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import atomic_directory
from .build import digest
from .documents import load_documents
from .errors import DataError

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
PADDING = "<|padding|>"
SPECIAL_TOKENS = (END_OF_TEXT, PADDING)
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)


def train_bpe(documents: str | Path, *, vocab_size: int, training_bytes: int) -> tokenizers.Tokenizer:
    """Train byte-level BPE on about ``training_bytes`` of text, whole documents drawn by a hash of their id.

    Every digit is a token of its own, all 256 bytes are in the vocabulary, no text maps to a special token. The same
    documents give the same tokenizer, byte for byte. Raises :class:`DataError` when ``vocab_size`` cannot be met.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST_VOCABULARY:
        raise DataError(f"tokenizers: vocab_size {vocab_size} is under {SMALLEST_VOCABULARY} (256 bytes and 2 marks)")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(documents, training_bytes), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise DataError(
            f"tokenizers: the text gives only {tokenizer.get_vocab_size()} of {vocab_size} tokens; "
            f"raise training_bytes, add text or lower vocab_size"
        )
    return tokenizer


def training_texts(documents: str | Path, training_bytes: int) -> Iterator[str]:
    """Texts of whole documents, drawn by a hash of their id until ``training_bytes`` are reached, in file order."""
    sizes = []
    ranks = []
    for document in load_documents(documents):
        sizes.append(len(document["text"].encode("utf-8")))
        ranks.append(int.from_bytes(digest("tokenizer", document["id"])[:8], "big"))
    order = np.argsort(np.asarray(ranks, dtype=np.uint64), kind="stable")
    before = np.concatenate([[0], np.cumsum(np.asarray(sizes)[order])[:-1]])
    chosen = set(order[before < training_bytes].tolist())
    for index, document in enumerate(load_documents(documents)):
        if index in chosen:
            yield document["text"]


def save_trained(tokenizer: tokenizers.Tokenizer, folder: str | Path) -> None:
    """Save a trained tokenizer as a folder that ``AutoTokenizer.from_pretrained`` loads.

    ``<|endoftext|>`` ends documents and stands before the first one, so it is also the beginning-of-text token; no
    token is added to a text on its own.
    """
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
    )
    with atomic_directory(folder) as temporary:
        wrapped.save_pretrained(temporary)


def save_hub_tokenizer(repository: str, revision: str, folder: str | Path) -> None:
    """Fetch a tokenizer of a hub at a pinned revision and save it as a folder.

    Raises :class:`DataError` when it cannot be had, or is none that ``tokenizers`` runs, or has no end-of-text token.
    """
    from transformers import AutoTokenizer

    where = f"tokenizer {repository} at revision {revision[:12]}"
    try:
        tokenizer = AutoTokenizer.from_pretrained(repository, revision=revision, use_fast=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{where} cannot be read ({str(error).strip().splitlines()[0]}); check the names, the network and, "
            f"offline, that it was fetched into the hub cache before"
        ) from None
    if not tokenizer.is_fast:
        raise DataError(f"{where} has no tokenizer.json form; choose a repository that has one")
    if tokenizer.eos_token_id is None:
        raise DataError(f"{where} has no end-of-text token, which must end every document; choose another")
    with atomic_directory(folder) as temporary:
        tokenizer.save_pretrained(temporary)


def load_backend(folder: str | Path) -> tuple[tokenizers.Tokenizer, int, int]:
    """``(tokenizer, eos_token_id, vocab_size)`` of a tokenizer folder, without importing transformers.

    Raises :class:`DataError` when the folder is no usable tokenizer or its end-of-text token is unknown.
    """
    from tokenizers import Tokenizer

    folder = Path(folder)
    content, config = _read_folder(folder)
    try:
        tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    except Exception as error:  # the Rust library raises bare Exception for every malformed file
        raise DataError(f"tokenizer folder {folder}: tokenizer.json is damaged ({error}); build it anew") from None
    end = _end_token(config)
    eos_token_id = None if end is None else tokenizer.token_to_id(end)
    if eos_token_id is None:
        raise DataError(f"tokenizer folder {folder} has no end-of-text token, which must end every document")
    # Ids may have gaps in some published vocabularies: the largest one decides.
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return tokenizer, eos_token_id, vocab_size


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"tokenizer folder {folder} holds no {Path(error.filename).name}; build it first") from None
    except ValueError as error:
        raise DataError(f"tokenizer folder {folder} is damaged ({error}); build it anew") from None
    return content, config


def _end_token(config: dict[str, Any]) -> str | None:
    end = config.get("eos_token")
    return end.get("content") if isinstance(end, dict) else end


def tokenizer_fingerprint(folder: str | Path) -> str:
    """sha256 over what decides which ids a text gets: ``tokenizer.json`` and the name of the end-of-text token.

    Layout of the JSON, and the padding and truncation that some run had switched on, do not count: a copy saved beside
    a model has the same fingerprint. Raises :class:`DataError` when the folder is no tokenizer.
    """
    content, config = _read_folder(Path(folder))
    content.pop("padding", None)
    content.pop("truncation", None)
    text = json.dumps([content, _end_token(config)], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
