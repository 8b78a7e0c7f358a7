"""Archives of parts: what is packed comes back, and what is damaged or unsafe is refused."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile

import pytest

from bundle.archive import Entry, check_name, read_manifest, unpack_archive, write_archive
from bundle.errors import BundleError
from bundle.parts import PartReader, PartWriter, check_parts

PART_BYTES = 1500


def pack(tree, folder, part_bytes=PART_BYTES):
    names = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    entries = {name: Entry(tree / name) for name in names}
    return write_archive(entries, folder, "bundle", part_bytes, level=1, facts={"preset": "tiny"})


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode & 0o111)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_times_and_modes_come_back(tree, tmp_path):
    os.utime(tree / "empty", ns=(1, 1_700_000_000_123_456_789))
    manifest = pack(tree, tmp_path / "packed")
    assert len(manifest["parts"]) > 2
    assert all((tmp_path / "packed" / part["name"]).stat().st_size <= PART_BYTES for part in manifest["parts"])
    assert manifest["parts"][0]["name"] == "bundle.part000"
    back = unpack_archive(tmp_path / "packed", "bundle", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tree)
    assert back == manifest
    assert (tmp_path / "back/program.sh").stat().st_mode & stat.S_IXUSR
    assert (tmp_path / "back/empty").stat().st_mtime_ns == 1_700_000_000_123_456_789


def test_compressible_data_are_compressed_and_the_joined_parts_are_a_tar_file(tree, tmp_path):
    pack(tree, tmp_path / "packed", 10**6)
    with tarfile.open(tmp_path / "packed/bundle.part000") as outer:
        assert outer.getnames() == ["packed.tar.xz", "results/tiny/data/documents.jsonl.zst"]
        assert outer.getmember("packed.tar.xz").size < 5000


def test_given_time_of_modification_replaces_the_files_own(tree, tmp_path):
    write_archive({"a": Entry(tree / "empty", 5 * 10**9)}, tmp_path / "p", "bundle", 10**6, level=0, facts={})
    unpack_archive(tmp_path / "p", "bundle", tmp_path / "back")
    assert (tmp_path / "back/a").stat().st_mtime_ns == 5 * 10**9


def test_what_a_killed_packing_left_goes_with_the_next_one(tree, tmp_path):
    (tmp_path / "p" / ".bundle-abc").mkdir(parents=True)
    (tmp_path / "p" / ".bundle-abc" / "bundle.part000").write_bytes(b"half")
    write_archive({"a": Entry(tree / "empty")}, tmp_path / "p", "bundle", 10**6, level=0, facts={})
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["bundle.json", "bundle.part000"]


def test_missing_and_damaged_parts_are_all_named(tree, tmp_path):
    folder = tmp_path / "packed"
    count = len(pack(tree, folder)["parts"])
    assert count > 3
    (folder / "bundle.part001").unlink()
    data = bytearray((folder / "bundle.part000").read_bytes())
    data[700] ^= 1
    (folder / "bundle.part000").write_bytes(data)
    (folder / "bundle.part002").write_bytes(b"short")
    with pytest.raises(BundleError) as caught:
        unpack_archive(folder, "bundle", tmp_path / "back")
    message = str(caught.value)
    assert "bundle.part000 is damaged" in message
    assert "bundle.part001 is missing" in message
    assert "bundle.part002 has 5 bytes, expected 1500" in message
    assert "copy these files again" in message
    assert not (tmp_path / "back").exists()


def test_absent_or_foreign_manifest_is_refused(tree, tmp_path):
    folder = tmp_path / "packed"
    pack(tree, folder)
    manifest = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(BundleError, match="format is 99, expected 1"):
        read_manifest(folder, "bundle")
    (folder / "bundle.json").write_text("{")
    with pytest.raises(BundleError, match="is damaged"):
        read_manifest(folder, "bundle")
    (folder / "bundle.json").unlink()
    with pytest.raises(BundleError, match=r"bundle\.json is missing"):
        read_manifest(folder, "bundle")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "a\\b", "", "./a", "a//b"])
def test_names_that_leave_the_folder_are_refused(name):
    with pytest.raises(BundleError, match="unsafe file name"):
        check_name(name)


def crafted(tmp_path, member, record=None, data=b"x"):
    """An archive whose parts and manifest agree and whose one member is `member`."""
    folder = tmp_path / "crafted"
    folder.mkdir(parents=True)
    with PartWriter(folder, "bundle", 10**6) as writer:
        with tarfile.open(fileobj=writer, mode="w|") as archive:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
        writer.close()
        manifest = {"format": 1, "parts": writer.parts, "files": {member.name: record} if record else {}}
    (folder / "bundle.json").write_text(json.dumps(manifest))
    return folder


def test_crafted_members_are_refused_and_nothing_is_written_outside(tmp_path):
    record = {"sha256": "0" * 64, "bytes": 1, "mtime_ns": 0}
    escaping = crafted(tmp_path / "a", tarfile.TarInfo("../escaped"), record)
    with pytest.raises(BundleError, match="unsafe file name"):
        unpack_archive(escaping, "bundle", tmp_path / "a/goal")
    assert not (tmp_path / "a/escaped").exists()

    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with pytest.raises(BundleError, match="no regular file"):
        unpack_archive(crafted(tmp_path / "b", link, record), "bundle", tmp_path / "b/goal")

    with pytest.raises(BundleError, match="which its manifest does not list"):
        unpack_archive(crafted(tmp_path / "c", tarfile.TarInfo("more")), "bundle", tmp_path / "c/goal")

    with pytest.raises(BundleError, match="sha256 is not that of the manifest"):
        unpack_archive(crafted(tmp_path / "d", tarfile.TarInfo("other"), record), "bundle", tmp_path / "d/goal")
    assert list((tmp_path / "d/goal").iterdir()) == []


def test_a_link_that_stands_in_the_goal_is_not_followed_outside(tree, tmp_path):
    pack(tree, tmp_path / "packed")
    goal, outside = tmp_path / "goal", tmp_path / "outside"
    goal.mkdir()
    outside.mkdir()
    (goal / "config").symlink_to(outside)
    with pytest.raises(BundleError, match="is a link that leaves"):
        unpack_archive(tmp_path / "packed", "bundle", goal)
    assert list(outside.iterdir()) == []


def test_a_smaller_archive_replaces_a_larger_one_whole(tree, tmp_path):
    folder = tmp_path / "packed"
    pack(tree, folder)
    write_archive({"a": Entry(tree / "empty")}, folder, "bundle", 10**6, level=0, facts={})
    assert sorted(path.name for path in folder.iterdir()) == ["bundle.json", "bundle.part000"]
    unpack_archive(folder, "bundle", tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["a"]


def test_an_archive_that_cannot_be_written_leaves_the_earlier_one(tree, tmp_path):
    folder = tmp_path / "packed"
    before = pack(tree, folder)
    with pytest.raises(FileNotFoundError):
        write_archive({"a": Entry(tree / "absent")}, folder, "bundle", 10**6, level=0, facts={})
    assert read_manifest(folder, "bundle") == before
    assert check_parts(folder, before["parts"])


@pytest.mark.parametrize("part_bytes", [1, 7, 100])
def test_stream_over_parts_is_what_was_written(tmp_path, part_bytes):
    with PartWriter(tmp_path, "s", part_bytes) as writer:
        for piece in (b"", b"abc", bytes(50), b"xyz" * 20):
            assert writer.write(piece) == len(piece)
        writer.close()
        paths = check_parts(tmp_path, writer.parts)
    with PartReader(paths) as reader:
        assert reader.read() == b"abc" + bytes(50) + b"xyz" * 20
    with pytest.raises(BundleError, match="part size 0"):
        PartWriter(tmp_path, "s", 0)
