"""What the extraction jobs of controlled models share: their settings, and reading the probe files of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hwh_core.config import BandConfig, ControlledModel, Strict
from hwh_core.scripting import UserError, load_settings

from .errors import BandError
from .maps import Maps, load_maps, read_description
from .record import BandModel


class Settings(Strict):
    """Content of --settings."""

    model: ControlledModel
    band: BandConfig
    seed: int


def parse_settings(text_or_path: str) -> Settings:
    """Check --settings; raises :class:`UserError` naming the key."""
    try:
        return Settings.model_validate(load_settings(text_or_path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"--settings: key {key!r}: {first['msg']}; expected model, band and seed") from None


def load_probes(
    paths: list[Path], model: ControlledModel, keys: tuple[str, ...]
) -> tuple[BandModel, list[tuple[Path, Maps, dict[str, Any]]]]:
    """The model with its head_dim, and (path, maps, description) of every file; descriptions have ``keys``.

    Raises :class:`BandError` where a file belongs to another model, or a key is missing.
    """
    probes = []
    for path in paths:
        about = read_description(path, ("rope_theta", "training_length", "length", "head_dim", *keys))
        for key, expected in (("rope_theta", model.rope_theta), ("training_length", model.length)):
            if about[key] is None or float(about[key]) != float(expected):
                raise BandError(
                    f"{path}: {key} is {about[key]}, but model {model.name!r} has {expected}; probe this model again"
                )
        probes.append((path, load_maps(path), about))
    head_dims = {int(about["head_dim"]) for _, _, about in probes}
    if len(head_dims) != 1:
        raise BandError(f"--probes: the files have different head_dim {sorted(head_dims)}; probe this model again")
    return BandModel(**model.model_dump(), head_dim=head_dims.pop()), probes
