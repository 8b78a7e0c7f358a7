"""Unpack the bundle beside this program, install it without network, run targets, pack the results.

    bash run --target fig3 --minutes 25                  # results lie in ./results-out
    bash run --target fig3 --results ./results-out       # go on from there

The results are packed also when the run failed or was stopped. Exit codes: 0 all targets are made, 1 the run failed,
124 stopped by --minutes, 130 or 143 stopped by SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import records
from .archive import read_manifest, unpack_archive
from .errors import BundleError
from .install import check_machine, clean_environment, install
from .parts import MIB
from .results import KERNEL_CACHE, pack_results, restore_results
from .stopping import run_until

STEM = "bundle"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line; raises :class:`BundleError` for values that contradict each other."""
    parser = argparse.ArgumentParser(
        prog="run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", nargs="+", default=[], help="targets of Snakemake (default: the whole workflow)")
    parser.add_argument("--cores", default="all", help="cores for Snakemake (default: %(default)s)")
    parser.add_argument("--python", help="Python that installs and runs all (default: python3)")
    parser.add_argument("--system-torch", action="store_true", help="that Python's torch, even if the bundle holds one")
    parser.add_argument("--keep-folder", type=Path, help="unpack here and leave it: a later run goes on in it at once")
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        help="folders of packed results to go on from, of one or more runs",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results-out"), help="packed results (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=float, help="limit for everything, unpacking and packing included")
    parser.add_argument(
        "--reserve-minutes", type=float, default=3.0, help="of --minutes, kept for packing (default: %(default)s)"
    )
    parser.add_argument("--grace-seconds", type=float, default=60.0, help="for jobs to save when stopped (%(default)s)")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--with-weights", dest="weights", action="store_true", default=None, help="pack weights, too")
    weights.add_argument(
        "--without-weights",
        dest="weights",
        action="store_false",
        help="never pack weights and checkpoints (default: when the run did not finish, since the next needs them)",
    )
    parser.add_argument("--part-mib", type=int, help="greatest size of a part of the results (default: the bundle's)")
    arguments = parser.parse_args(argv)
    if arguments.minutes is not None and arguments.minutes <= arguments.reserve_minutes:
        raise BundleError(
            f"--minutes {arguments.minutes:g} leaves nothing beside --reserve-minutes {arguments.reserve_minutes:g}; "
            f"give more of the one or less of the other"
        )
    return arguments


def unpack(here: Path, root: Path, identity: str) -> None:
    """Unpack the bundle in ``here`` below ``root``, unless the same is there; Snakemake's records are moved.

    Raises :class:`BundleError` when ``root`` holds another bundle or other files.
    """
    stamp = root / ".bundle"
    if stamp.is_file():
        if stamp.read_text(encoding="utf-8") == identity:
            print(f"{root}: this bundle is unpacked there already", flush=True)
            return
        raise BundleError(
            f"{root} holds another bundle; name another --keep-folder, and its packed results as --results"
        )
    started = root / ".unpacking"
    if root.is_dir() and any(root.iterdir()) and not started.is_file():
        raise BundleError(f"{root} is not empty; name a new or empty --keep-folder")
    root.mkdir(parents=True, exist_ok=True)
    started.touch()
    manifest = unpack_archive(here, STEM, root)
    moved = [name for name in manifest["files"] if name.startswith(f"{records.RECORDS}/")]
    records.move_records(root, moved, manifest["root"])
    # Where it is absent, Snakemake takes the records for those of an older version.
    (root / records.UNFINISHED).mkdir(parents=True, exist_ok=True)
    started.rename(stamp)
    stamp.write_text(identity, encoding="utf-8")


def workflow_environment(root: Path, programs: Path) -> dict[str, str]:
    """The environment of Snakemake: the installed programs first, every hub and index switched off."""
    environment = clean_environment()
    environment["PATH"] = os.pathsep.join([str(programs), environment.get("PATH", os.defpath)])
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "PIP_NO_INDEX")
    environment.setdefault("TRITON_CACHE_DIR", str(root / KERNEL_CACHE))
    return {**environment, **dict.fromkeys(offline, "1"), "TOKENIZERS_PARALLELISM": "false"}


class Signals:
    """SIGTERM and SIGINT as a wish to stop, so that results are packed still. ``number`` is the last, or None."""

    def __init__(self) -> None:
        self.number: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.number = number


def run_targets(
    root: Path,
    programs: Path,
    manifest: Mapping[str, Any],
    arguments: argparse.Namespace,
    started: float,
    signals: Signals,
) -> tuple[str, int]:
    """Run Snakemake; returns the state (finished, failed, stopped) and the exit code."""
    seconds = None
    if arguments.minutes is not None:
        seconds = max(0.0, (arguments.minutes - arguments.reserve_minutes) * 60 - (time.monotonic() - started))
    command = [str(programs / "python"), "-m", "snakemake", "--cores", arguments.cores, *arguments.target]
    # What the data of such a bundle were made from stayed behind: to Snakemake's other triggers it would be missing.
    command += ["--rerun-triggers", "mtime"] if manifest.get("targets") else []
    code, stopped = run_until(
        [*command, "--configfile", manifest["config"]],
        root,
        workflow_environment(root, programs),
        seconds=seconds,
        stopped=lambda: signals.number is not None,
        grace_seconds=arguments.grace_seconds,
    )
    if stopped:
        return "stopped", 124 if signals.number is None else 128 + signals.number
    return ("finished", 0) if code == 0 else ("failed", 1)


def prepare(here: Path, root: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Unpack, restore, install; returns the manifest of the bundle and the folder of the installed programs."""
    manifest = read_manifest(here, STEM)
    check_machine(manifest)
    identity = hashlib.sha256((here / f"{STEM}.json").read_bytes()).hexdigest()
    # Before anything that takes time, so that a wrong --results is told at once.
    for packed in arguments.results:
        if not packed.exists():
            raise BundleError(f"--results {packed} does not exist; name the folder with results.json")
    unpack(here, root, identity)
    for packed in arguments.results:
        before = restore_results(packed, root, manifest["preset"])
        print(f"restored {len(before['files'])} files of a run that {before['state']}", flush=True)
    programs = install(root, manifest, system_torch=arguments.system_torch or not manifest["torch"], identity=identity)
    return manifest, programs


def run_and_pack(
    root: Path, programs: Path, manifest: Mapping[str, Any], arguments: argparse.Namespace, started: float
) -> int:
    """Run the targets, pack the results whatever came of it; returns the exit code."""
    signals = Signals()
    state, code = run_targets(root, programs, manifest, arguments, started, signals)
    print(f"the workflow {state}; packing its results", flush=True)
    weights = state != "finished" if arguments.weights is None else arguments.weights
    packed = pack_results(
        root,
        arguments.output,
        manifest,
        weights=weights,
        part_bytes=(arguments.part_mib or manifest["part_mib"]) * MIB,
        facts={"state": state, "exit_code": code, "targets": arguments.target},
    )
    size = sum(part["bytes"] for part in packed["parts"]) / MIB
    print(
        f"{arguments.output}: {len(packed['parts'])} parts, {size:.1f} MiB, {'with' if weights else 'without'} weights",
        flush=True,
    )
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    started = time.monotonic()
    temporary = None
    try:
        arguments = parse(argv)
        # The folder of run.pyz; an absolute path, since the folder in which this was started may be another.
        here = Path(sys.argv[0]).resolve().parent
        if arguments.keep_folder is None:
            temporary = tempfile.mkdtemp(prefix="hwh-bundle-")
        root = Path(os.path.realpath(temporary or arguments.keep_folder))
        manifest, programs = prepare(here, root, arguments)
        try:
            return run_and_pack(root, programs, manifest, arguments, started)
        except BaseException:
            if temporary is not None:
                print(f"error: the results could not be packed; they are left in {temporary}", file=sys.stderr)
                temporary = None
            raise
    except (BundleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
