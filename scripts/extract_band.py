"""Extract the Global Positional Band of one controlled model from its probe files: writes band.json."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from hwh_core.files import write_json
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.jobs import load_probes, parse_settings
from hwh_core.gpband.maps import Maps
from hwh_core.gpband.record import band_record
from hwh_core.provenance import write_manifest
from hwh_core.scripting import run


def by_factor(probes: list[tuple[Path, Maps, dict[str, Any]]]) -> dict[float, tuple[Maps, int]]:
    """Maps with their length by evaluation length factor. Raises BandError where a factor stands twice."""
    found: dict[float, tuple[Maps, int]] = {}
    for path, maps, about in probes:
        factor = float(about["eval_length_factor"])
        if factor in found:
            raise BandError(f"{path}: eval_length_factor {factor:g} was given by another file already")
        found[factor] = (maps, int(about["length"]))
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {model, band, seed}")
    parser.add_argument("--probes", required=True, nargs="+", type=Path, help="probe_x<factor>.npz files of the model")
    parser.add_argument("--output", required=True, type=Path, help="band.json to write")
    arguments = parser.parse_args()
    started = time.time()
    settings = parse_settings(arguments.settings)
    model, probes = load_probes(arguments.probes, settings.model, ("eval_length_factor",))
    record = band_record(model, by_factor(probes), settings.band, settings.seed)
    write_json(arguments.output, record)
    write_manifest(
        arguments.output,
        inputs=[*arguments.probes, *(path.with_suffix(".json") for path in arguments.probes)],
        settings=settings.model_dump(mode="json"),
        seed=settings.seed,
        started=started,
    )
    for factor, band in record["factors"].items():
        peak = "" if band["peak"] is None else f" at group {band['peak']:.2f}"
        predicted = record["predicted"]["covariance"]
        beside = "" if predicted is None else f" (predicted {predicted:.2f})"
        print(f"{model.name} x{factor}: {band['verdict']}{peak}{beside}")


if __name__ == "__main__":
    run(main)
