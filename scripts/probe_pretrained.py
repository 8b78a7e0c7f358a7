"""RFIS and RPD of all heads of a pretrained model on held-out text: probe.npz and probe.json."""

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
        "--settings", required=True, help="JSON {model, probe, held_out_prose_source, seed}, or the path of a file"
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--documents", type=Path, required=True, help="held_out.jsonl.zst")
    parser.add_argument("--output", type=Path, required=True, help="folder of probe.npz and probe.json")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)
    take_devices()

    from hwh_core.probes.jobs import probe_pretrained
    from hwh_core.probes.model_folders import check_model
    from hwh_core.provenance import write_manifest

    check_model(args.model)
    maps = probe_pretrained(settings, args.model, args.documents)
    maps.save(args.output / "probe.npz")
    write_manifest(
        args.output / "probe.npz", inputs=[args.documents], settings=settings, seed=settings["seed"], started=started,
        extra={"backend": maps.description["backend"]},
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
