"""`hwh onset`: from training logs and the token store to the onset, and what it refuses."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from hwh_core import cli
from hwh_core.commands import onset as command
from hwh_core.config import RetrievalMixConfig, validate_preset
from hwh_core.data.loader import BatchLoader
from hwh_core.data.retrieval_mix import RetrievalMixLoader, is_mixed
from hwh_core.data.store import TokenStore
from hwh_core.provenance import ROOT, equivalents, write_manifest
from hwh_core.retrieval_onset import count_planted
from hwh_core.verification import Verifier

LENGTH, BATCH, STEPS, ONSET = 1024, 2, 1100, 600
TOKENS = LENGTH * BATCH
MIX = {"sequence_share": 0.5, "pairs_per_sequence": 3, "repeat_share": 0.4, "value_digits": [4, 7]}


def make_loader(data, seed=0, batch=BATCH):
    mix = RetrievalMixConfig.model_validate(MIX)
    return RetrievalMixLoader(BatchLoader(TokenStore.open(data.store), LENGTH, batch, seed), mix, data.tokenizer)


@pytest.fixture(scope="module")
def digits(data):
    """Digits that are taken up again in each of ``STEPS`` steps of seed 0."""
    loader = make_loader(data)
    return count_planted(loader.mix, loader.words, 0, STEPS, BATCH).digits.sum(axis=1)


def write_log(path: Path, losses, tokens=TOKENS, first=1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": step, "loss": float(loss), "tokens": step * tokens} for step, loss in enumerate(losses, start=first)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def results(tmp_path, data, digits, minimal_preset, monkeypatch):
    """Folder results/minimal in the current one: ``base``, ``flat`` and ``copier`` with logs, others without."""
    scale = minimal_preset["hwh"]["scales"][0]
    scale |= {"length": LENGTH, "retrieval_mix": MIX}
    scale["training"] |= {"steps": STEPS, "tokens_per_step": TOKENS}
    plain = {"base": "hwh_std", "flat": "gdn", "copier": "inter", "untrained": "transformer"}
    scale["models"] = [{"name": name, "architecture": architecture, "seed": 0} for name, architecture in plain.items()]
    scale["models"].append({"name": "other_seed", "architecture": "hwh_std", "seed": 1})
    prose_scale = {**scale, "name": "prose", "retrieval_mix": None, "models": list(scale["models"])}
    minimal_preset["hwh"]["scales"].append(prose_scale)
    scale["models"].append({"name": "control", "architecture": "hwh_std", "seed": 0, "retrieval_mix": False})
    (tmp_path / "config").mkdir()
    write_preset(tmp_path, minimal_preset)
    monkeypatch.chdir(tmp_path)
    folder = Path("results/minimal")
    shutil.copytree(data.store, folder / "data" / "bpe512" / "train")
    shutil.copytree(data.tokenizer, folder / "data" / "bpe512" / "tokenizer")
    draws = np.random.default_rng(0)
    prose = 4.0 + draws.standard_normal(STEPS)
    for name, saved in (("base", 0.0), ("flat", 0.0), ("copier", 2.3 * digits * (np.arange(STEPS) >= ONSET))):
        losses = prose + (5.0 * draws.standard_normal(STEPS) - saved) / TOKENS
        write_log(folder / "hwh" / "tiny" / name / "train_log.jsonl", losses)
    return folder


def write_preset(folder: Path, preset: dict) -> None:
    (folder / "config" / "minimal.yaml").write_text(yaml.safe_dump(preset), encoding="utf-8")


def hwh(capsys, *arguments: str) -> tuple[int, str, str]:
    options = ["onset", "--preset", "minimal", "--scale", "tiny", "--against", "base", *arguments]
    with pytest.raises(SystemExit) as ended:
        cli.main(options)
    output = capsys.readouterr()
    return ended.value.code, " ".join(output.out.split()), output.err


def table(results) -> pd.DataFrame:
    return pd.read_csv(results / "onset" / "onset_tiny_base.csv")


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_digits_are_those_that_are_planted(data, batch):
    loader = make_loader(data, seed=3, batch=batch)
    counted = count_planted(loader.mix, loader.words, 3, 12, batch)
    expected = np.zeros((2, 12, 2), dtype=int)
    for number in np.flatnonzero(is_mixed(np.arange(12 * batch), MIX["sequence_share"])):
        step = int(number) // batch
        for placement in loader.plant(int(number), loader.prose.batch(step)[number % batch])[1]:
            repeated = placement.pair.repeated
            taken_up = placement.pair.question.split(placement.pair.key)[-1]
            expected[0, step, int(repeated)] += sum(letter.isdigit() for letter in taken_up)
            expected[1, step, int(repeated)] += 1
    assert expected[0].sum() > 100
    assert np.array_equal(counted.digits, expected[0])
    assert np.array_equal(counted.pairs, expected[1])


def test_what_the_onset_loads_without_calling_it_may_change(results, capsys):
    """Files that are declared equivalent for the onset alone: not one function of theirs runs on its way."""
    own = {str(ROOT / entry.file) for entry in equivalents() if "hwh_core/commands/onset.py" in entry.only_for}
    assert own
    seen = set()

    def look(frame, event, argument):
        # Functions alone: what runs at an import, of modules and classes, has no optimized locals.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            seen.add((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        code, _, _ = hwh(capsys)
    finally:
        sys.setprofile(None)
    assert code == 0
    assert (str(ROOT / "hwh_core/retrieval_onset.py"), "find_onset") in seen
    assert {(file, name) for file, name in seen if file in own} == set()


def test_the_onset_is_printed_and_every_window_written(results, capsys):
    code, output, _ = hwh(capsys)
    assert code == 0
    found = table(results)
    assert list(found) == list(command.COLUMNS)
    assert len(found) == 2 * 11 * 3
    assert set(found["model"]) == {"flat", "copier"}
    assert set(found["regressor"]) == {"asked", "repeated", "both"}
    later = found[(found["first_step"] > ONSET) & (found["regressor"] == "both")]
    assert later[later["model"] == "copier"]["nats_per_digit"].between(-3.3, -1.3).all()
    assert later[later["model"] == "flat"]["nats_per_digit"].abs().max() < 1.0
    assert f"flat │ {command.NONE_FOUND} │ - │" in output
    assert "Left out, without a training log: untrained." in output
    assert "control" not in output
    assert "Without a record of its batches, taken to be those of" in output
    manifest = json.loads((results / "onset" / "onset_tiny_base.csv.manifest.json").read_text())
    assert list(manifest["beside"]) == ["onset_tiny_base.png"]
    onsets = manifest["settings"]["onsets"]
    assert onsets["flat"] is None
    assert onsets["copier"]["earliest"] <= ONSET + 1 <= onsets["copier"]["latest"]
    assert abs(onsets["copier"]["step"] - ONSET - 1) <= 50
    assert (results / "onset" / "onset_tiny_base.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_logs_give_the_same_bytes_and_verify_follows_them(results, minimal_preset, capsys):
    assert hwh(capsys)[0] == 0
    files = [results / "onset" / f"onset_tiny_base.{kind}" for kind in ("csv", "png")]
    before = [path.read_bytes() for path in files]
    assert hwh(capsys, "--root", "results/minimal", "--out", "results/minimal/onset")[0] == 0
    assert [path.read_bytes() for path in files] == before
    preset = validate_preset(minimal_preset, "test")
    findings = {finding.artifact.name: finding for finding in Verifier(results, preset, Path(".")).check()}
    assert findings["onset_tiny_base.csv"].reasons == []
    assert "onset_tiny_base.png" not in findings
    write_log(results / "hwh" / "tiny" / "flat" / "train_log.jsonl", np.ones(STEPS))
    findings = {finding.artifact.name: finding for finding in Verifier(results, preset, Path(".")).check()}
    assert "has changed" in findings["onset_tiny_base.csv"].reasons[0]


def test_a_training_in_progress_is_read_up_to_its_last_whole_line(results, capsys):
    folder = results / "hwh" / "tiny" / "copier"
    lines = (folder / "train_log.jsonl").read_text().splitlines(keepends=True)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "train_log.jsonl").write_text("".join(lines[:880]) + lines[880][:15])
    (folder / "train_log.jsonl").unlink()
    code, output, _ = hwh(capsys, "--windows", "8")
    assert code == 0
    assert "steps 1 to 880" in output
    assert "since copier has no more: leave it out with --models to use those of base, flat." in output
    assert "Still in training: copier." in output
    assert set(table(results)["n"]) == {110}


def test_a_recorded_fingerprint_is_held_against_the_store(results, data, capsys):
    folder = results / "hwh" / "tiny"
    for name in ("base", "flat"):
        (folder / name / "metrics.json").write_text(
            json.dumps({"fingerprint": {"data": make_loader(data).fingerprint}})
        )
    state = folder / "copier" / "checkpoints" / "step-00000500" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"fingerprint": {"data": make_loader(data).fingerprint}}))
    assert "are those that every training recorded." in hwh(capsys)[1]
    (folder / "flat" / "model").write_text("")
    extra = {"fingerprint": {"data": make_loader(data, seed=1).fingerprint}}
    write_manifest(folder / "flat" / "model", inputs=[], settings={}, started=0.0, extra=extra)
    code, _, error = hwh(capsys)
    assert code == 1
    assert "flat was trained on other batches" in error
    assert hwh(capsys, "--models", "copier")[0] == 0


def test_a_reference_that_copies_itself_is_named(results, capsys):
    assert "copier itself copies more than flat from step" in hwh(capsys, "--against", "copier", "--models", "flat")[1]


def rows(results, name="flat"):
    path = results / "hwh" / "tiny" / name / "train_log.jsonl"
    return path, path.read_text().splitlines(keepends=True)


def without_a_step(results):
    path, lines = rows(results)
    path.write_text("".join(lines[:300] + lines[301:]))


def with_other_tokens(results):
    write_log(rows(results)[0], np.ones(STEPS), tokens=2 * TOKENS)


def with_changing_tokens(results):
    path, lines = rows(results)
    lines[700] = json.dumps({"step": 701, "loss": 1.0, "tokens": 700 * TOKENS}) + "\n"
    path.write_text("".join(lines))


def with_a_damaged_line(results):
    path, lines = rows(results)
    path.write_text("".join([*lines[:7], "{\n", *lines[8:]]))


def with_a_half_last_line(results):
    path, lines = rows(results)
    path.write_text("".join(lines)[:-20])


def with_nothing(results):
    rows(results)[0].write_text("")


def with_a_copy(results):
    shutil.copy(rows(results, "base")[0], rows(results)[0])


def without_a_store(results):
    shutil.rmtree(results / "data" / "bpe512" / "train")


def without_a_tokenizer(results):
    shutil.rmtree(results / "data" / "bpe512" / "tokenizer")


def without_the_log_of_base(results):
    rows(results, "base")[0].unlink()


@pytest.mark.parametrize(
    ("options", "harm", "told"),
    [
        (["--scale", "huge"], None, "--scale: preset 'minimal' has no scale 'huge'; expected one of tiny, prose"),
        (["--scale", "prose"], None, "scale 'prose' of preset 'minimal' has no retrieval_mix"),
        (["--against", "control"], None, "--against: control is trained without the retrieval_mix"),
        (["--models", "control"], None, "--models: control is trained without the retrieval_mix"),
        (["--models", "flat", "other_seed"], None, "--models: other_seed has seed 1, but base of --against has seed 0"),
        (["--models", "nobody"], None, "--models: scale 'tiny' has no model 'nobody'; expected one of base, flat"),
        (["--against", "nobody"], None, "--against: scale 'tiny' has no model 'nobody'"),
        (["--models", "base"], None, "--models: base is the model of --against"),
        (["--against", "other_seed"], None, "--against: no other model of scale 'tiny' has the mix and seed 1"),
        (["--against", "untrained"], None, "--against: results/minimal/hwh/tiny/untrained holds no train_log.jsonl"),
        (["--models", "untrained"], None, "--models: none of untrained has a train_log.jsonl"),
        (["--preset", "nothing"], None, "preset 'nothing' is unknown"),
        (["--windows", "12"], None, "--windows: 12 windows of 1100 steps: expected"),
        (["--windows", "0"], None, "--windows: 0 windows of 1100 steps: expected"),
        ([], without_a_step, "flat/train_log.jsonl: line 301 is of step 302, expected 301; steps are missing"),
        ([], with_other_tokens, "flat was trained on 4096 tokens a step, but hwh.scales.tiny.training.tokens_per_step"),
        ([], with_changing_tokens, "tokens of step 701 are not 701 times the 2048 of step 1"),
        ([], with_a_damaged_line, "flat/train_log.jsonl: line 8 is no row with step, loss and tokens"),
        ([], with_a_half_last_line, "flat/train_log.jsonl: line 1100 is no row with step, loss and tokens"),
        ([], with_nothing, "flat/train_log.jsonl holds no step"),
        ([], with_a_copy, "so this is a copy of it; restore the log of flat"),
        ([], without_a_store, "--root: results/minimal/data/bpe512/train is not there"),
        ([], without_a_tokenizer, "--root: results/minimal/data/bpe512/tokenizer is not there"),
        ([], without_the_log_of_base, "--against: results/minimal/hwh/tiny/base holds no train_log.jsonl"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(results, capsys, options, harm, told):
    if harm is not None:
        harm(results)
    code, _, error = hwh(capsys, *options)
    assert code == 1
    assert told in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (results / "onset").exists()


def test_values_of_one_length_are_refused(results, minimal_preset, capsys):
    minimal_preset["hwh"]["scales"][0]["retrieval_mix"] = {**MIX, "value_digits": [5]}
    write_preset(Path("."), minimal_preset)
    code, _, error = hwh(capsys)
    assert code == 1
    assert "values of one length cannot be told from the words around them" in error
