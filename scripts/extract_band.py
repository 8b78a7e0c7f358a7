"""Extract the Global Positional Band of one controlled model from its probe files: writes band.json."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pydantic import ValidationError

from hwh_core.config import BandConfig, ControlledModel, Strict
from hwh_core.files import write_json
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.maps import Maps, load_maps, read_description
from hwh_core.gpband.record import BandModel, band_record
from hwh_core.provenance import write_manifest
from hwh_core.scripting import UserError, load_settings, run


class Settings(Strict):
    """Content of --settings."""

    model: ControlledModel
    band: BandConfig
    seed: int


def parse_settings(text_or_path: str) -> Settings:
    """Check --settings; raises UserError naming the key."""
    try:
        return Settings.model_validate(load_settings(text_or_path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"--settings: key {key!r}: {first['msg']}; expected model, band and seed") from None


def read_probes(paths: list[Path], model: ControlledModel) -> tuple[int, dict[float, tuple[Maps, int]]]:
    """head_dim, and maps with their length by evaluation length factor.

    Raises BandError where a file belongs to another model.
    """
    probes: dict[float, tuple[Maps, int]] = {}
    head_dims = set()
    for path in paths:
        about = read_description(path, ("rope_theta", "training_length", "eval_length_factor", "length", "head_dim"))
        for key, expected in (("rope_theta", model.rope_theta), ("training_length", model.length)):
            if about[key] is None or float(about[key]) != float(expected):
                raise BandError(
                    f"{path}: {key} is {about[key]}, but model {model.name!r} has {expected}; probe this model again"
                )
        factor = float(about["eval_length_factor"])
        if factor in probes:
            raise BandError(f"{path}: eval_length_factor {factor:g} was given by another file already")
        probes[factor] = (load_maps(path), int(about["length"]))
        head_dims.add(int(about["head_dim"]))
    if len(head_dims) != 1:
        raise BandError(f"--probes: the files have different head_dim {sorted(head_dims)}; probe this model again")
    return head_dims.pop(), probes


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON text or file: {model, band, seed}")
    parser.add_argument("--probes", required=True, nargs="+", type=Path, help="probe_x<factor>.npz files of the model")
    parser.add_argument("--output", required=True, type=Path, help="band.json to write")
    arguments = parser.parse_args()
    started = time.time()
    settings = parse_settings(arguments.settings)
    head_dim, probes = read_probes(arguments.probes, settings.model)
    model = BandModel(**settings.model.model_dump(), head_dim=head_dim)
    record = band_record(model, probes, settings.band, settings.seed)
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
