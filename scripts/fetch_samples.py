"""Fetch the file of a data set of questions that a preset's behaviour scores are made on, pinned to a commit."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", required=True, help="JSON {name, repository, revision, file, sha256}, or the path of a file"
    )
    parser.add_argument("--output", type=Path, required=True, help="where the file goes")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)

    from hwh_core.probes.samples import HubFile, keep_hub_file
    from hwh_core.provenance import write_manifest

    keep_hub_file(HubFile(**settings), args.output)
    write_manifest(args.output, inputs=[], settings=settings, started=started)


if __name__ == "__main__":
    run(main)
