"""Results of a small preset, made here."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from verify_helpers import PROGRAM

from hwh_core.config import validate_preset
from hwh_core.provenance import write_manifest


@pytest.fixture
def results(tmp_path, minimal_preset, monkeypatch):
    """A chain source -> probe -> band and a figure on its own, with manifests, in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/minimal")
    folder.mkdir(parents=True)
    Path("source.txt").write_text("text", encoding="utf-8")
    preset = validate_preset(minimal_preset, "test").model_dump(mode="json")
    model = {**preset["controlled"]["models"][0], "shape": preset["controlled"]["shape"], "architecture": "transformer"}

    def make(name: str, inputs: list[Path], settings: dict) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"made {name}", encoding="utf-8")
        write_manifest(folder / name, inputs=inputs, settings=settings, started=time.time(), script=PROGRAM)

    make(
        "controlled/base/probe.npz",
        [Path("source.txt")],
        {"model": model, "training": preset["controlled"]["training"]},
    )
    make(
        "controlled/base/band.json",
        [folder / "controlled/base/probe.npz"],
        {"band": preset["band"], "seed": 0, "computed": 17},
    )
    make("fig4.csv", [], preset)
    return folder
