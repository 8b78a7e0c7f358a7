"""Tokenize documents into a token store."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.data.errors import DataError
from hwh_core.data.tokenizing import tokenize_documents
from hwh_core.progress import progress
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default="{}", help="JSON text or file; no key is known, so: {}")
    parser.add_argument("--documents", type=Path, required=True, help="documents (.jsonl.zst)")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder")
    parser.add_argument("--output", type=Path, required=True, help="folder of the token store to write")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    arguments = parser.parse_args()
    started = time.time()
    settings = load_settings(arguments.settings)
    if settings:
        raise DataError(f"--settings: no key is known here, found {sorted(settings)}")
    index = tokenize_documents(
        arguments.documents,
        arguments.tokenizer,
        arguments.output,
        workers=arguments.workers,
        progress=lambda shards, total: progress(shards, "tokenizing", total=total, unit="shard"),
    )
    inputs = [arguments.documents, arguments.tokenizer]
    write_manifest(arguments.output, inputs=inputs, settings=settings, started=started, extra={"index": index})
    print(f"{arguments.output}: {index['tokens']} tokens, {index['text_bytes'] / index['tokens']:.2f} bytes a token")


if __name__ == "__main__":
    run(main)
