"""Classify the heads of a pretrained model and test the classes against behaviour: writes heads.csv and bands.json."""

from __future__ import annotations

import argparse
from pathlib import Path

from hwh_core.gpband.pretrained_heads import describe_heads, parse_settings, summary
from hwh_core.scripting import run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {model, band, seed}")
    parser.add_argument("--probe", required=True, type=Path, help="probe.npz of the model (probe.json beside it)")
    parser.add_argument("--behavior", required=True, type=Path, help="behavior.npz of the model (behavior.json beside)")
    parser.add_argument("--output-heads", required=True, type=Path, help="heads.csv to write (and heads.parquet)")
    parser.add_argument("--output-bands", required=True, type=Path, help="bands.json to write")
    arguments = parser.parse_args()
    settings = parse_settings(arguments.settings)
    record = describe_heads(
        settings, arguments.probe, arguments.behavior, arguments.output_heads, arguments.output_bands
    )
    print(summary(record))


if __name__ == "__main__":
    run(main)
