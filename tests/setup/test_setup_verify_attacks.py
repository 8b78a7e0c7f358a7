"""What `hwh verify` could be made to overlook: every change is named, by its reason, and no other artifact is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from verify_helpers import PROGRAM, check

from hwh_core import provenance
from hwh_core.provenance import ROOT, write_manifest

OTHER = "controlled/other"


@pytest.fixture
def two(results, minimal_preset):
    """Results of two models whose bands have the same name, settings and inputs of their own."""
    model = minimal_preset["controlled"]["models"][0]
    minimal_preset["controlled"]["models"].append({**model, "name": "other", "seed": 1})
    (results / "fig4.csv").unlink()
    (results / "fig4.csv.manifest.json").unlink()
    folder = results / OTHER
    folder.mkdir()
    for name, inputs in (("probe.npz", [Path("source.txt")]), ("band.json", [folder / "probe.npz"])):
        (folder / name).write_text(f"of the other model: {name}", encoding="utf-8")
        write_manifest(folder / name, inputs=inputs, settings={}, started=time.time(), script=PROGRAM)
    assert check(results, minimal_preset) == {}
    return results


def swap(first: Path, second: Path) -> None:
    first.rename("aside")
    second.rename(first)
    Path("aside").rename(second)


def test_touching_is_no_change(two, minimal_preset):
    for number, path in enumerate(sorted([*two.rglob("*"), Path("source.txt")])):
        os.utime(path, (number, number))
    assert check(two, minimal_preset) == {}


def test_an_input_of_the_same_size_and_time(two, minimal_preset):
    source = Path("source.txt")
    status = source.stat()
    source.write_text("next", encoding="utf-8")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert source.stat().st_size == status.st_size
    verifier = check(two, minimal_preset)
    assert verifier["probe.npz"] == "input source.txt has changed"
    assert set(verifier) == {"probe.npz", "band.json"}


def test_two_artifacts_in_each_others_place(two, minimal_preset):
    swap(two / "controlled/base/band.json", two / OTHER / "band.json")
    assert check(two, minimal_preset) == {"band.json": "it was changed after it had been made"}


def test_two_artifacts_with_their_manifests_in_each_others_place(two, minimal_preset):
    """Everything that the manifests say of content holds; only where they stand does not."""
    for name in ("band.json", "band.json.manifest.json"):
        swap(two / "controlled/base" / name, two / OTHER / name)
    found = check(two, minimal_preset)
    assert set(found) == {"band.json"}
    assert "it was made as results/minimal/controlled/" in found["band.json"]
    assert "in another's place" in found["band.json"]


def test_a_manifest_that_was_removed(two, minimal_preset):
    """The artifact is named; what was made from it is still what its own manifest says."""
    (two / "controlled/base/probe.npz.manifest.json").unlink()
    assert check(two, minimal_preset) == {"probe.npz": "no manifest says what it was made from"}
    (two / "controlled/base/band.json.manifest.json").unlink()
    assert set(check(two, minimal_preset)) == {"probe.npz", "band.json"}


def test_files_that_say_how_a_run_went_need_no_manifest(two, minimal_preset):
    for name in ("logs/rule.log", "benchmarks/rule.tsv", "controlled/base/checkpoints/a", "report.html", ".hidden"):
        (two / name).parent.mkdir(parents=True, exist_ok=True)
        (two / name).write_text("", encoding="utf-8")
    assert check(two, minimal_preset) == {}
    (two / "controlled/base/by_hand.csv").write_text("", encoding="utf-8")
    assert set(check(two, minimal_preset)) == {"by_hand.csv"}


def test_copies_of_tables_and_descriptions_of_maps_are_covered(two, minimal_preset):
    for name, copy in (("scores.csv", "scores.parquet"), ("maps.npz", "maps.json")):
        for path in (two / name, two / copy):
            path.write_text("made", encoding="utf-8")
        write_manifest(two / name, inputs=[], settings={}, started=time.time(), script=PROGRAM)
    assert check(two, minimal_preset) == {}
    (two / "scores.parquet").write_text("edited", encoding="utf-8")
    assert check(two, minimal_preset) == {"scores.csv": "scores.parquet, made with it, was changed"}


def test_the_seed_of_the_preset_is_not_excused_by_that_of_a_model(two, minimal_preset):
    assert minimal_preset["controlled"]["models"][0]["seed"] == minimal_preset["seed"] == 0
    minimal_preset["seed"] = 5
    assert check(two, minimal_preset) == {"band.json": "settings differ from the preset: seed"}


def edit(monkeypatch, module: str) -> None:
    """Have a source hash as after an edit."""
    own = provenance.syntax_hash
    monkeypatch.setattr(provenance, "syntax_hash", lambda path: "edited" if path == ROOT / module else own(path))
    provenance.code_hash.cache_clear()


@pytest.fixture
def fresh_hashes():
    yield
    provenance.code_hash.cache_clear()


def test_an_edit_reaches_what_runs_it_and_nothing_else(two, minimal_preset, monkeypatch, fresh_hashes):
    figure = two / "fig4.csv"
    figure.write_text("figure", encoding="utf-8")
    modules, program = ["hwh_core/reporting/fig4.py"], "scripts/extract_band.py"
    write_manifest(figure, inputs=[], settings={}, started=time.time(), script=PROGRAM, modules=modules)
    (two / "other.json").write_text("{}", encoding="utf-8")
    write_manifest(two / "other.json", inputs=[], settings={}, started=time.time(), script=program)
    assert check(two, minimal_preset) == {}
    edit(monkeypatch, "hwh_core/gpband/detection.py")
    assert check(two, minimal_preset) == {"other.json": f"the code that {program} runs has changed"}
    edit(monkeypatch, "hwh_core/reporting/fig4.py")
    assert check(two, minimal_preset)["fig4.csv"] == f"hwh_core/reporting/fig4.py, which {PROGRAM} loads, has changed"
    edit(monkeypatch, "hwh_core/verification.py")
    assert set(check(two, minimal_preset)) == {"other.json", "fig4.csv"}
