"""Pack code, data of a preset and wheels into an archive of parts, with a program that runs it without network.

    python -m bundle.pack --preset single_gpu --python-version 3.12 --output bundles/single_gpu

Run it where the workflow is installed, from the root of the repository, on a machine with network.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipapp
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import records
from .archive import Entry, write_archive
from .code import export_code, git, uncommitted
from .errors import BundleError
from .parts import MIB
from .wheels import download_torch, download_wheels, read_pins, split_torch

ROOT = Path(__file__).resolve().parents[1]
STEM = "bundle"
# What travels beside the parts: standard library only.
RUN_MODULES = ("__init__", "archive", "errors", "install", "parts", "records", "results", "runner", "stopping")


def preset_file(preset: str) -> str:
    """Path of a preset below the root. Raises :class:`BundleError` for an unknown one, and names those that exist."""
    names = {("laptop" if file.stem == "config" else file.stem): file for file in (ROOT / "config").glob("*.yaml")}
    if preset not in names:
        raise BundleError(f"--preset {preset!r} is unknown; expected one of {', '.join(sorted(names))}")
    return names[preset].relative_to(ROOT).as_posix()


def data_targets(preset: Any) -> list[str]:
    """What Snakemake makes before packing: downloads, rows, documents, tokenizers, token stores and needle prompts.

    Models with random weights (tests) need no network and are made on the other machine.
    """
    stores = [
        f"results/{preset.preset}/data/{tokenizer.name}/{split}/index.json"
        for tokenizer in preset.tokenizers
        for split in ("train", "held_out")
    ]
    prompts = [
        f"results/{preset.preset}/data/{tokenizer}/niah_prompts/niah.parquet"
        for tokenizer in sorted({scale.tokenizer for scale in preset.hwh.scales})
    ]
    return ["fetch", *stores, *prompts]


def _snakemake(config: str, *arguments: str, capture: bool = False) -> str:
    command = [sys.executable, "-m", "snakemake", *arguments, "--configfile", config]
    result = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE if capture else None, check=False)
    if result.returncode != 0:
        raise BundleError(f"snakemake {' '.join(arguments)} failed; its message stands above")
    return result.stdout or ""


def made_files(summary: str) -> list[str]:
    """Output paths in what ``snakemake --summary`` prints."""
    lines = summary.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("output_file\t")), None)
    if start is None:
        raise BundleError("snakemake --summary printed no table; run it by hand to see why")
    return [line.split("\t")[0] for line in lines[start + 1 :] if "\t" in line]


def needed_files(plan: str) -> list[str]:
    """Paths that the jobs of a plan read, in what ``snakemake --dry-run`` prints; some are made by other jobs of it."""
    lines = [match[1] for match in re.finditer(r"^ +input: (.+)$", plan, re.MULTILINE)]
    return sorted({path for line in lines for path in line.split(", ")})


def data_files(root: Path, preset: Any, outputs: Sequence[str], with_sources: bool = True) -> list[str]:
    """Relative paths of the data to pack: what ``outputs`` stand for, with the undeclared files beside them.

    A model or a set of rows is known to Snakemake by one file of its folder; a source, samples of a probe, or the
    documents of a split, by one file with its manifest. ``with_sources``: files that a source or the samples of the
    behaviour scores name and that git does not know come along. Raises :class:`BundleError` for a missing output.
    """
    found: set[Path] = set()
    for output in outputs:
        path = root / output
        if not path.is_file():
            raise BundleError(f"{output} is missing; pack without --no-make, so that Snakemake makes it")
        alone = path.parent in (root / "resources" / "sources", root / "resources" / "samples")
        if alone or path.parent.name == "documents":
            found.update(path.parent.glob(glob.escape(path.name) + "*"))
        else:
            found.update(path.parent.rglob("*"))
    tracked = set(git(root, "ls-files", "-z").split("\0"))
    patterns = [
        pattern for source in preset.data.sources if source.kind == "files" and with_sources
        for pattern in source.patterns()
    ]  # fmt: skip
    if with_sources and (samples := preset.pretrained.behavior.sample_source()) is not None:
        patterns += map(glob.escape, samples[1])
    for pattern in patterns:
        paths = map(Path, glob.glob(str(root / pattern), recursive=True))
        # Files elsewhere on this machine stay behind: what was made of them is packed.
        inside = [path for path in paths if path.is_relative_to(root)]
        found.update(path for path in inside if path.relative_to(root).as_posix() not in tracked)
    return sorted(
        path.relative_to(root).as_posix()
        for path in found
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    )


def write_program(folder: Path) -> None:
    """Write ``run`` and ``run.pyz``, by which the other machine unpacks and runs the bundle."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        package = Path(temporary) / "program" / "bundle"
        package.mkdir(parents=True)
        for module in RUN_MODULES:
            shutil.copy(here / f"{module}.py", package)
        main = "import sys\n\nfrom bundle.runner import main\n\nsys.exit(main())\n"
        (package.parent / "__main__.py").write_text(main, encoding="utf-8")
        zipapp.create_archive(package.parent, folder / "run.pyz", compressed=True)
    shutil.copy(here / "run", folder / "run")
    (folder / "run").chmod(0o755)


def pack(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make what is missing, fetch wheels, write the bundle; returns its manifest. Raises :class:`BundleError`."""
    from hwh_core.config import load_preset

    config = preset_file(arguments.preset)
    if not re.fullmatch(r"3\.\d+", arguments.python_version):
        raise BundleError(f"--python-version {arguments.python_version!r}: expected for example 3.12")
    if set(arguments.without) - {"torch"}:
        raise BundleError(f"--without {' '.join(arguments.without)}: only torch can be left out")
    changed = uncommitted(ROOT)
    if changed and not arguments.allow_dirty:
        raise BundleError(
            f"{len(changed)} files differ from HEAD ({', '.join(changed[:5])}), and a bundle holds HEAD only; commit "
            f"them, or give --allow-dirty to leave them behind"
        )
    if changed:
        print(f"WARNING: changes of {len(changed)} files are not in this bundle: {', '.join(changed)}", file=sys.stderr)
    preset = load_preset(ROOT / config)
    targets = data_targets(preset)
    if arguments.make:
        _snakemake(config, "--cores", arguments.cores, *targets)
    made = made_files(_snakemake(config, "--summary", *targets, capture=True))
    if arguments.targets:
        needed = set(needed_files(_snakemake(config, "--dry-run", *arguments.targets, capture=True)))
        made = [path for path in made if path in needed]
    data = data_files(ROOT, preset, made, with_sources=not arguments.targets)
    pins = read_pins(ROOT / "requirements", ["run", *arguments.extras])
    others, torch = split_torch(pins)
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=output) as temporary:
        wheels = Path(temporary) / "wheels"
        wheels.mkdir()
        print(
            f"fetching {len(others)} wheels for Python {arguments.python_version} on {arguments.platform}", flush=True
        )
        download_wheels(others, wheels, arguments.python_version, arguments.platform)
        if "torch" in arguments.without:
            torch = []
        else:
            download_torch(torch, others, wheels, arguments.python_version, arguments.platform)
        entries = export_code(ROOT, Path(temporary))
        packed = set(data)
        names = [*data, *records.records_of(ROOT, packed.__contains__, (records.RECORDS,))]
        entries.update({name: Entry(ROOT / name) for name in names})
        entries.update({f"wheels/{wheel.name}": Entry(wheel) for wheel in sorted(wheels.glob("*.whl"))})
        facts = {
            "kind": "bundle",
            "preset": preset.preset,
            "config": config,
            "python": arguments.python_version,
            "platform": arguments.platform,
            "extras": arguments.extras,
            "targets": arguments.targets,
            "requirements": others,
            "torch": torch,
            "commit": git(ROOT, "rev-parse", "HEAD"),
            "uncommitted": changed,
            "root": os.path.realpath(ROOT),
            "part_mib": arguments.part_mib,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        print(f"packing {len(entries)} files", flush=True)
        part_bytes = arguments.part_mib * MIB
        manifest = write_archive(entries, output, STEM, part_bytes, level=arguments.level, facts=facts)
    write_program(output)
    return manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="laptop", help="preset whose data are packed (default: %(default)s)")
    parser.add_argument(
        "--python-version",
        default=f"{sys.version_info[0]}.{sys.version_info[1]}",
        help="of the other machine (%(default)s)",
    )
    parser.add_argument("--platform", default="manylinux_2_28_x86_64", help="wheel platform tag (default: %(default)s)")
    parser.add_argument("--extras", nargs="*", default=[], help="layers of requirements/ over run: gpu, slurm")
    parser.add_argument(
        "--without",
        nargs="*",
        default=["torch"],
        help="torch: the other machine has its own (default); nothing: pack it",
    )
    parser.add_argument(
        "--targets", nargs="*", default=[], help="pack only data that jobs of these targets read (default: all data)"
    )
    parser.add_argument(
        "--part-mib", type=int, default=60, help="greatest size of a part in MiB (default: %(default)s)"
    )
    parser.add_argument("--level", type=int, default=6, choices=range(10), help="level of xz (default: %(default)s)")
    parser.add_argument("--cores", default="all", help="cores for what Snakemake makes before packing")
    parser.add_argument("--no-make", dest="make", action="store_false", help="pack data that are there, make nothing")
    parser.add_argument("--allow-dirty", action="store_true", help="pack HEAD although files differ from it")
    parser.add_argument("--output", type=Path, required=True, help="folder of the bundle")
    try:
        manifest = pack(parser.parse_args(argv))
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = sum(part["bytes"] for part in manifest["parts"]) / MIB
    print(f"{len(manifest['parts'])} parts, {size:.1f} MiB; copy the whole folder, then there: bash run --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
