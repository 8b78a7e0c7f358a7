"""A small tokenizer and token store, made once."""

from types import SimpleNamespace

import pytest

from hwh_core.data.sources import write_source
from hwh_core.data.store import write_store
from hwh_core.data.tokenizer import load_backend, save_trained, tokenizer_fingerprint, train_bpe

WORDS = (
    *("the", "of", "a", "sailor", "lantern", "carried", "1861", "river"),
    *("bridge", "ägypten", "because", "winter", "would", "be", "long"),
)


def make_documents(count=40, words=60):
    """Documents of sources 'long' and 'short', alternating, with sentences that differ."""
    documents = []
    for number in range(count):
        name = "long" if number % 2 else "short"
        length = words * 4 if name == "long" else words
        text = " ".join(WORDS[(number * 31 + i * i + i // 7) % len(WORDS)] for i in range(length)) + f" end {number}."
        documents.append({"id": f"{name}/{number}", "source": name, "title": "", "text": text})
    return documents


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """``documents``, their file ``path``, the folder ``tokenizer`` and the folder ``store``."""
    folder = tmp_path_factory.mktemp("data")
    documents = make_documents()
    write_source(documents, "both", folder / "documents.jsonl.zst")
    save_trained(train_bpe(folder / "documents.jsonl.zst", vocab_size=300, training_bytes=10**6), folder / "tokenizer")
    backend, eos_token_id, vocab_size = load_backend(folder / "tokenizer")
    write_store(
        documents,
        backend,
        folder / "store",
        vocab_size=vocab_size,
        eos_token_id=eos_token_id,
        fingerprint=tokenizer_fingerprint(folder / "tokenizer"),
    )
    return SimpleNamespace(
        documents=documents,
        path=folder / "documents.jsonl.zst",
        tokenizer=folder / "tokenizer",
        store=folder / "store",
    )
