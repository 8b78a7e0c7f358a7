"""Wheels of the pinned packages for another Python version and platform, fetched with pip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import BundleError

LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# What `without torch` leaves out: torch and what its builds bring.
TORCH = re.compile(r"^(torch|triton|nvidia-.*|cuda-.*)$")
_MISSING = re.compile(r"No matching distribution found for (\S+)")


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def platform_tags(platform: str) -> list[str]:
    """``platform`` and every older manylinux tag that a machine of it also runs; other platforms stay alone.

    pip compares ``--platform`` literally (PEP 600 says what a newer tag implies).
    """
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if match is None:
        return [platform]
    newest, machine = int(match[1]), match[2]
    tags = []
    for minor in range(newest, 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in LEGACY:
            tags.append(f"{LEGACY[minor]}_{machine}")
    return [*tags, f"linux_{machine}"]


def read_pins(folder: Path, layers: Sequence[str]) -> list[str]:
    """The lines ``name==version`` of ``<layer>.txt`` in ``folder``, once each, sorted.

    Raises :class:`BundleError` for a layer without a list, or a line that is no exact version.
    """
    pins = {}
    for layer in layers:
        path = folder / f"{layer}.txt"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in folder.glob("*.txt") if file.stem != "cuda-constraints"))
            raise BundleError(f"extra {layer!r} has no list {path}; known: {known}")
        for line in path.read_text(encoding="utf-8").splitlines():
            text = line.split("#")[0].strip()
            if not text or text.startswith("-"):
                continue
            if not re.fullmatch(r"[\w.\-\[\]]+==[\w.+!]+", text):
                raise BundleError(f"{path}: {text!r} is no exact version name==version; run `make pins`")
            pins[normal(text.split("==")[0])] = text
    return [pins[name] for name in sorted(pins)]


def split_torch(pins: Sequence[str]) -> tuple[list[str], list[str]]:
    """``pins`` as those without torch and its companions, and those of torch and its companions."""
    torch = [pin for pin in pins if TORCH.match(normal(pin.split("==")[0]))]
    return [pin for pin in pins if pin not in torch], torch


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
    return (lines or result.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("ERROR: ")


def download_wheels(pins: Sequence[str], folder: Path, python_version: str, platform: str) -> None:
    """Put one wheel a pin into ``folder``.

    A package that has no wheel for the target is built here from its source and taken when the wheel is of pure Python.
    Raises :class:`BundleError` when a package is not to be had, or its wheel would fit this machine only.
    """
    selection = ["--implementation", "cp", "--python-version", python_version]
    for tag in platform_tags(platform):
        selection += ["--platform", tag]
    waiting = list(pins)
    while waiting:
        result = _pip("download", "--no-deps", "--only-binary", ":all:", *selection, "--dest", str(folder), *waiting)
        if result.returncode == 0:
            return
        missing = _MISSING.search(result.stderr)
        if missing is None or missing[1] not in waiting:
            raise BundleError(
                f"pip cannot fetch the wheels: {_reason(result)}; check the network and the package index"
            )
        waiting.remove(missing[1])
        _build_wheel(missing[1], folder, python_version, platform)


def _build_wheel(pin: str, folder: Path, python_version: str, platform: str) -> None:
    before = set(folder.glob("*.whl"))
    result = _pip("wheel", "--no-deps", "--no-binary", pin.split("==")[0], "--wheel-dir", str(folder), pin)
    if result.returncode != 0:
        raise BundleError(
            f"{pin} has no wheel for Python {python_version} on {platform}, and none can be built from source here "
            f"({_reason(result)}); choose a Python or platform for which it has one"
        )
    for wheel in set(folder.glob("*.whl")) - before:
        if not wheel.name.endswith("-none-any.whl"):
            wheel.unlink()
            raise BundleError(
                f"{pin} has no wheel for Python {python_version} on {platform}; the one built here, {wheel.name}, fits "
                f"this machine only: choose a Python or platform for which it has one"
            )


def download_torch(
    pins: Sequence[str], others: Sequence[str], folder: Path, python_version: str, platform: str
) -> None:
    """Put torch and all that it depends on into ``folder``; ``others`` are the pins of packages already there.

    Raises :class:`BundleError` when pip cannot fetch it.
    """
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join([*pins, *others]) + "\n", encoding="utf-8")
    selection = ["--implementation", "cp", "--python-version", python_version]
    for tag in platform_tags(platform):
        selection += ["--platform", tag]
    torch = [pin for pin in pins if normal(pin.split("==")[0]) == "torch"]
    result = _pip(
        *("download", "--only-binary", ":all:", *selection, "--constraint", str(constraints)),
        *("--find-links", str(folder), "--dest", str(folder), *torch),
    )
    constraints.unlink()
    if result.returncode != 0:
        raise BundleError(
            f"pip cannot fetch {' '.join(torch)} for Python {python_version} on {platform}: {_reason(result)}; "
            f"give pip an index that has it, or leave torch to the other machine (--without torch)"
        )
