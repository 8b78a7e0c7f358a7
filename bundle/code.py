"""The code of a commit, as files to pack."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from .archive import Entry, check_name
from .errors import BundleError


def git(root: Path, *arguments: str) -> str:
    """What ``git`` prints, without white space at the end. Raises :class:`BundleError` with git's own message."""
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BundleError(f"git {arguments[0]} in {root}: {result.stderr.strip()}; pack from a clone of the repository")
    return result.stdout.rstrip()


def uncommitted(root: Path) -> list[str]:
    """Paths that git knows and that differ from HEAD."""
    return [line[3:] for line in git(root, "status", "--porcelain", "--untracked-files=no").splitlines()]


def export_code(root: Path, folder: Path) -> dict[str, Entry]:
    """Files of HEAD, written below ``folder``, as entries of an archive.

    Each keeps the time of modification of the file in the working tree: Snakemake then finds the same inputs newer or
    older than the packed outputs as it does here. (`git archive` would give all the time of the commit.)
    """
    archive = folder / "code.tar"
    git(root, "archive", "--format=tar", f"--output={archive}", "HEAD")
    entries = {}
    with tarfile.open(archive) as opened:
        for info in opened:
            if info.isdir():
                continue
            stream = opened.extractfile(info) if info.isreg() else None
            if stream is None:
                raise BundleError(f"{info.name} in the repository is no regular file; commit it as a file")
            target = folder / "code" / check_name(info.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(stream.read())
            target.chmod(0o755 if info.mode & 0o100 else 0o644)
            here = root / info.name
            entries[info.name] = Entry(target, here.stat().st_mtime_ns if here.is_file() else int(info.mtime) * 10**9)
    archive.unlink()
    return entries
