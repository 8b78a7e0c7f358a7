"""A token store made by several processes, in several runs, is the one that a single pass makes."""

import hashlib
import itertools
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zstandard

from hwh_core.data import documents as documents_module
from hwh_core.data import tokenizing
from hwh_core.data.documents import frames, load_documents
from hwh_core.data.errors import DataError
from hwh_core.data.sources import write_source
from hwh_core.data.store import TokenStore
from hwh_core.data.tokenizing import join_stores, shards_folder, tokenize_documents
from hwh_core.scripting import start_time

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def framed(data, tmp_path, monkeypatch):
    """The documents of ``data`` in a file of several frames."""
    monkeypatch.setattr(documents_module, "FRAME_BYTES", 3000)
    write_source(data.documents, "both", tmp_path / "documents.jsonl.zst")
    return tmp_path / "documents.jsonl.zst"


def contents(store):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in store.iterdir()}


def test_frames_hold_whole_documents_and_follow_one_another(data, framed):
    found = frames(framed)
    assert len(found) > 5
    assert found[0].offset == 0
    assert all(a.offset + a.size == b.offset for a, b in itertools.pairwise(found))
    assert found[-1].offset + found[-1].size == framed.stat().st_size
    by_frame = [document for frame in found for document in load_documents(framed, frame)]
    assert by_frame == list(load_documents(framed)) == data.documents
    assert len(frames(data.path)) == 1


def test_frames_of_other_zstandard_files(tmp_path):
    """Blocks of all kinds: raw, repeated bytes, compressed; frames of several blocks, with and without checksum."""
    parts = [np.random.default_rng(0).bytes(300_000), b"a" * 500_000, b"many words " * 50_000, b""]
    content = b""
    sizes = []
    for number, part in enumerate(parts):
        compressed = zstandard.ZstdCompressor(level=3, write_checksum=bool(number % 2)).compress(part)
        sizes.append(len(compressed))
        content += compressed
    (tmp_path / "x.zst").write_bytes(content)
    assert [frame.size for frame in frames(tmp_path / "x.zst")] == sizes


def test_damaged_files_have_no_frames(framed, tmp_path):
    whole = framed.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 5, len(whole) // 2, 3):
        framed.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"cut short|damaged"):
            frames(framed)
    framed.write_bytes(b"no Zstandard at all, but long enough for a header")
    with pytest.raises(DataError, match="damaged at byte 0"):
        frames(framed)
    framed.write_bytes(b"")
    with pytest.raises(DataError, match="cut short"):
        frames(framed)
    with pytest.raises(DataError, match="does not exist"):
        frames(tmp_path / "absent.zst")


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_joined_are_the_store_of_a_single_pass(data, framed, tmp_path, workers):
    counted = []

    def progress(shards, total):
        for shard in shards:
            counted.append(total)
            yield shard

    index = tokenize_documents(framed, data.tokenizer, tmp_path / "store", workers=workers, progress=progress)
    assert contents(tmp_path / "store") == contents(data.store)
    assert index == TokenStore.open(data.store).index
    assert counted == [len(frames(framed))] * len(frames(framed))
    assert not shards_folder(tmp_path / "store").exists()


def test_finished_shards_are_not_made_again(data, framed, tmp_path, monkeypatch):
    made, make = [], tokenizing._make_shard

    def fails_at_the_third(task):
        if len(made) == 2:
            raise KeyboardInterrupt
        make(task)
        made.append(task.folder.name)

    monkeypatch.setattr(tokenizing, "_make_shard", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        tokenize_documents(framed, data.tokenizer, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(tokenizing, "_make_shard", lambda task: (make(task), made.append(task.folder.name)))
    tokenize_documents(framed, data.tokenizer, tmp_path / "store")
    assert made == [f"{number:06d}" for number in range(len(frames(framed)))]
    assert contents(tmp_path / "store") == contents(data.store)


def test_shards_of_other_documents_are_not_taken(data, framed, tmp_path):
    other = shards_folder(tmp_path / "store") / "0123456789abcdef" / "000000"
    shutil.copytree(data.store, other)
    tokenize_documents(framed, data.tokenizer, tmp_path / "store")
    assert contents(tmp_path / "store") == contents(data.store)
    assert not other.exists()


def test_a_damaged_shard_is_named(data, framed, tmp_path, monkeypatch):
    def damage(folders, output):
        path = folders[1] / "tokens.bin"
        path.write_bytes(bytes(path.stat().st_size))
        return join_stores(folders, output)

    monkeypatch.setattr(tokenizing, "join_stores", damage)
    with pytest.raises(DataError, match="000001 is damaged"):
        tokenize_documents(framed, data.tokenizer, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_stores_of_different_tokenizers_are_not_joined(data, tmp_path):
    shutil.copytree(data.store, tmp_path / "other")
    path = tmp_path / "other" / "index.json"
    path.write_text(path.read_text().replace(TokenStore.open(data.store).tokenizer_fingerprint, "0" * 64))
    with pytest.raises(DataError, match="different tokenizers"):
        join_stores([data.store, tmp_path / "other"], tmp_path / "store")


def test_workers_are_counted(data, tmp_path):
    with pytest.raises(DataError, match="at least one process, found 0"):
        tokenize_documents(data.path, data.tokenizer, tmp_path / "store", workers=0)


def children(pid):
    """Processes that ``pid`` has started and that run, with the time of their start."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid and (started := start_time(int(entry.name))):
            found[int(entry.name)] = started
    return found


def test_a_killed_program_goes_on_and_leaves_no_worker(data, tmp_path, monkeypatch):
    """SIGKILL after the first of 40 shards; the workers end, and the next run makes the whole store."""
    monkeypatch.setattr(documents_module, "FRAME_BYTES", 1)
    documents = [{**data.documents[0], "id": f"{number}"} for number in range(40)]
    write_source(documents, "many", tmp_path / "many.jsonl.zst")
    tokenize_documents(tmp_path / "many.jsonl.zst", data.tokenizer, tmp_path / "expected")
    command = [sys.executable, str(ROOT / "scripts/tokenize_documents.py")]
    command += ["--documents", str(tmp_path / "many.jsonl.zst")]
    command += ["--tokenizer", str(data.tokenizer), "--output", str(tmp_path / "store"), "--workers", "2"]
    shards = shards_folder(tmp_path / "store")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(shards.glob("*/*/index.json")) and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be killed"
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert workers
    deadline = time.monotonic() + 60
    while any(start_time(pid) == started for pid, started in workers.items()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid, started in workers.items() if start_time(pid) == started] == []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "store") == contents(tmp_path / "expected")


def test_a_run_that_was_killed_before_its_shards_were_joined_goes_on(data, framed, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizing, "join_stores", killed)
    with pytest.raises(KeyboardInterrupt):
        tokenize_documents(framed, data.tokenizer, tmp_path / "store")
    monkeypatch.undo()
    given = ["--documents", framed, "--tokenizer", data.tokenizer, "--output", tmp_path / "store", "--workers", "2"]
    command = [sys.executable, str(ROOT / "scripts/tokenize_documents.py"), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not shards_folder(tmp_path / "store").exists()
