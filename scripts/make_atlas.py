"""Write the head atlas of one probed model: one HTML page that needs neither a server nor a network."""

from __future__ import annotations

import argparse
from pathlib import Path

from hwh_core.scripting import run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="folder with probe.npz and, where they are known, probe.json, heads.csv, bands.json, norms.npz",
    )
    parser.add_argument("--output", type=Path, help="page to write (default: atlas.html in that folder)")
    options = parser.parse_args()

    from hwh_core.reporting.atlas import write_atlas

    print(write_atlas(options.folder, options.output))


if __name__ == "__main__":
    run(main)
