"""Atomic writes: nothing half-written is ever left looking complete, on no kind of failure."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from hwh_core import files
from hwh_core.files import (
    OutputError,
    atomic_directory,
    atomic_write,
    read_json,
    sha256_of,
    write_json,
    write_table,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_is_complete_or_absent(tmp_path):
    target = tmp_path / "deep" / "value.txt"
    with atomic_write(target) as temporary:
        temporary.write_text("half", encoding="utf-8")
        assert not target.exists()
        assert temporary.parent == target.parent
        assert temporary.suffix == ".txt"
    assert target.read_text(encoding="utf-8") == "half"
    assert names(target.parent) == ["value.txt"]


def test_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "value.txt"
    target.write_text("old", encoding="utf-8")

    def stopped() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("new", encoding="utf-8")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert target.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["value.txt"]


def test_exception_leaves_the_old_folder_and_nothing_else(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_bytes(b"old")

    def stopped() -> None:
        with atomic_directory(target) as temporary:
            (temporary / "weights").write_bytes(b"new")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert (target / "weights").read_bytes() == b"old"
    assert names(tmp_path) == ["model"]


def test_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_bytes(b"1")
    with atomic_directory(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "weights").write_bytes(b"2")
    assert names(target) == ["sub"]
    assert names(tmp_path) == ["model"]


def test_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file") as temporary:
            temporary.write_bytes(b"x")
        with atomic_directory(tmp_path / "folder") as temporary:
            (temporary / "x").write_bytes(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_error_names_the_file_and_the_reason(tmp_path):
    (tmp_path / "occupied").write_bytes(b"a file where a folder is wanted")
    target = tmp_path / "occupied" / "value.json"
    with pytest.raises(OutputError) as caught:
        write_json(target, {"a": 1})
    assert str(target) in caught.value.strerror
    assert "nothing was kept" in caught.value.strerror


def test_json_refuses_numbers_that_json_has_not(tmp_path):
    target = tmp_path / "value.json"
    write_json(target, {"a": [1, 2.5, None], "ü": "θ"})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"a": float("nan")})
    assert read_json(target) == {"a": [1, 2.5, None], "ü": "θ"}
    assert names(tmp_path) == ["value.json"]


def test_table_is_written_in_both_forms(tmp_path):
    table = pd.DataFrame({"layer": [0, 1], "value": [0.1, 1e-9], "model": ["a", "b"]})
    write_table(table, tmp_path / "scores.csv")
    assert names(tmp_path) == ["scores.csv", "scores.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "scores.parquet"), table)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "scores.csv"), table)
    with pytest.raises(ValueError, match=r"scores\.parquet must end in \.csv"):
        write_table(table, tmp_path / "scores.parquet")


def test_hash_of_a_folder_sees_names_and_contents_but_not_its_place(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "x").write_bytes(b"1")
        (tmp_path / folder / "y").write_bytes(b"2")
    first = sha256_of(tmp_path / "a")
    assert first == sha256_of(tmp_path / "b")
    (tmp_path / "b" / "y").write_bytes(b"3")
    assert sha256_of(tmp_path / "b") != first
    (tmp_path / "b" / "y").write_bytes(b"2")
    (tmp_path / "b" / "y").rename(tmp_path / "b" / "z")
    assert sha256_of(tmp_path / "b") != first


WRITERS = {
    "atomic_write": """
        with atomic_write(folder / "big.bin") as temporary:
            with open(temporary, "wb") as stream:
                for _ in range(64):
                    stream.write(bytes(65536))
    """,
    "atomic_directory": """
        with atomic_directory(folder / "model") as temporary:
            (temporary / "weights").write_bytes(bytes(64 * 65536))
    """,
    "write_json": 'write_json(folder / "big.json", ["x" * 65536] * 64)',
    "write_table": """
        import numpy, pandas
        values = numpy.random.default_rng(0).normal(size=400_000)
        write_table(pandas.DataFrame({"value": values}), folder / "big.csv")
    """,
}
PROGRAM = """
import resource, signal, sys
from pathlib import Path
from hwh_core.files import atomic_directory, atomic_write, write_json, write_table
from hwh_core.scripting import run
folder = Path(sys.argv[1])
limit = int(sys.argv[2])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def main():
{body}
run(main)
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory, mount_disk):
    """A folder in which a megabyte fits, and the file-size limit that stands for it where no disk can be mounted."""
    folder = tmp_path_factory.mktemp("disk")
    return folder, 0 if mount_disk(folder, "size=1m") else 2**20


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_full_disk_ends_in_one_sentence_and_keeps_nothing(small_disk, writer):
    folder, limit = small_disk
    old = folder / "big.json"
    old.write_text("old", encoding="utf-8")
    before = names(folder)
    program = PROGRAM.format(body=textwrap.indent(textwrap.dedent(WRITERS[writer]), "    "))
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: cannot write ")
    assert str(folder) in done.stderr
    assert done.stderr.count("\n") == 1
    assert os.strerror(errno.EFBIG if limit else errno.ENOSPC) in done.stderr
    assert names(folder) == before
    assert old.read_text(encoding="utf-8") == "old"


def test_kill_in_the_middle_leaves_the_old_file(tmp_path):
    target = tmp_path / "value.txt"
    target.write_text("old", encoding="utf-8")
    program = textwrap.dedent("""
        import os, signal, sys
        from hwh_core.files import atomic_write
        with atomic_write(sys.argv[1]) as temporary:
            temporary.write_text("new")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert done.returncode == -9
    assert target.read_text(encoding="utf-8") == "old"


KILLED = """
import os, signal, sys
from hwh_core import files
with files.atomic_directory(sys.argv[1]) as temporary:
    for name in ("a", "b"):
        (temporary / name).write_text("new")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
    remove = files.remove
    def dying(path):
        if path.exists() and path.name == ".model.old":
            (path / "a").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        remove(path)
    files.remove = dying
"""


@pytest.mark.parametrize(("when", "found"), [("writing", "old"), ("removing the old one", "new")])
def test_a_killed_replacement_of_a_folder_leaves_one_that_is_whole(tmp_path, when, found):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("old")
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), when], check=False)
        assert done.returncode == -9
        assert [(path.name, path.read_text()) for path in sorted(folder.iterdir())] == [("a", found), ("b", found)]
        assert len(names(tmp_path)) <= 4, "what killed processes leave does not accumulate"
    with atomic_directory(folder) as temporary:
        (temporary / "a").write_text("last")
    assert names(tmp_path) == ["model"]
    assert names(folder) == ["a"]


def test_a_killed_removal_leaves_no_part_of_a_folder_and_the_next_one_the_rest(tmp_path, monkeypatch):
    folder = tmp_path / ".train.shards"
    folder.mkdir()
    (folder / "index.json").touch()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            files.remove_at_once(folder)
    assert names(tmp_path) == [".train.shards.gone"]
    folder.mkdir()
    files.remove_at_once(folder)
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_used_up_by_the_next_write(tmp_path):
    (tmp_path / ".value.json.tmp.json").write_text("half of an earlier value, and longer than the next one")
    (tmp_path / ".value.json.lock").touch()
    write_json(tmp_path / "value.json", 1)
    assert names(tmp_path) == ["value.json"]
    assert read_json(tmp_path / "value.json") == 1


def test_a_folder_killed_between_its_two_renames_is_put_back_before_the_next_attempt(tmp_path):
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old" / "weights").write_bytes(b"old")

    def stopped() -> None:
        with atomic_directory(tmp_path / "model"):
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert (tmp_path / "model" / "weights").read_bytes() == b"old"
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("writer", [atomic_write, atomic_directory])
def test_a_full_disk_is_named_whatever_a_library_says(tmp_path, monkeypatch, writer):
    """torch and safetensors report it in errors of their own, without the word or the path."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    named = r"cannot write .*model: No space left on device; nothing was kept"
    with pytest.raises(OutputError, match=named), writer(tmp_path / "model"):
        raise RuntimeError("unexpected pos 135808 vs 135700")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=2**30))
    with pytest.raises(RuntimeError, match="unexpected pos"), writer(tmp_path / "model"):
        raise RuntimeError("unexpected pos 135808 vs 135700")


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250, 300])
def test_the_hash_of_a_large_file_is_that_of_its_bytes_and_shows_how_far_it_is(tmp_path, monkeypatch, capsys, size):
    monkeypatch.setattr(files, "HASHED_AT_ONCE", 100)
    monkeypatch.setattr(files, "HASHED_SILENTLY", 2)
    monkeypatch.setattr(files, "HASHED_BLOCK", 30)
    monkeypatch.setattr("hwh_core.progress.SECONDS_BETWEEN_LINES", 0.0)
    data = bytes(number % 251 for number in range(size))
    path = tmp_path / "tokens.bin"
    path.write_bytes(data)
    assert files.sha256_of(path) == hashlib.sha256(data).hexdigest()
    said = capsys.readouterr().err
    assert ("sha256 of tokens.bin: 1/" in said) == (size > 100)
