"""Merge sources, drop repeated texts and split into training and held-out documents."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tqdm import tqdm

from hwh_core.data.build import SPLITS, build_documents
from hwh_core.data.errors import DataError
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run

KEYS = {"minimum_bytes", "held_out_fraction", "seed"}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help=f"JSON text or file with {', '.join(sorted(KEYS))}")
    parser.add_argument("--sources", type=Path, nargs="+", required=True, help="documents of each source (.jsonl.zst)")
    parser.add_argument("--output", type=Path, required=True, help="folder for train, held_out and documents.json")
    arguments = parser.parse_args()
    started = time.time()
    settings = load_settings(arguments.settings)
    if set(settings) != KEYS:
        raise DataError(f"--settings: expected exactly the keys {sorted(KEYS)}, found {sorted(settings)}")
    record = build_documents(
        arguments.sources,
        arguments.output,
        **settings,
        progress=lambda documents, what: tqdm(documents, desc=what, unit=" docs", disable=not sys.stderr.isatty()),
    )
    inputs = list(arguments.sources)
    # One manifest for all that was made: tokenizer and token stores read the documents, not the summary.
    beside = {record["splits"][split]["file"]: record["splits"][split]["sha256"] for split in SPLITS}
    write_manifest(
        arguments.output / "documents.json",
        inputs=inputs,
        settings=settings,
        seed=settings["seed"],
        started=started,
        extra={"beside": beside},
    )
    for split in SPLITS:
        part = record["splits"][split]
        print(f"{split}: {part['documents']} documents, {part['text_bytes'] / 1e6:.2f} MB of text")


if __name__ == "__main__":
    run(main)
