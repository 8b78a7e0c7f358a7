"""Documents out of files, git repositories, packages and the cache of a hub."""

import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import pandas as pd
import pytest
import zstandard

from hwh_core.data.documents import load_documents
from hwh_core.data.errors import DataError
from hwh_core.data.manifests import read_manifest
from hwh_core.data.source_hub import list_files, split_files
from hwh_core.data.sources import parse_source, source_documents, write_source

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def files_source(*paths, **more):
    return parse_source(
        {"kind": "files", "name": "own", "paths": [str(path) for path in paths], "license": "x", **more}
    )


def texts(source, tmp_path):
    return [document["text"] for document in source_documents(source, root=tmp_path, downloads=tmp_path / "downloads")]


def test_every_format_gives_the_same_texts(tmp_path):
    rows = [{"text": "First ä."}, {"text": "Second\nline."}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines[:20]) + zstandard.compress(lines[20:]))
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    for ending in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet"):
        assert texts(files_source(f"a.{ending}"), tmp_path) == ["First ä.", "Second\nline."]
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfOne\r\ndocument.")
    assert texts(files_source(tmp_path / "b.txt"), tmp_path) == ["One\ndocument."]


def test_ids_and_order_do_not_depend_on_the_file_system(tmp_path):
    for name in ("c", "a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"Text {name}.")
    documents = list(source_documents(files_source("*.txt"), root=tmp_path, downloads=tmp_path))
    assert [document["id"] for document in documents] == ["own/a.txt", "own/b.txt", "own/c.txt"]
    assert {document["source"] for document in documents} == {"own"}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("latin.txt", "Grüße".encode("latin-1"), r"latin\.txt of source 'own' is not UTF-8 \(byte 0xfc at offset 2\)"),
        ("empty.txt", b" \n", r"empty\.txt of source 'own' is empty"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": ""}\n', r"rows\.jsonl of source 'own', row 1 is empty"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": 3}\n', "row 1: its text is int, not a string"),
        ("rows.jsonl", b'{"body": "a"}\n', "no column 'text' \\(it has body\\); correct text_column"),
        ("rows.jsonl", b'{"text": "a"\n', "line 1 is not JSON"),
        ("rows.jsonl", b'{"text": "\xff"}\n', "line 1 is not UTF-8"),
        ("rows.jsonl", b'{"text": "\\ud800"}\n', "lone surrogate"),
        ("rows.jsonl.zst", zstandard.compress(b'{"text": "a"}\n' * 9)[:-2], "cut short"),
        ("rows.jsonl.zst", b"no zstandard", "damaged"),
        ("rows.jsonl.gz", gzip.compress(b'{"text": "a"}\n')[:-6], "damaged or cut short"),
        ("rows.parquet", b"PAR1 not really", "no complete Parquet file"),
        ("rows.csv", b"text\na\n", "unknown ending"),
    ],
)
def test_unusable_files_end_in_a_sentence_and_leave_no_output(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    output = tmp_path / "out" / "own.jsonl.zst"
    documents = source_documents(files_source(name), root=tmp_path, downloads=tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        write_source(documents, "own", output)
    assert "\n" not in str(caught.value)
    assert list(output.parent.iterdir()) == []


def test_a_path_that_fits_nothing(tmp_path):
    with pytest.raises(DataError, match=r"no file fits 'none\*\.txt'"):
        texts(files_source("none*.txt"), tmp_path)


def test_a_misspelt_key_is_named():
    with pytest.raises(DataError, match="licence"):
        parse_source({"kind": "files", "name": "own", "paths": ["a"], "licence": "x"})


def test_written_documents_are_read_back_and_damage_is_found(tmp_path):
    output = tmp_path / "own.jsonl.zst"
    written = [{"id": f"own/{i}", "source": "own", "title": "", "text": f"Text {i}. " * 900} for i in range(40)]
    assert write_source(iter(written), "own", output) == {
        "documents": 40,
        "text_bytes": sum(len(document["text"]) for document in written),
    }
    assert list(load_documents(output)) == written
    first = output.read_bytes()
    write_source(iter(written), "own", output)
    assert output.read_bytes() == first
    for damaged in (first[:-1], first[: len(first) // 2], first[:100] + bytes([first[100] ^ 255]) + first[101:]):
        output.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cut short|damaged"):
            list(load_documents(output))
    with pytest.raises(DataError, match="does not exist"):
        list(load_documents(tmp_path / "none.jsonl.zst"))


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    run = subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository whose second commit removed what the first one, which is pinned, holds."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for name, text in {"Ann/Ärger.md": "Book one.", "Bob/Two.md": "Book two.", "README.md": "No book."}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "Bob" / "link.md").symlink_to("/etc/hostname")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "books")
    commit = git(folder, "rev-parse", "HEAD")
    git(folder, "rm", "--quiet", "Bob/Two.md")
    git(folder, "commit", "--quiet", "-m", "gone")
    return folder, commit


def git_source(repository, commit, tmp_path, manifest, pattern="*/*.md"):
    lines = [f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in manifest.items()]
    (tmp_path / "books.sha256").write_text("# made for a test\n" + "".join(lines), encoding="utf-8")
    return parse_source(
        {
            "kind": "git",
            "name": "books",
            "repository": f"file://{repository}",
            "commit": commit,
            "pattern": pattern,
            "manifest": "books.sha256",
            "license": "x",
        }
    )


def test_git_commit_is_fetched_once_and_read_by_manifest(repository, tmp_path):
    folder, commit = repository
    source = git_source(folder, commit, tmp_path, {"Bob/Two.md": "Book two.", "Ann/Ärger.md": "Book one."})
    documents = list(source_documents(source, root=tmp_path, downloads=tmp_path / "downloads"))
    assert [(d["id"], d["title"], d["text"]) for d in documents] == [
        ("books/Ann/Ärger.md", "Ärger", "Book one."),
        ("books/Bob/Two.md", "Two", "Book two."),
    ]
    os.rename(folder, tmp_path / "moved")
    assert texts(source, tmp_path) == ["Book one.", "Book two."]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"Bob/Two.md": "Other text."}, "Two.md of source 'books': sha256 is"),
        ({"Bob/Three.md": "x"}, "holds no file 'Bob/Three.md'"),
        ({"Bob/link.md": "x"}, "holds no file 'Bob/link.md'"),
        ({"README.md": "No book."}, "does not fit pattern"),
        ({}, "names no document"),
    ],
)
def test_git_manifest_must_fit_the_commit(repository, tmp_path, manifest, message):
    source = git_source(*repository, tmp_path, manifest)
    with pytest.raises(DataError, match=message):
        texts(source, tmp_path)


def copied_source(folder, tmp_path, manifest):
    lines = [f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in manifest.items()]
    (tmp_path / "copy.sha256").write_text("".join(lines), encoding="utf-8")
    return parse_source(
        {
            "kind": "files",
            "name": "books",
            "folder": str(folder),
            "paths": ["*/*.md"],
            "manifest": "copy.sha256",
            "license": "x",
        }
    )


def test_a_copy_gives_what_the_commit_gives(repository, tmp_path):
    folder, commit = repository
    manifest = {"Bob/Two.md": "Book two.", "Ann/Ärger.md": "Book one."}
    copy = tmp_path / "copy"
    for path, text in {**manifest, "Bob/Unnamed.md": "Not in the manifest.", "Top.md": "Other level."}.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(text, encoding="utf-8")
    sources = [git_source(folder, commit, tmp_path, manifest), copied_source(copy, tmp_path, manifest)]
    for number, source in enumerate(sources):
        documents = source_documents(source, root=tmp_path, downloads=tmp_path / "downloads")
        write_source(documents, "books", tmp_path / f"{number}.jsonl.zst")
    assert (tmp_path / "0.jsonl.zst").read_bytes() == (tmp_path / "1.jsonl.zst").read_bytes()
    (copy / "Bob/Two.md").write_text("Book two!", encoding="utf-8")
    with pytest.raises(DataError, match=r"Two\.md of source 'books': sha256 is .* copy\.sha256 pins"):
        texts(sources[1], tmp_path)
    (copy / "Bob/Two.md").unlink()
    with pytest.raises(
        DataError, match=r"no path fits file 'Bob/Two\.md' that manifest copy\.sha256 names \(1 missing"
    ):
        texts(sources[1], tmp_path)


def test_git_commit_that_cannot_be_had(repository, tmp_path):
    folder, _ = repository
    for location, commit in ((folder, REVISION), (tmp_path / "nowhere", REVISION)):
        with pytest.raises(DataError, match=r"git .* failed for file://") as caught:
            texts(git_source(location, commit, tmp_path, {"Bob/Two.md": "Book two."}), tmp_path)
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / "downloads").glob("*"))


def test_git_manifest_lines_are_checked(tmp_path):
    (tmp_path / "bad.sha256").write_text("not a hash\n")
    with pytest.raises(DataError, match="line 1: expected"):
        read_manifest(tmp_path / "bad.sha256")
    with pytest.raises(DataError, match="does not exist"):
        read_manifest(tmp_path / "none.sha256")


def hub_cache(home: Path) -> Path:
    """A hub cache with one data set of two subsets, laid out as huggingface_hub lays it out."""
    base = home / "hub" / "datasets--some--texts"
    snapshot = base / "snapshots" / REVISION
    (base / "blobs").mkdir(parents=True)
    front = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
    front += "- config_name: sample\n  data_files:\n  - split: train\n    path: sample/*\n---\n# Texts\n"
    files = {"README.md": front.encode(), "data/x/0.jsonl": b'{"text": "Not wanted."}\n'}
    for number in range(3):
        pd.DataFrame({"text": [f"Text {number}a.", f"Text {number}b."]}).to_parquet(home / "t.parquet")
        files[f"sample/00{number}.parquet"] = (home / "t.parquet").read_bytes()
    for name, data in files.items():
        blob = base / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    return snapshot


def run_fetch(settings, output, tmp_path, **environment):
    command = [sys.executable, str(ROOT / "scripts" / "fetch_source.py"), "--settings", json.dumps(settings)]
    command += ["--downloads", str(tmp_path / "downloads"), "--output", str(output)]
    limit = environment.pop("file_size_limit", None)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))),
    )


def test_hub_source_from_the_cache_alone(tmp_path):
    hub_cache(tmp_path)
    settings = {"kind": "hub", "name": "texts", "repository": "some/texts", "revision": REVISION, "license": "x"}
    settings |= {"subset": "sample", "max_bytes": 20}
    output = tmp_path / "texts.jsonl.zst"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = run_fetch(settings, output, tmp_path, **offline)
    assert done.returncode == 0, done.stderr
    assert [d["text"] for d in load_documents(output)] == ["Text 0a.", "Text 0b.", "Text 1a."]
    manifest = json.loads((tmp_path / "texts.jsonl.zst.manifest.json").read_text())
    assert manifest["counts"] == {"documents": 3, "text_bytes": 24}
    assert manifest["settings"]["revision"] == REVISION
    output.unlink()
    done = run_fetch({**settings, "revision": REVISION[::-1]}, output, tmp_path, **offline)
    assert done.returncode == 1
    assert done.stderr.startswith("error: source 'texts': some/texts at revision")
    assert done.stderr.count("\n") == 1
    assert not output.exists()


class HubHandler(BaseHTTPRequestHandler):
    """Answers as a hub does: the tree of one revision, and its files with commit and checksum in the headers."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        head = {"X-Repo-Commit": REVISION}
        if path == f"/api/datasets/some/texts/tree/{REVISION}":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            return self.answer(200, json.dumps(entries).encode(), head | {"Content-Type": "application/json"})
        name = path.removeprefix(f"/datasets/some/texts/resolve/{REVISION}/")
        if name in self.files:
            data = self.files[name]
            return self.answer(200, data, head | {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
        return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})

    do_HEAD = do_GET

    def answer(self, status, data, head):
        self.send_response(status)
        for key, value in {**head, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *arguments):
        """No log: requests would fill the output of the tests."""


def test_hub_source_from_a_server(tmp_path):
    front = "---\nconfigs:\n- config_name: sample\n  data_files: sample/*\n---\n"
    HubHandler.files = {"README.md": front.encode(), "other/0.jsonl": b'{"text": "Not wanted."}\n'}
    HubHandler.files |= {"sample/1.jsonl": b'{"text": "Second."}\n', "sample/0.jsonl": b'{"text": "First."}\n'}
    settings = {"kind": "hub", "name": "texts", "repository": "some/texts", "revision": REVISION, "license": "x"}
    settings |= {"subset": "sample"}
    output = tmp_path / "texts.jsonl.zst"
    with ThreadingHTTPServer(("127.0.0.1", 0), HubHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        online = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path), "no_proxy": "*"}
        online |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = run_fetch(settings, output, tmp_path, **online)
        assert done.returncode == 0, done.stderr
        missing = run_fetch({**settings, "revision": REVISION[::-1]}, tmp_path / "no.jsonl.zst", tmp_path, **online)
        server.shutdown()
    assert [d["text"] for d in load_documents(output)] == ["First.", "Second."]
    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1].startswith("error: source 'texts': some/texts at revision")
    assert "Traceback" not in missing.stderr


def test_hub_without_network(monkeypatch):
    import huggingface_hub
    from huggingface_hub import constants

    refused = type("ConnectError", (Exception,), {"__module__": "httpx2"})

    def refuse(*arguments, **more):
        raise refused("Connection refused")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(ConnectError: Connection refused\); check the names"):
        list_files(hub_settings())


def hub_settings(**more):
    return parse_source(
        {"kind": "hub", "name": "t", "repository": "some/texts", "revision": REVISION, "license": "x", **more}
    )


def test_files_of_a_split():
    names = ["README.md", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    names += ["data/test-00000-of-00001.parquet", "extra/train.jsonl"]
    assert split_files(names, [], hub_settings()) == [names[1], names[2], names[4]]
    assert split_files(names, [], hub_settings(subset="extra")) == ["extra/train.jsonl"]
    assert split_files(names, [], hub_settings(split="test")) == ["data/test-00000-of-00001.parquet"]
    configs = [{"config_name": "a", "data_files": "data/train-*"}, {"config_name": "b", "data_dir": "extra"}]
    assert split_files(names, configs, hub_settings(subset="a")) == names[1:3]
    assert split_files(names, configs, hub_settings(subset="b")) == ["extra/train.jsonl"]
    with pytest.raises(DataError, match=r"has no subset 'c' \(it has a, b\)"):
        split_files(names, configs, hub_settings(subset="c"))
    with pytest.raises(DataError, match="split 'validation'"):
        split_files(names, [], hub_settings(split="validation"))


def test_full_disk_leaves_nothing_behind(tmp_path):
    """The limit on the size of a file stands for a full disk: writing fails in the middle."""
    (tmp_path / "a.txt").write_bytes(os.urandom(60_000).hex().encode())
    output = tmp_path / "out" / "own.jsonl.zst"
    settings = {"kind": "files", "name": "own", "paths": [str(tmp_path / "a.txt")], "license": "x"}
    done = run_fetch(settings, output, tmp_path, file_size_limit=10_000)
    assert done.returncode == 1
    assert f"cannot write {output}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(output.parent.iterdir()) == []
