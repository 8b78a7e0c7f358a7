"""What each head of a trained HwH model reads, near or far: head_influence.csv, _bins.csv, rope_heads.npz."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", required=True,
        help="JSON {scale, training_length, model, probe, band, held_out_prose_source, seed}, or the path of a file",
    )  # fmt: skip
    parser.add_argument("--model", type=Path, required=True, help="folder of the trained model, with its tokenizer")
    parser.add_argument(
        "--documents", type=Path, required=True, help="held_out.jsonl.zst: prose of windows and prompts"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the three files")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)
    take_devices()

    from hwh_core.probes.hybrid import probe_hybrid
    from hwh_core.provenance import write_manifest

    probe = probe_hybrid(settings, args.model, args.documents)
    for path in probe.save(args.output):
        write_manifest(
            path, inputs=[args.model, args.documents], settings=settings,
            seed=settings["seed"], started=started, extra={"influence": probe.maps.description["influence"]},
        )  # fmt: skip


if __name__ == "__main__":
    run(main)
