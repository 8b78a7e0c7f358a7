"""Record of a finished chain (one trained model and all that is measured of it): files, sha256, machines, seconds."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.chains import chain_record
from hwh_core.files import write_json
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {chain, seed}")
    parser.add_argument("--folder", required=True, type=Path, help="folder of the model, as its manifests name it")
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    started = time.time()
    settings = load_settings(arguments.settings)
    record = chain_record(settings["chain"], settings["seed"], arguments.folder)
    write_json(arguments.output, record)
    write_manifest(
        arguments.output,
        inputs=[Path(path) for path in record["records"]],
        settings={"chain": settings["chain"]},
        seed=settings["seed"],
        started=started,
    )
    for step in record["steps"]:
        print(f"{step['step']} ({', '.join(step['artifacts'])}): {step['seconds']:.1f} s on {step['card'] or 'a CPU'}")


if __name__ == "__main__":
    run(main)
