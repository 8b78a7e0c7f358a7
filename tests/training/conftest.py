"""A tiny token store, settings for it, and a loader of random tokens."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_training import RandomLoader, make_settings

from hwh_core.data.documents import DocumentWriter
from hwh_core.data.store import write_store
from hwh_core.data.tokenizer import save_trained, tokenizer_fingerprint, train_bpe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def loader() -> RandomLoader:
    return RandomLoader()


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders ``tokenizer``, ``train`` and ``held_out`` over made-up text."""
    folder = tmp_path_factory.mktemp("stores")
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 7))) for _ in range(300)]
    documents = [
        {"id": str(number), "source": "made-up", "title": "", "text": " ".join(generator.choices(words, k=400))}
        for number in range(30)
    ]
    text = folder / "documents.jsonl.zst"
    with open(text, "wb") as stream:
        writer = DocumentWriter(stream)
        for document in documents:
            writer.write(document)
        writer.close()
    tokenizer = train_bpe(text, vocab_size=320, training_bytes=50_000)
    paths = {name: folder / name for name in ("tokenizer", "train", "held_out")}
    save_trained(tokenizer, paths["tokenizer"])
    for name, chosen in (("train", documents[:25]), ("held_out", documents[25:])):
        write_store(
            chosen,
            tokenizer,
            paths[name],
            vocab_size=320,
            eos_token_id=tokenizer.token_to_id("<|endoftext|>"),
            fingerprint=tokenizer_fingerprint(paths["tokenizer"]),
        )
    return paths


@pytest.fixture
def settings():
    return make_settings


@pytest.fixture
def train_command(stores, tmp_path):
    """Command line of scripts/train.py and the environment to run it in."""

    def build(values: dict[str, Any], output: Path) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--settings", json.dumps(values)]
        for name in ("train", "held_out", "tokenizer"):
            option = {"train": "--store", "held_out": "--held-out", "tokenizer": "--tokenizer"}[name]
            command += [option, str(stores[name])]
        command += ["--output", str(output), "--checkpoints", str(output / "checkpoints")]
        return command, os.environ | {"OMP_NUM_THREADS": "1"}

    return build
