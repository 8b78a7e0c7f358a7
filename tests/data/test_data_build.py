"""Merging sources, dropping repetitions and splitting by document."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwh_core.data.build import build_documents, choose_held_out, digest, first_occurrences
from hwh_core.data.documents import load_documents
from hwh_core.data.errors import DataError
from hwh_core.data.sources import write_source
from hwh_core.files import sha256_of


def make_source(folder, name, count, start=0, text="Text {} of a document. "):
    documents = [
        {"id": f"{name}/{i}", "source": name, "title": str(i), "text": text.format(i) * 5}
        for i in range(start, start + count)
    ]
    path = folder / f"{name}.jsonl.zst"
    write_source(documents, name, path)
    return path


def build(sources, output, fraction=0.1, minimum=1, seed=0):
    return build_documents(sources, output, held_out_fraction=fraction, minimum_bytes=minimum, seed=seed)


def ids(path):
    return [document["id"] for document in load_documents(path)]


def test_split_is_by_document_in_every_source_and_counts_are_true(tmp_path):
    sources = [make_source(tmp_path, "a", 95), make_source(tmp_path, "b", 12, start=500)]
    record = build(sources, tmp_path / "out")
    train, held_out = ids(tmp_path / "out/train.jsonl.zst"), ids(tmp_path / "out/held_out.jsonl.zst")
    assert len(set(train) | set(held_out)) == len(train) + len(held_out) == 107
    assert sum(name.startswith("a/") for name in held_out) == 10
    assert sum(name.startswith("b/") for name in held_out) == 2
    assert json.loads((tmp_path / "out/documents.json").read_text()) == record
    for split in ("train", "held_out"):
        entry = record["splits"][split]
        path = tmp_path / "out" / entry["file"]
        assert entry["sha256"] == sha256_of(path)
        assert entry["documents"] == len(ids(path))
        assert entry["text_bytes"] == sum(len(document["text"].encode()) for document in load_documents(path))
        assert entry["text_bytes"] == sum(source["text_bytes"] for source in entry["sources"].values())
    assert record["text_bytes"] == sum(entry["text_bytes"] for entry in record["splits"].values())


def test_split_depends_on_seed_and_ids_only(tmp_path):
    source = make_source(tmp_path, "a", 60)
    build([source], tmp_path / "one")
    chosen = set(ids(tmp_path / "one/held_out.jsonl.zst"))
    documents = list(load_documents(source))
    random.Random(1).shuffle(documents)
    write_source([{**document, "text": document["text"] + "More."} for document in documents], "a", source)
    build([source], tmp_path / "two")
    assert set(ids(tmp_path / "two/held_out.jsonl.zst")) == chosen
    build([source], tmp_path / "three", seed=1)
    assert set(ids(tmp_path / "three/held_out.jsonl.zst")) != chosen


def test_same_input_gives_the_same_bytes(tmp_path):
    source = make_source(tmp_path, "a", 30)
    for name in ("one", "two"):
        build([source], tmp_path / name)
    for file in ("train.jsonl.zst", "held_out.jsonl.zst", "documents.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_text_that_comes_twice_is_kept_once_and_never_in_both_splits(tmp_path):
    first = make_source(tmp_path, "a", 40)
    second = make_source(tmp_path, "b", 60)
    record = build([first, second], tmp_path / "out", fraction=0.3)
    assert record["repeated_documents"] == 40
    texts = {
        split: {document["text"] for document in load_documents(tmp_path / f"out/{split}.jsonl.zst")}
        for split in ("train", "held_out")
    }
    assert record["documents"] == 60
    assert not texts["train"] & texts["held_out"]


def test_errors_name_the_key_and_leave_no_output(tmp_path):
    source = make_source(tmp_path, "a", 5)
    with pytest.raises(DataError, match=r"data\.minimum_bytes: the sources hold \d+ bytes .* 1000000 are asked for"):
        build([source], tmp_path / "out", minimum=1_000_000)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(DataError, match="two documents have the id 'a/0'"):
        build([source, source], tmp_path / "out")
    with pytest.raises(DataError, match="none can be held out"):
        build([make_source(tmp_path, "single", 1)], tmp_path / "out")
    assert not (tmp_path / "out/documents.json").exists()


def test_an_older_summary_does_not_survive_a_failed_run(tmp_path):
    source = make_source(tmp_path, "a", 20)
    build([source], tmp_path / "out")
    with pytest.raises(DataError):
        build([source], tmp_path / "out", minimum=10**9)
    assert not (tmp_path / "out/documents.json").exists()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=40))
def test_first_occurrences(rows):
    keys = np.asarray(rows, dtype=np.uint64).reshape(-1, 2)
    assert first_occurrences(keys).tolist() == [row not in rows[:i] for i, row in enumerate(rows)]


@given(st.integers(1, 300), st.floats(0.001, 0.499))
def test_held_out_is_never_empty_nor_everything(count, fraction):
    ranks = np.asarray([[i * 7919 % count, i] for i in range(count)], dtype=np.uint64)
    number = int(choose_held_out(ranks, fraction).sum())
    assert number == min(int(np.ceil(fraction * count)), count - 1)
    assert number >= 1 or count == 1


def test_digest_does_not_confuse_borders():
    assert digest("ab", "c") != digest("a", "bc")
    assert len({digest(str(i)) for i in range(1000)}) == 1000
