"""`hwh verify` finds every artifact that no longer follows, says why, and accuses no other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verify_helpers import PROGRAM, check

from hwh_core import cli, verification
from hwh_core.commands.verify import mend, short_line, summary
from hwh_core.config import load_preset, validate_preset
from hwh_core.files import sha256_of
from hwh_core.provenance import ROOT, write_manifest
from hwh_core.scripting import UserError
from hwh_core.verification import Finding, Reason, Verifier, settings_differences


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
    assert found["band.json"] == "made from stale results/minimal/controlled/base/probe.npz"
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


def test_what_was_made_beside_an_artifact_hands_its_staleness_on(results, minimal_preset):
    """As documents and their summary: the manifest stands beside the summary, the next step reads the documents."""
    source, documents = Path("source.txt"), results / "train.jsonl.zst"
    documents.write_bytes(b"documents")
    extra = {"beside": {documents.name: sha256_of(documents)}}
    write_manifest(results / "fig4.csv", inputs=[source], settings={}, started=time.time(), script=PROGRAM, extra=extra)
    (results / "tokenizer").mkdir()
    (results / "tokenizer/tokenizer.json").write_text("{}", encoding="utf-8")
    write_manifest(results / "tokenizer", inputs=[documents], settings={}, started=time.time(), script=PROGRAM)
    # A file inside a folder that has a manifest belongs to that folder.
    (results / "scores.csv").write_text("x", encoding="utf-8")
    inputs = [results / "tokenizer/tokenizer.json"]
    write_manifest(results / "scores.csv", inputs=inputs, settings={}, started=time.time(), script=PROGRAM)
    assert check(results, minimal_preset) == {}
    source.write_text("other", encoding="utf-8")
    found = check(results, minimal_preset)
    assert found["fig4.csv"] == "input source.txt has changed"
    assert found["tokenizer"] == "made from stale results/minimal/fig4.csv"
    assert found["scores.csv"] == "made from stale results/minimal/tokenizer"


def test_the_step_that_builds_documents_covers_all_its_outputs(tmp_path, minimal_preset, monkeypatch):
    from hwh_core.data.sources import write_source

    monkeypatch.chdir(tmp_path)
    source, folder = Path("sources/prose.jsonl.zst"), Path("results/minimal/data/documents")
    source.parent.mkdir()
    texts = [f"text number {number} " * 20 for number in range(20)]
    documents = [{"id": f"prose/{n}", "source": "prose", "title": "", "text": text} for n, text in enumerate(texts)]
    write_source(documents, "prose", source)
    settings = {"minimum_bytes": 10, "held_out_fraction": 0.1, "seed": 0}
    program = ROOT / "scripts" / "build_documents.py"
    command = ["--settings", json.dumps(settings), "--sources", str(source), "--output", str(folder)]
    done = subprocess.run([sys.executable, str(program), *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "documents.json.manifest.json").read_text(encoding="utf-8"))
    outputs = {path.name for path in folder.iterdir()} - {"documents.json.manifest.json"}
    assert {manifest["artifact"], *manifest["beside"]} == outputs
    assert manifest["beside"] == {name: sha256_of(folder / name) for name in outputs - {"documents.json"}}
    store = folder.parent / "train"
    store.mkdir()
    inputs = [folder / "train.jsonl.zst"]
    write_manifest(store, inputs=inputs, settings={}, started=time.time(), script=PROGRAM)
    for key, value in {"minimum_bytes": 10, "held_out_fraction": 0.1}.items():
        minimal_preset["data"][key] = value
    minimal_preset["seed"] = 0
    assert check(folder.parents[1], minimal_preset) == {}
    source.write_bytes(source.read_bytes() + b"x")
    assert set(check(folder.parents[1], minimal_preset)) == {"documents.json", "train"}


def test_inputs_that_no_manifest_covers_are_named(results, minimal_preset):
    loose = results / "controlled/base/metrics.json"
    loose.write_text("{}", encoding="utf-8")
    write_manifest(
        results / "fig4.csv", inputs=[loose, Path("source.txt")], settings={}, started=time.time(), script=PROGRAM
    )
    findings = Verifier(results, validate_preset(minimal_preset, "test"), Path()).check()
    assert {f.artifact: f.reasons for f in findings if not f.follows} == {
        loose: ["no manifest says what it was made from"]
    }
    loose.unlink()
    findings = Verifier(results, validate_preset(minimal_preset, "test"), Path()).check()
    assert [path for finding in findings for path in finding.untraced] == [loose]
    assert summary(findings, False)[-1] == "made here without a manifest, so not traced further: metrics.json"


def test_lines_are_short_and_counted_by_kind(results, minimal_preset):
    inputs = []
    for number in range(40):
        path = results / f"controlled/a_model_with_a_rather_long_name_{number:02}/probe_x0.5.npz"
        path.parent.mkdir()
        path.write_text("probe", encoding="utf-8")
        inputs.append(path)
    write_manifest(results / "fig4.csv", inputs=inputs, settings={}, started=time.time(), script=PROGRAM)
    Path("source.txt").write_text("other", encoding="utf-8")
    for path in inputs:
        path.unlink()
    findings = Verifier(results, validate_preset(minimal_preset, "test"), Path()).check()
    lines = {f.artifact.name: short_line(f, results) for f in findings if not f.follows}
    assert max(map(len, lines.values())) <= 150
    assert lines["fig4.csv"].startswith(
        "results/minimal/fig4.csv: input controlled/a_model_with_a_rather_long_name_00/"
    )
    assert lines["fig4.csv"].endswith(", and 39 more")
    counted = summary(findings, False)
    assert counted[0].startswith("3 artifacts checked, 3 no longer follow")
    assert counted[1:3] == [
        "  2: an input has changed or is gone (2 for this reason alone)",
        "  1: made from an artifact that no longer follows (1 for this reason alone)",
    ]


def test_a_reason_that_is_too_long_is_cut_and_the_count_stays():
    reasons = [Reason("settings", f"settings differ from the preset: {'training.optimizer.kind, ' * 30}")] * 3
    line = short_line(Finding(Path("results/laptop/hwh/tiny/gdn_s0/model"), reasons), Path("results/laptop"))
    assert len(line) == 150
    assert line.endswith("…, and 2 more")


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
    monkeypatch.setattr(verification, "program_hash", lambda script, settings: "0" * 16)
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
    needles = {"niah": niah, "unseen_only": True}
    for settings in (training, {**training, "retrieval_mix": mix}, needles):
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


def test_models_of_a_variant_follow_from_the_shape_that_it_gives(results, minimal_preset):
    """A variant may set sizes of its own; the scale's stand beside them in the preset."""
    minimal_preset["hwh"]["architectures"] = [
        {"name": "normed", "base": "hwh_std", "attention_output_norm": True, "nope_qk_norm": False}
    ]
    scale = minimal_preset["hwh"]["scales"][0]
    scale["models"].append({"name": "normed_s0", "architecture": "normed", "seed": 0})
    preset = validate_preset(minimal_preset, "test")
    for name, architecture in (("hwh_std_s0", "hwh_std"), ("normed_s0", "normed")):
        shape = preset.hwh.shape_of(preset.hwh.scales[0], architecture).model_dump(mode="json")
        folder = results / "hwh/tiny" / name / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        settings = {"model": {"architecture": architecture, "shape": shape, "length": 32, "seed": 0}}
        write_manifest(folder, inputs=[], settings=settings, started=time.time(), script=PROGRAM)
    assert "model" not in check(results, minimal_preset)
    minimal_preset["hwh"]["architectures"][0]["nope_qk_norm"] = None
    found = check(results, minimal_preset)
    assert found["model"] == "settings differ from the preset: model.shape.nope_qk_norm"
    minimal_preset["hwh"]["architectures"][0] |= {"nope_qk_norm": False, "recurrence": "deltanet"}
    found = check(results, minimal_preset)
    assert found["model"] == "settings differ from the preset: model.shape.variant.recurrence"


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


EMPTY_SETTINGS = '{"sha256": "", "inputs": {}, "settings": null, "script": "", "code_hash": null}'


@pytest.mark.parametrize("content", ["{", "[]", '{"sha256": ""}', "\udcff", EMPTY_SETTINGS])
def test_damaged_manifest_is_named(results, minimal_preset, content):
    path = results / "fig4.csv.manifest.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"fig4\.csv\.manifest\.json is no manifest"):
        check(results, minimal_preset)


def test_folder_without_manifests_is_refused(tmp_path, minimal_preset):
    with pytest.raises(UserError, match="no manifest"):
        check(tmp_path, minimal_preset)


def test_a_folder_that_was_changed_is_made_anew_by_the_file_that_a_rule_makes():
    def told(kind: str, name: str) -> list[str]:
        return mend([Finding(Path(name), [Reason(kind, "so it is")])], Path("my.yaml"))

    (line,) = told("artifact", "results/minimal/controlled/small/model")
    assert "--configfile my.yaml --forcerun results/minimal/controlled/small/model/config.json makes" in line
    # A file that no manifest names may be nobody's output, and of other reasons Snakemake has records of its own.
    for kind in ("manifest", "input", "settings", "code", "source"):
        assert told(kind, "results/minimal/fig4.csv") == []


def test_code_that_counts_as_an_earlier_form_is_named(results, minimal_preset, capsys, monkeypatch):
    preset = Path("my.json.yaml")
    preset.write_text(json.dumps(minimal_preset), encoding="utf-8")
    monkeypatch.setattr("hwh_core.verification.standing_in", lambda program: {f"hwh_core/{Path(program).stem}.py"})
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", str(results), "--config", str(preset)])
    programs = {json.loads(path.read_text(encoding="utf-8"))["script"] for path in results.rglob("*.manifest.json")}
    last = capsys.readouterr().out.splitlines()[-1]
    assert caught.value.code == 0
    assert last.startswith("counted as an earlier form that gives the same results, each with the test that shows it")
    assert last.endswith(": " + ", ".join(sorted(f"hwh_core/{Path(program).stem}.py" for program in programs)))


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
    forced = f"snakemake --cores all --configfile {preset} --forcerun results/minimal/fig4.csv makes this file and all"
    assert forced in output
    code, output, _ = call(str(results), "--config", str(preset), "--json")
    rows = {row["artifact"]: row["follows"] for row in json.loads(output)}
    assert code == 1
    assert sorted(rows.values()) == [False, True, True]
    code, _, error = call(str(results), "--config", str(preset), "--root", "nowhere")
    assert (code, error) == (1, "error: --root: nowhere is no folder; give the folder of the workflow\n")
    code, _, error = call("nowhere", "--config", str(preset))
    assert (code, error) == (
        1,
        "error: nowhere is no folder; give the results folder of a preset, such as results/laptop\n",
    )
