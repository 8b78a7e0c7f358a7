"""The band of one controlled model against tokens seen: curve.csv, and the mean maps of every step: curve_maps.csv."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.files import write_table
from hwh_core.gpband.emergence import Probe, curve_tables
from hwh_core.gpband.jobs import load_probes, parse_settings
from hwh_core.provenance import write_manifest
from hwh_core.scripting import run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {model, band, seed}")
    parser.add_argument("--probes", required=True, nargs="+", type=Path, help="probe_step<step>.npz files of the model")
    parser.add_argument(
        "--output", required=True, type=Path, help="curve.csv to write; curve_maps.csv stands beside it"
    )
    arguments = parser.parse_args()
    started = time.time()
    settings = parse_settings(arguments.settings)
    model, files = load_probes(arguments.probes, settings.model, ("step", "tokens", "loss"))
    probes = [Probe(about["step"], about["tokens"], about["loss"], about["length"], maps) for _, maps, about in files]
    rows, maps = curve_tables(model, probes, settings.band, settings.seed)
    beside = arguments.output.with_name(f"{arguments.output.stem}_maps.csv")
    write_table(maps, beside)
    write_table(rows, arguments.output)
    write_manifest(
        arguments.output,
        inputs=[*arguments.probes, *(path.with_suffix(".json") for path in arguments.probes)],
        settings=settings.model_dump(mode="json"),
        seed=settings.seed,
        started=started,
        beside=[beside],
    )
    for row in rows.to_dict("records"):
        place = "" if row["verdict"] == "none" else f" at group {row['peak_group']:.2f}"
        print(f"{model.name}, {row['tokens']:,} tokens: {row['verdict']}{place}, loss {row['loss_nats_per_token']:.3f}")


if __name__ == "__main__":
    run(main)
