"""RFIS and RPD of a controlled model, trained and at initialisation, at several lengths: probe_x<factor>.npz, .json."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Command line of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON {model, probe, seed}, or the path of a file")
    parser.add_argument("--model", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--initial", type=Path, required=True, help="folder of the same model at initialisation")
    parser.add_argument("--store", type=Path, required=True, help="token store of held-out text")
    parser.add_argument("--output", type=Path, required=True, help="folder of probe_x<factor>.npz and .json")
    args = parser.parse_args()
    started = time.time()
    settings = load_settings(args.settings)
    take_devices()

    from hwh_core.probes.jobs import probe_controlled
    from hwh_core.provenance import write_manifest

    inputs = [args.model / "model.safetensors", args.initial / "model.safetensors", args.store / "index.json"]
    for factor, maps in probe_controlled(settings, args.model, args.initial, args.store):
        path = args.output / f"probe_x{factor:g}.npz"
        maps.save(path)
        write_manifest(
            path, inputs=inputs, settings=settings, seed=settings["seed"], started=started,
            extra={"backend": maps.description["backend"]},
        )  # fmt: skip


if __name__ == "__main__":
    run(main)
