"""Small models, a tokenizer and held-out prose for the probes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from probe_helpers import VOCABULARY

from hwh_core.data.sources import write_source
from hwh_core.data.store import write_store
from hwh_core.data.tokenizer import load_backend, save_trained, tokenizer_fingerprint, train_bpe

WORDS = (
    *("the", "of", "a", "sailor", "lantern", "carried", "river", "bridge", "winter", "would", "because", "long"),
    *("letter", "under", "tower", "fish", "question", "special", "magic", "number", "for", "mentioned", "text", "is"),
)


def prose(number: int, sentences: int) -> str:
    """Sentences that differ from document to document."""
    lines = []
    for s in range(sentences):
        words = [WORDS[(number * 31 + s * 17 + i * i + i // 3) % len(WORDS)] for i in range(9)]
        lines.append(" ".join(words).capitalize() + ".")
    return " ".join(lines)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """``path`` of held-out documents (sources prose and other), folders ``tokenizer`` and ``store``, all ``texts``."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = [
        {"id": f"prose/{n}", "source": "prose", "title": "", "text": prose(n, 40 if n % 3 else 3)} for n in range(18)
    ]
    documents += [{"id": f"other/{n}", "source": "other", "title": "", "text": f"Def {n}."} for n in range(3)]
    path = folder / "held_out.jsonl.zst"
    write_source(documents, "both", path)
    tokenizer = folder / "tokenizers" / "tiny" / "tokenizer"
    save_trained(train_bpe(path, vocab_size=VOCABULARY, training_bytes=10**6), tokenizer)
    backend, eos_token_id, vocab_size = load_backend(tokenizer)
    write_store(
        documents, backend, folder / "store", vocab_size=vocab_size, eos_token_id=eos_token_id,
        fingerprint=tokenizer_fingerprint(tokenizer),
    )  # fmt: skip
    return SimpleNamespace(
        path=path, tokenizer=tokenizer, tokenizers=folder / "tokenizers", store=folder / "store",
        texts=[d["text"] for d in documents if d["source"] == "prose"],
    )  # fmt: skip


@pytest.fixture
def ids():
    """Token ids [2, 64] without special tokens."""
    return torch.randint(5, 90, (2, 64), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def random_llama(corpus, tmp_path_factory):
    """Folder of a random Llama with the corpus' tokenizer, as fetch_pretrained makes it."""
    from hwh_core.probes.pretrained import fetch_model

    folder = tmp_path_factory.mktemp("pretrained") / "random"
    fetch_model(
        {"kind": "random", "tokenizer": "tiny", "num_layers": 2, "hidden_size": 48, "num_heads": 6, "num_kv_heads": 2,
         "rope_theta": 10000.0, "seed": 0},
        folder, folder.parent / "downloads", corpus.tokenizers,
    )  # fmt: skip
    return folder
