"""Train a byte-level BPE tokenizer on training documents, or fetch a pinned one of a hub; save it as a folder."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.config import Tokenizer
from hwh_core.data.errors import DataError
from hwh_core.data.settings import parse_entry
from hwh_core.data.tokenizer import save_hub_tokenizer, save_trained, tokenizer_fingerprint, train_bpe
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="one entry of tokenizers: JSON text or a JSON file")
    parser.add_argument("--documents", type=Path, help="training documents (.jsonl.zst); needed for kind bpe only")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    started = time.time()
    values = load_settings(arguments.settings)
    settings = parse_entry(Tokenizer, values, "tokenizer settings")
    inputs = []
    if settings.kind == "bpe":
        if arguments.documents is None:
            raise DataError(f"tokenizer {settings.name!r} is trained: --documents must name the training documents")
        inputs = [arguments.documents]
        tokenizer = train_bpe(
            arguments.documents, vocab_size=settings.vocab_size, training_bytes=settings.training_bytes
        )
        save_trained(tokenizer, arguments.output)
    else:
        save_hub_tokenizer(settings.repository, settings.revision, arguments.output)
    fingerprint = tokenizer_fingerprint(arguments.output)
    write_manifest(
        arguments.output, inputs=inputs, settings=values, started=started, extra={"tokenizer_fingerprint": fingerprint}
    )
    print(f"{settings.name}: fingerprint {fingerprint[:16]}")


if __name__ == "__main__":
    run(main)
