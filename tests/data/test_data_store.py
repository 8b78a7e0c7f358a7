"""The token store: contents, refusals and the programs that make it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hwh_core.data.errors import DataError
from hwh_core.data.sources import write_source
from hwh_core.data.store import TokenStore, write_store
from hwh_core.data.tokenizer import load_backend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(data, tmp_path):
    shutil.copytree(data.store, tmp_path / "store")
    return tmp_path / "store"


def test_documents_come_back_and_end_in_the_end_token(data):
    store = TokenStore.open(data.store)
    backend, eos_token_id, _ = load_backend(data.tokenizer)
    assert store.tokens.dtype == np.uint16
    assert store.document_offsets[0] == 0
    assert store.document_offsets[-1] == len(store.tokens)
    spans = store.documents()
    assert len(spans) == len(data.documents)
    for (start, end), document in zip(spans, data.documents, strict=True):
        assert backend.decode(store.tokens[start:end].tolist()) == document["text"]
        assert store.tokens[end] == eos_token_id == store.eos_token_id
    assert int((store.tokens == eos_token_id).sum()) == len(data.documents)
    assert store.index["text_bytes"] == sum(len(document["text"].encode()) for document in data.documents)
    store.verify()
    store.check_tokenizer(data.tokenizer)


def test_documents_of_one_source(data):
    store = TokenStore.open(data.store)
    both = np.concatenate([store.documents("short"), store.documents("long")])
    assert sorted(both.tolist()) == store.documents().tolist()
    backend, _, _ = load_backend(data.tokenizer)
    start, end = store.documents("long")[2]
    wanted = [document["text"] for document in data.documents if document["source"] == "long"][2]
    assert backend.decode(store.tokens[start:end].tolist()) == wanted
    with pytest.raises(DataError, match="no source 'other'; it has short, long"):
        store.documents("other")


def test_a_spelled_end_token_in_a_text_is_only_text(data, tmp_path):
    backend, eos_token_id, vocab_size = load_backend(data.tokenizer)
    document = {"id": "a", "source": "s", "title": "", "text": "one <|endoftext|> two <|padding|>"}
    write_store([document], backend, tmp_path / "s", vocab_size=vocab_size, eos_token_id=eos_token_id, fingerprint="f")
    store = TokenStore.open(tmp_path / "s")
    assert np.flatnonzero(np.isin(store.tokens, [0, 1])).tolist() == [len(store.tokens) - 1]
    assert backend.decode(store.tokens[:-1].tolist(), skip_special_tokens=False) == document["text"]


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"end": 0, "rare": 70_000, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    documents = [{"id": "a", "source": "s", "title": "", "text": "rare other rare"}]
    write_store(documents, tokenizer, tmp_path / "s", vocab_size=70_001, eos_token_id=0, fingerprint="f")
    store = TokenStore.open(tmp_path / "s")
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist() == [70_000, 1, 70_000, 0]
    with pytest.raises(DataError, match="got token 70000, but vocab_size is 100"):
        write_store(documents, tokenizer, tmp_path / "t", vocab_size=100, eos_token_id=0, fingerprint="f")
    with pytest.raises(DataError, match="no document to tokenize"):
        write_store([], tokenizer, tmp_path / "t", vocab_size=70_001, eos_token_id=0, fingerprint="f")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("name", ["tokens.bin", "documents.npy"])
def test_one_flipped_bit_is_found(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(DataError, match=f"sha256 of {name}"):
        TokenStore.open(copy).verify()


def test_incomplete_stores_are_refused(copy, tmp_path):
    with pytest.raises(DataError, match=r"holds no index\.json"):
        TokenStore.open(tmp_path)
    tokens = (copy / "tokens.bin").read_bytes()
    (copy / "tokens.bin").write_bytes(tokens[:-2])
    with pytest.raises(DataError, match="the store is incomplete"):
        TokenStore.open(copy)
    (copy / "tokens.bin").unlink()
    with pytest.raises(DataError, match=r"holds no tokens\.bin"):
        TokenStore.open(copy)
    (copy / "tokens.bin").write_bytes(tokens)
    table = np.load(copy / "documents.npy")
    np.save(copy / "documents.npy", table[:-1])
    with pytest.raises(DataError, match=r"documents\.npy does not fit"):
        TokenStore.open(copy)
    (copy / "documents.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"documents\.npy is damaged"):
        TokenStore.open(copy)
    index = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps({**index, "version": 0}))
    with pytest.raises(DataError, match="version 0, expected"):
        TokenStore.open(copy)
    (copy / "index.json").write_text("{")
    with pytest.raises(DataError, match=r"index\.json is damaged"):
        TokenStore.open(copy)


def test_another_tokenizer_is_refused(data, tmp_path):
    shutil.copytree(data.tokenizer, tmp_path / "other")
    content = json.loads((tmp_path / "other/tokenizer.json").read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    (tmp_path / "other/tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="does not fit token store") as caught:
        TokenStore.open(data.store).check_tokenizer(tmp_path / "other")
    assert str(tmp_path / "other") in str(caught.value)


def run(script, *arguments):
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def test_the_programs_from_source_to_store(tmp_path):
    """The committed text of the smoke preset through all four programs."""
    source = {"kind": "files", "name": "stories", "paths": ["tests/fixtures/text/*.txt"], "license": "x"}
    done = run("fetch_source.py", "--settings", json.dumps(source), "--output", tmp_path / "stories.jsonl.zst")
    assert done.returncode == 0, done.stderr
    split = json.dumps({"minimum_bytes": 200_000, "held_out_fraction": 0.15, "seed": 0})
    sources = ["--sources", tmp_path / "stories.jsonl.zst"]
    done = run("build_documents.py", "--settings", split, *sources, "--output", tmp_path / "documents")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "documents/documents.json").read_text())
    assert record["splits"]["held_out"]["text_bytes"] >= 20_000
    settings = tmp_path / "tokenizer.json"
    settings.write_text(json.dumps({"kind": "bpe", "name": "bpe512", "vocab_size": 512, "training_bytes": 100_000}))
    train = tmp_path / "documents/train.jsonl.zst"
    folder = tmp_path / "tokenizer"
    done = run("build_tokenizer.py", "--settings", settings, "--documents", train, "--output", folder)
    assert done.returncode == 0, done.stderr
    for name in ("train", "held_out"):
        documents = tmp_path / "documents" / f"{name}.jsonl.zst"
        arguments = ["--documents", documents, "--tokenizer", folder, "--output", tmp_path / name]
        done = run("tokenize_documents.py", *arguments)
        assert done.returncode == 0, done.stderr
        store = TokenStore.open(tmp_path / name)
        store.verify()
        store.check_tokenizer(folder)
        assert store.vocab_size == 512
        assert store.index["text_bytes"] == record["splits"][name]["text_bytes"]
        manifest = json.loads((tmp_path / f"{name}.manifest.json").read_text())
        assert set(manifest["inputs"]) == {str(documents), str(folder)}
    before = (tmp_path / "held_out/index.json").read_bytes()
    done = run("tokenize_documents.py", *arguments[:3], tmp_path / "nowhere", "--output", tmp_path / "held_out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: tokenizer folder {tmp_path / 'nowhere'} holds no tokenizer.json")
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "held_out/index.json").read_bytes() == before


def test_the_split_program_checks_its_settings(tmp_path):
    write_source([{"id": "a", "source": "s", "title": "", "text": "Text."}], "s", tmp_path / "s.jsonl.zst")
    settings = json.dumps({"minimum_bytes": 1, "held_out": 0.1, "seed": 0})
    sources = ["--sources", tmp_path / "s.jsonl.zst"]
    done = run("build_documents.py", "--settings", settings, *sources, "--output", tmp_path / "out")
    assert done.returncode == 1
    assert "held_out_fraction" in done.stderr
    assert not (tmp_path / "out").exists()
