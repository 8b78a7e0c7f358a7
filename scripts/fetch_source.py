"""Fetch one source of text and write its documents as one .jsonl.zst file."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tqdm import tqdm

from hwh_core.data.sources import parse_source, source_documents, write_source
from hwh_core.provenance import ROOT, write_manifest
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="one entry of data.sources: JSON text or a JSON file")
    parser.add_argument(
        "--downloads", type=Path, default=Path("resources/downloads"), help="folder of fetched archives"
    )
    parser.add_argument("--output", type=Path, required=True, help="documents to write (.jsonl.zst)")
    arguments = parser.parse_args()
    started = time.time()
    settings = load_settings(arguments.settings)
    source = parse_source(settings)
    documents = source_documents(source, root=ROOT, downloads=arguments.downloads)
    progress = tqdm(documents, desc=source.name, unit=" documents", disable=not sys.stderr.isatty())
    counts = write_source(progress, source.name, arguments.output)
    write_manifest(arguments.output, inputs=[], settings=settings, started=started, extra={"counts": counts})
    print(f"{source.name}: {counts['documents']} documents, {counts['text_bytes'] / 1e6:.2f} MB of text")


if __name__ == "__main__":
    run(main)
