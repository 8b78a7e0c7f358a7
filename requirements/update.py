"""Write the exact versions in requirements/*.txt anew from the names in requirements/*.in.

    python requirements/update.py                 # keep the versions that stand there, add what is new
    python requirements/update.py --upgrade NAME  # let one package move to its newest version (may be repeated)
    python requirements/update.py --upgrade-all

pip resolves the versions without installing anything. `gpu`, `slurm` and `dev` are layers over `run`: they never change
a version of it. torch keeps its public version (2.13.0 stands for its CPU and its CUDA builds), and what its CUDA build
brings is pinned in cuda-constraints.txt, which asks for nothing on its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LAYERS = ("run", "dev", "gpu", "slurm")
CUDA = re.compile(r"^(nvidia-|cuda-|triton$)")


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """Names (compared form) and versions of the `name==version` lines of a file; none if it does not exist."""
    if not path.is_file():
        return {}
    lines = (line.split("#")[0].split(";")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("-"))
    return {normal(name.split("[")[0].strip()): version.strip() for name, version in pairs}


def asked_for(layer: str) -> set[str]:
    """Names (compared form) that a layer's list asks for itself."""
    text = (FOLDER / f"{layer}.in").read_text(encoding="utf-8")
    lines = (line.split("#")[0].split(";")[0].strip() for line in text.splitlines())
    return {normal(re.split(r"[<>=!~\[ ]", line)[0]) for line in lines if line}


def resolve(layer: str, constraints: dict[str, str]) -> dict[str, str]:
    """Names as their projects write them and the versions that pip would install for one layer."""
    with tempfile.TemporaryDirectory() as folder:
        limits, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        limits.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
             "--report", str(report), "-r", str(FOLDER / f"{layer}.in"), "-c", str(limits)],
            check=True,
        )  # fmt: skip
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"]: item["metadata"]["version"].split("+")[0] for item in found}


def main() -> None:
    """Resolve every layer and write its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="append", default=[], metavar="NAME", help="package that may move")
    parser.add_argument("--upgrade-all", action="store_true", help="every package may move")
    arguments = parser.parse_args()
    moving = {normal(name) for name in arguments.upgrade}
    base: dict[str, str] = {}
    for layer in LAYERS:
        target = FOLDER / f"{layer}.txt"
        old = {} if arguments.upgrade_all else {n: v for n, v in read_pins(target).items() if n not in moving}
        # Triton in the test layer is the one that torch's CUDA build brings.
        found = resolve(layer, {**old, **base, **read_pins(FOLDER / "cuda-constraints.txt")})
        asked = asked_for(layer)
        own = {
            name: version
            for name, version in found.items()
            if normal(name) not in base and (normal(name) in asked or not CUDA.match(name))
        }
        if layer == "run":
            base = {normal(name): version for name, version in own.items()}
            head = ["-c cuda-constraints.txt"]
        else:
            head = ["-r run.txt"]
        lines = [f"{name}=={version}" for name, version in sorted(own.items(), key=lambda item: normal(item[0]))]
        note = (
            f"# Exact versions for {layer}.in; written by requirements/update.py, tried on Python 3.11, 3.12 and 3.13."
        )
        target.write_text("\n".join([note, *head, *lines]) + "\n", encoding="utf-8")
        print(f"{target.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
