"""`hwh verify` finds every artifact that no longer follows, says why, and accuses no other."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hwh_core import cli, verification
from hwh_core.config import load_preset, validate_preset
from hwh_core.files import sha256_of
from hwh_core.provenance import write_manifest
from hwh_core.scripting import UserError
from hwh_core.verification import Verifier, settings_differences

PROGRAM = "requirements/update.py"


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


def check(results: Path, minimal_preset: dict) -> dict[str, str]:
    """Reasons by file name, of all artifacts that no longer follow."""
    verifier = Verifier(results, validate_preset(minimal_preset, "test"), Path())
    return {f.artifact.name: "; ".join(f.reasons) for f in verifier.check() if not f.follows}


def test_untouched_results_follow(results, minimal_preset):
    assert check(results, minimal_preset) == {}


def test_changed_artifact_and_what_was_made_from_it(results, minimal_preset):
    (results / "controlled/base/probe.npz").write_text("edited", encoding="utf-8")
    found = check(results, minimal_preset)
    assert set(found) == {"probe.npz", "band.json"}
    assert "it was changed after it had been made" in found["probe.npz"]
    assert "input results/minimal/controlled/base/probe.npz has changed" in found["band.json"]


def test_changed_source_reaches_everything_below_it(results, minimal_preset):
    Path("source.txt").write_text("other", encoding="utf-8")
    found = check(results, minimal_preset)
    assert found["probe.npz"] == "input source.txt has changed"
    assert found["band.json"] == "made from results/minimal/controlled/base/probe.npz, which no longer follows"
    assert "fig4.csv" not in found


def test_files_made_beside_an_artifact_are_checked(results, minimal_preset):
    beside = results / "fig4.png"
    beside.write_bytes(b"picture")
    extra = {"beside": {"fig4.png": sha256_of(beside)}}
    write_manifest(results / "fig4.csv", inputs=[], settings={}, started=time.time(), script=PROGRAM, extra=extra)
    assert check(results, minimal_preset) == {}
    beside.write_bytes(b"other")
    assert check(results, minimal_preset) == {"fig4.csv": "fig4.png, made with it, was changed"}
    beside.unlink()
    assert check(results, minimal_preset) == {"fig4.csv": "fig4.png, made with it, is gone"}


def test_settings_that_are_one_entry_of_the_preset(results, minimal_preset):
    source = validate_preset(minimal_preset, "test").model_dump(mode="json")["data"]["sources"][0]
    write_manifest(results / "fig4.csv", inputs=[], settings=source, started=time.time(), script=PROGRAM)
    assert check(results, minimal_preset) == {}
    minimal_preset["data"]["sources"][0]["paths"] = ["other.txt"]
    assert check(results, minimal_preset) == {"fig4.csv": "settings differ from the preset: settings.paths"}


def test_missing_files_are_named(results, minimal_preset):
    Path("source.txt").unlink()
    (results / "controlled/base/band.json").unlink()
    found = check(results, minimal_preset)
    assert "input source.txt is gone" in found["probe.npz"]
    assert "it is gone" in found["band.json"]


def test_changed_code_is_named(results, minimal_preset, monkeypatch):
    monkeypatch.setattr(verification, "code_hash", lambda script: "0" * 16)
    assert check(results, minimal_preset)["fig4.csv"] == f"the code that {PROGRAM} runs has changed"


def test_vanished_program_is_named(results, minimal_preset):
    path = results / "fig4.csv.manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, "script": "scripts/gone.py"}), encoding="utf-8")
    assert check(results, minimal_preset) == {"fig4.csv": "its program scripts/gone.py is gone"}


def set_training(preset: dict) -> None:
    preset["controlled"]["training"]["steps"] = 5


def set_model(preset: dict) -> None:
    preset["controlled"]["models"][0]["rope_theta"] = 500.0


def set_shape(preset: dict) -> None:
    preset["controlled"]["shape"]["num_layers"] = 3


def set_band(preset: dict) -> None:
    preset["band"]["prominence"] = 0.3


def rename_model(preset: dict) -> None:
    preset["controlled"]["models"][0]["name"] = "other"


@pytest.mark.parametrize(
    ("change", "artifact", "named"),
    [
        (set_training, "probe.npz", "training.steps"),
        (set_model, "probe.npz", "model.rope_theta"),
        (set_shape, "probe.npz", "model.shape.num_layers"),
        (set_band, "band.json", "band.prominence"),
        (rename_model, "probe.npz", "model.name"),
    ],
)
def test_changed_settings_are_named(results, minimal_preset, change, artifact, named):
    change(minimal_preset)
    reasons = check(results, minimal_preset)[artifact]
    assert reasons.startswith("settings differ from the preset: ")
    assert named in reasons


def test_settings_of_two_equal_names_take_the_nearest():
    preset = {"a": [{"name": "s0", "seed": 0, "theta": 1.0}], "b": [{"name": "s0", "seed": 1, "theta": 2.0}]}
    assert settings_differences({"model": {"name": "s0", "seed": 1, "theta": 2.0}}, preset) == []
    assert settings_differences({"model": {"name": "s0", "seed": 1, "theta": 3.0}}, preset) == ["model.theta"]


def test_settings_of_trainings_and_needles_with_a_retrieval_mix_follow_from_the_preset():
    preset = load_preset(Path(verification.__file__).parents[1] / "config" / "single_gpu.yaml").model_dump(mode="json")
    mix = preset["hwh"]["scales"][0]["retrieval_mix"]
    niah = preset["evaluation"]["niah"]
    training = {"training": preset["hwh"]["scales"][0]["training"]}
    grid = {"niah": niah, "grid": niah["additional"][0], "unseen_only": True}
    for settings in (training, {**training, "retrieval_mix": mix}, grid):
        assert settings_differences(settings, preset) == []
    assert settings_differences({"retrieval_mix": {**mix, "repeat_share": 0.1}}, preset) == [
        "retrieval_mix.repeat_share"
    ]


def test_settings_of_one_scale_are_not_excused_by_another(results, minimal_preset):
    scales = minimal_preset["hwh"]["scales"]
    scales.append({**scales[0], "name": "other", "length": 64})
    settings = {"model": {"name": "hwh_std_s0", "length": 32}, "training": scales[0]["training"]}
    path = results / "hwh" / "tiny" / "hwh_std_s0" / "metrics.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}", encoding="utf-8")
    write_manifest(path, inputs=[], settings=settings, started=time.time(), script=PROGRAM)
    assert "metrics.json" not in check(results, minimal_preset)
    scales[0]["length"], scales[1]["length"] = 64, 32
    assert check(results, minimal_preset)["metrics.json"] == "settings differ from the preset: model.length"


def test_folder_inputs_are_hashed_as_folders(results, minimal_preset):
    model = Path("model")
    model.mkdir()
    (model / "weights").write_text("1", encoding="utf-8")
    (results / "scores.csv").write_text("x", encoding="utf-8")
    write_manifest(results / "scores.csv", inputs=[model], settings={}, started=time.time(), script=PROGRAM)
    assert check(results, minimal_preset) == {}
    before = sha256_of(model)
    (model / "weights").write_text("2", encoding="utf-8")
    assert sha256_of(model) != before
    assert check(results, minimal_preset) == {"scores.csv": "input model has changed"}


@pytest.mark.parametrize("content", ["{", "[]", '{"sha256": ""}', "\udcff"])
def test_damaged_manifest_is_named(results, minimal_preset, content):
    path = results / "fig4.csv.manifest.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"fig4\.csv\.manifest\.json is no manifest"):
        check(results, minimal_preset)


def test_folder_without_manifests_is_refused(tmp_path, minimal_preset):
    with pytest.raises(UserError, match="no manifest"):
        check(tmp_path, minimal_preset)


def test_command_prints_and_exits_by_the_findings(results, minimal_preset, capsys):
    preset = Path("my.json.yaml")
    preset.write_text(json.dumps(minimal_preset), encoding="utf-8")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["verify", *arguments])
        output = capsys.readouterr()
        return caught.value.code, output.out, output.err

    code, output, _ = call(str(results), "--config", str(preset))
    assert (code, output) == (0, "3 artifacts checked, 0 no longer follow from their inputs, settings and code\n")
    (results / "fig4.csv").write_text("edited", encoding="utf-8")
    code, output, _ = call(str(results), "--config", str(preset))
    assert code == 1
    assert "results/minimal/fig4.csv: it was changed" in output
    code, output, _ = call(str(results), "--config", str(preset), "--json")
    rows = {row["artifact"]: row["follows"] for row in json.loads(output)}
    assert code == 1
    assert sorted(rows.values()) == [False, True, True]
    code, _, error = call("nowhere", "--config", str(preset))
    assert (code, error) == (
        1,
        "error: nowhere is no folder; give the results folder of a preset, such as results/laptop\n",
    )
