"""Documents of one commit of a git repository, each pinned by sha256."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ..files import atomic_directory
from ..locks import only_writer
from ..scripting import die_with_the_parent
from .documents import check_text, decode_text
from .errors import DataError
from .manifests import read_manifest
from .patterns import path_matches


def git_documents(source: Any, root: Path, downloads: Path) -> Iterator[dict[str, str]]:
    """Documents of a ``git`` source: the files of the manifest that fit ``pattern``, by path.

    Only this commit is fetched, into a bare repository below ``downloads``; nothing is checked out. Raises
    :class:`DataError` when the commit cannot be fetched, a file of the manifest is not in it, its sha256 differs, or
    it is not UTF-8 or empty.
    """
    manifest = read_manifest(root / source.manifest)
    unfitting = [path for path in manifest if not path_matches(path, source.pattern)]
    if unfitting:
        raise DataError(
            f"source {source.name!r}: manifest {source.manifest} names {unfitting[0]!r}, which does not fit pattern "
            f"{source.pattern!r}; correct one of them"
        )
    folder = _fetched_commit(source, downloads)
    blobs = _blobs(folder, source)
    missing = [path for path in manifest if path not in blobs]
    if missing:
        raise DataError(
            f"source {source.name!r}: commit {source.commit[:12]} holds no file {missing[0]!r} that manifest "
            f"{source.manifest} names ({len(missing)} missing); correct commit or manifest"
        )
    paths = sorted(manifest)
    for path, data in zip(paths, _read_blobs(folder, source, [blobs[path] for path in paths]), strict=True):
        where = f"file {path} of source {source.name!r}"
        actual = hashlib.sha256(data).hexdigest()
        if actual != manifest[path]:
            raise DataError(
                f"{where}: sha256 is {actual}, but manifest {source.manifest} pins {manifest[path]}; correct it"
            )
        text = decode_text(data, where)
        check_text(text, where)
        title = PurePosixPath(path).stem
        yield {"id": f"{source.name}/{path}", "source": source.name, "title": title, "text": text}


def _git(arguments: list[str], source: Any, folder: Path | None = None, data: bytes | None = None) -> bytes:
    if shutil.which("git") is None:
        raise DataError(f"source {source.name!r} needs the program git, which is not installed; install git")
    command = ["git", *(["-C", str(folder)] if folder else []), *arguments]
    # Never ask for a password: a private or misspelt repository must fail, not hang.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    result = subprocess.run(command, input=data, capture_output=True, env=environment, preexec_fn=die_with_the_parent())
    if result.returncode != 0:
        message = (result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise DataError(
            f"source {source.name!r}: git {arguments[0]} failed for {source.repository} at {source.commit[:12]} "
            f"({message}); check repository, commit and network"
        )
    return result.stdout


def _fetched_commit(source: Any, downloads: Path) -> Path:
    """Bare repository that holds the commit; it gets its final name only when the fetch is complete."""
    target = downloads / f"git-{source.commit[:12]}.git"
    if target.is_dir():
        return target
    # Another process may be fetching the same commit: once it has, there is nothing left to do.
    with only_writer(downloads / f".{target.name}.fetch", target):
        if target.is_dir():
            return target
        with atomic_directory(target) as temporary:
            _git(["init", "--quiet", "--bare", str(temporary)], source)
            fetch = ["fetch", "--quiet", "--depth", "1", "--no-tags", "--", source.repository, source.commit]
            try:
                _git(fetch, source, temporary)
            except DataError:
                # A server may refuse single commits that no branch ends in: then all branches are needed.
                _git(["fetch", "--quiet", "--", source.repository, "+refs/heads/*:refs/heads/*"], source, temporary)
            _git(["cat-file", "-e", f"{source.commit}^{{commit}}"], source, temporary)
    return target


def _blobs(folder: Path, source: Any) -> dict[str, str]:
    """``{path: object name}`` of the regular files of the commit; links and submodules are left out."""
    listing = _git(["ls-tree", "-r", "-z", "--full-tree", source.commit], source, folder)
    blobs = {}
    for entry in filter(None, listing.split(b"\0")):
        head, _, path = entry.partition(b"\t")
        mode, kind, name = head.decode().split()
        if kind == "blob" and mode in ("100644", "100755"):
            blobs[path.decode("utf-8", "surrogateescape")] = name
    return blobs


def _read_blobs(folder: Path, source: Any, names: list[str]) -> Iterator[bytes]:
    """Contents of objects, 64 a process: one process an object would be slow, one for all would need much memory."""
    for begin in range(0, len(names), 64):
        chunk = names[begin : begin + 64]
        output = _git(["cat-file", "--batch"], source, folder, "".join(f"{name}\n" for name in chunk).encode())
        position = 0
        for name in chunk:
            end = output.index(b"\n", position)
            header = output[position:end].split()
            if len(header) != 3:
                raise DataError(f"source {source.name!r}: object {name} is missing in {folder}; delete it, fetch anew")
            size = int(header[2])
            yield output[end + 1 : end + 1 + size]
            position = end + 1 + size + 1
