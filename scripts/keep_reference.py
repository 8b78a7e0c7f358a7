"""Copy the small results of a finished run (no weights or token stores) to results/reference/<preset>."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from hwh_core.files import atomic_directory
from hwh_core.scripting import UserError, run

KEPT = (
    "claims.json", "claims.md", "synthetic.json", "onset/*", "figures/*.png", "figures/*.csv", "tables/*",
    "data/documents/documents.json", "controlled/*/band.json", "controlled/*/metrics.json",
    "controlled/*/probe_x*.json",
    "pretrained/*/*.json", "pretrained/*/heads.csv", "pretrained/*/causal_summary.csv",
    "pretrained/*/atlas.html", "hwh/*/*/metrics.json", "hwh/*/*/scores.csv",
    "hwh/*/*/niah*_cells.csv", "benchmarks/**/*.tsv", "*.manifest.json", "controlled/*/*.manifest.json",
    "hwh/*/*/*.manifest.json", "data/**/*.manifest.json", "chains/**/*.json", "figures/*.manifest.json",
)  # fmt: skip
# Where no weights are kept these are all that a model leaves: figures and the ledger can be made from them again.
CHAINS_KEPT = (
    "controlled/*/probe_x1.npz", "controlled/*/curve.csv", "controlled/*/curve_maps.csv",
    "hwh/*/*/head_influence*.csv", "hwh/*/*/niah.csv", "hwh/*/*/rope_heads.json", "pretrained/*/*.npz",
)  # fmt: skip


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the preset's results, results/<preset>")
    parser.add_argument("--reference", type=Path, default=Path("results/reference"), help="folder of all references")
    arguments = parser.parse_args()
    chained = any(arguments.root.glob("chains/**/*.json"))
    if not chained and not (arguments.root / "claims.json").is_file():
        raise UserError(f"{arguments.root} holds no claims.json; finish the run first (snakemake --cores all)")
    patterns = (*KEPT, *(CHAINS_KEPT if chained else ()))
    files = sorted({path for pattern in patterns for path in arguments.root.glob(pattern) if path.is_file()})
    goal = arguments.reference / arguments.root.resolve().name
    with atomic_directory(goal) as folder:
        for path in files:
            target = folder / path.relative_to(arguments.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB, in {goal}")


if __name__ == "__main__":
    run(main)
