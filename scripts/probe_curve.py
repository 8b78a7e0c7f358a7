"""RFIS, RPD and loss of a controlled model along its training: probe_step<step>.npz and .json."""

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
        "--settings", required=True, help="JSON {model, probe, steps, tokens_per_step, seed}, or a file"
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the trained model: the last step")
    parser.add_argument("--initial", type=Path, required=True, help="folder of the model at initialisation: step 0")
    parser.add_argument("--snapshots", type=Path, required=True, help="folder of the snapshots of the steps between")
    parser.add_argument("--store", type=Path, required=True, help="token store of held-out text")
    parser.add_argument("--output", type=Path, required=True, help="folder of probe_step<step>.npz and .json")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)
    take_devices()

    from hwh_core.files import sha256_of
    from hwh_core.probes.curve import probe_curve
    from hwh_core.provenance import write_manifest

    inputs = [args.model / "model.safetensors", args.initial / "model.safetensors", args.store / "index.json"]
    # Snapshots are removed once they have been probed: recorded, but not inputs that could be looked up later.
    snapshots = {path.parent.name: sha256_of(path) for path in sorted(args.snapshots.glob("*/model.safetensors"))}
    for step, maps in probe_curve(settings, args.initial, args.snapshots, args.model, args.store):
        path = args.output / f"probe_step{step}.npz"
        maps.save(path)
        write_manifest(
            path, inputs=inputs, settings=settings, seed=settings["seed"], started=started,
            extra={"backend": maps.description["backend"], "snapshots": snapshots},
        )  # fmt: skip


if __name__ == "__main__":
    run(main)
