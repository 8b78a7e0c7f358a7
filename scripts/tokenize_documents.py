"""Tokenize documents into a token store."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tqdm import tqdm

from hwh_core.data.documents import load_documents
from hwh_core.data.errors import DataError
from hwh_core.data.store import write_store
from hwh_core.data.tokenizer import load_backend, tokenizer_fingerprint
from hwh_core.files import read_json
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run


def _text_bytes(documents: Path) -> int | None:
    """Bytes of text to come, for the progress bar, if the summary beside the documents tells them."""
    summary = documents.parent / "documents.json"
    if not summary.is_file():
        return None
    splits = read_json(summary)["splits"].values()
    return next((split["text_bytes"] for split in splits if split["file"] == documents.name), None)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default="{}", help="JSON text or file; no key is known, so: {}")
    parser.add_argument("--documents", type=Path, required=True, help="documents (.jsonl.zst)")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder")
    parser.add_argument("--output", type=Path, required=True, help="folder of the token store to write")
    arguments = parser.parse_args()
    started = time.time()
    settings = load_settings(arguments.settings)
    if settings:
        raise DataError(f"--settings: no key is known here, found {sorted(settings)}")
    tokenizer, eos_token_id, vocab_size = load_backend(arguments.tokenizer)
    with tqdm(
        total=_text_bytes(arguments.documents),
        unit="B",
        unit_scale=True,
        desc="tokenizing",
        disable=not sys.stderr.isatty(),
    ) as bar:
        index = write_store(
            load_documents(arguments.documents),
            tokenizer,
            arguments.output,
            vocab_size=vocab_size,
            eos_token_id=eos_token_id,
            fingerprint=tokenizer_fingerprint(arguments.tokenizer),
            on_batch=bar.update,
        )
    inputs = [arguments.documents, arguments.tokenizer]
    write_manifest(arguments.output, inputs=inputs, settings=settings, started=started, extra={"index": index})
    print(f"{arguments.output}: {index['tokens']} tokens, {index['text_bytes'] / index['tokens']:.2f} bytes a token")


if __name__ == "__main__":
    run(main)
