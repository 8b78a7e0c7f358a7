"""QRscore and LDscore of all heads of a pretrained model: behavior.npz and behavior.json."""

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
        "--settings", required=True, help="JSON {model, behavior, held_out_prose_source, seed}, or the path of a file"
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--documents", type=Path, help="held_out.jsonl.zst, prose that samples: synthetic are made in")
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="files of the kind that samples names")
    parser.add_argument("--output", type=Path, required=True, help="folder of behavior.npz and behavior.json")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)
    take_devices()

    from hwh_core.probes.behavior_job import score_samples
    from hwh_core.provenance import write_manifest

    scores = score_samples(settings, args.model, args.documents, args.files)
    scores.save(args.output / "behavior.npz")
    inputs = [*([args.documents] if args.documents else []), *args.files]
    write_manifest(
        args.output / "behavior.npz", inputs=inputs, settings=settings, seed=settings["seed"], started=started
    )


if __name__ == "__main__":
    run(main)
