"""Tokenizers: trained byte-level BPE or one of a hub, saved as Hugging Face folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import atomic_directory, write_json
from .build import digest
from .documents import load_documents
from .errors import DataError

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
PADDING = "<|padding|>"
# Runs tokenizer.json as it stands; classes of single models may rebuild it.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
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
    config = {
        "tokenizer_class": TOKENIZER_CLASS,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
    }
    _write_folder(json.loads(tokenizer.to_str()), config, Path(folder))


def save_hub_tokenizer(repository: str, revision: str, folder: str | Path) -> None:
    """Fetch a tokenizer of a hub at a pinned revision and save it as a folder.

    Only ``tokenizer.json`` and ``tokenizer_config.json`` are taken, and the class is set to the general one: what the
    file says decides, not code that a model class of some version adds. Raises :class:`DataError` when they cannot be
    had or name no end-of-text token.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = []
    for name in ("tokenizer.json", "tokenizer_config.json"):
        try:
            files.append(Path(huggingface_hub.hf_hub_download(repository, name, revision=revision)))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(
                f"tokenizer {repository} at revision {revision[:12]}: {name} cannot be fetched "
                f"({type(error).__name__}: {reason}); check the names, the network and, offline, that it was fetched "
                f"into the hub cache before"
            ) from None
    content, config = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    config = {key: value for key, value in config.items() if key not in ("auto_map", "tokenizer_file", "name_or_path")}
    _write_folder(content, {**config, "tokenizer_class": TOKENIZER_CLASS}, Path(folder))


def _write_folder(content: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    with atomic_directory(folder) as temporary:
        write_json(temporary / "tokenizer.json", content)
        write_json(temporary / "tokenizer_config.json", config)
        load_backend(temporary, shown=folder)


def load_backend(folder: str | Path, shown: str | Path | None = None) -> tuple[tokenizers.Tokenizer, int, int]:
    """``(tokenizer, eos_token_id, vocab_size)`` of a tokenizer folder, without importing transformers.

    ``shown`` is the name of the folder in errors, if not its own. Raises :class:`DataError` when the folder is no
    usable tokenizer or its end-of-text token is unknown.
    """
    from tokenizers import Tokenizer

    folder = Path(folder)
    content, config = _read_folder(folder)
    folder = Path(shown or folder)
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
    """sha256 over what decides which ids a document gets: ``tokenizer.json`` and the name of the end-of-text token.

    Layout of the JSON, padding and truncation that some run had switched on, and the special tokens that are put
    around a text on request do not count: a copy that transformers saved beside a model has the same fingerprint.
    Raises :class:`DataError` when the folder is no tokenizer.
    """
    content, config = _read_folder(Path(folder))
    for key in ("padding", "truncation", "post_processor"):
        content.pop(key, None)
    text = json.dumps([content, _end_token(config)], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
