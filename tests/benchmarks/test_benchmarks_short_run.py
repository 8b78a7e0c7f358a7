"""benchmarks.short_run from end to end at a size of seconds, how it ends early, and what it refuses to believe."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import short_run, short_run_report, short_run_training
from hwh_core.config import load_preset

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
ID = "short_run.quick_"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a quick run of both architectures: short_run.json, short_run.png and ``work``, all that it kept."""
    folder = tmp_path_factory.mktemp("short_run")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        assert short_run.main(["--quick", "--output", str(folder), "--work", str(folder / "work")]) == 0
    return folder


@pytest.fixture
def result(folder):
    """What the quick run wrote."""
    return json.loads((folder / "short_run.json").read_text())


def values(result):
    return {figure["id"]: figure["value"] for figure in result["figures"]}


def test_a_quick_run_stops_resumes_exports_and_compares(folder, result):
    found = values(result)
    steps, work = short_run_training.QUICK_STEPS, folder / "work"
    assert result["command"] == "python -m benchmarks.short_run --quick --work WORK"
    for name in ("hwh_std", "transformer"):
        metrics = json.loads((work / name / "output" / "metrics.json").read_text())
        rows = [json.loads(line) for line in (work / name / "output" / "train_log.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        resumed = found[f"{ID}{name}_resumed_at_step"]
        assert int(0.55 * steps) <= resumed < steps
        assert f"stopped after step {resumed};" in (work / name / "until_stop.log").read_text()
        assert f"going on after step {resumed} of {steps}" in (work / name / "after_stop.log").read_text()
        assert found[f"{ID}{name}_held_out_loss"] == metrics["held_out_loss"]
        assert found[f"{ID}{name}_held_out_loss_in_a_fresh_process"] == pytest.approx(
            metrics["held_out_loss"], abs=1e-4
        )
        last = [row["loss"] for row in rows[-steps // 20 :]]
        assert found[f"{ID}{name}_train_loss"] == pytest.approx(sum(last) / len(last))
        assert found[f"{ID}{name}_tokens"] == rows[-1]["tokens"] == steps * 256
        sizes = [path.stat().st_size for path in (work / name / "output" / "model").iterdir()]
        assert found[f"{ID}{name}_export_bytes"] == sum(sizes)
        # Weights and both moments of AdamW against weights alone.
        assert found[f"{ID}{name}_checkpoint_bytes"] > 2.5 * max(sizes)
    own, other = (found[f"{ID}{name}_held_out_loss"] for name in ("hwh_std", "transformer"))
    assert found[f"{ID}hwh_std_minus_transformer_held_out_loss"] == own - other
    assert (folder / "short_run.png").read_bytes().startswith(b"\x89PNG")


def test_texts_and_curves_stand_in_the_detail(result):
    found = short_run_report.held_out_figures(result["figures"])
    assert set(found) == {"hwh_std", "transformer"}
    for figure in found.values():
        curve = figure["detail"]["loss_curve"]
        assert 70 <= len(curve) <= 150
        assert curve[0][1] > curve[-1][1] + 0.5
        assert [text["tokens"] > 0 for text in figure["detail"]["texts"]] == [True] * 3
        # Of all whole windows of 64 tokens, each of which sees the first token of the next.
        windows = (figure["sizes"]["store_tokens"] - 1) // 64
        assert figure["detail"]["epochs"] == short_run_training.QUICK_STEPS * 256 / (windows * 64)
    assert found["hwh_std"]["sizes"] == found["transformer"]["sizes"], "the same batches, steps and recipe"


def parts(result, folder):
    """The result as two cards would have written it."""
    for name in ("hwh_std", "transformer"):
        figures = [figure for figure in result["figures"] if figure["id"].startswith(f"{ID}{name}_")]
        figures = [figure for figure in figures if "minus" not in figure["id"]]
        path = folder / f"{name}.json"
        command = f"python -m benchmarks.short_run --architectures {name}"
        path.write_text(json.dumps(result | {"card": "some card", "command": command, "figures": figures}))
        yield path


def test_a_model_that_is_trained_already_is_only_opened_anew(folder, result, tmp_path, monkeypatch, capsys):
    def trained(*_):
        raise AssertionError("it was trained again")

    monkeypatch.setattr(short_run, "train_with_a_stop", trained)
    options = ["--quick", "--work", str(folder / "work"), "--architectures", "transformer"]
    assert short_run.main([*options, "--output", str(tmp_path / "again")]) == 0
    again = values(json.loads((tmp_path / "again" / "short_run_part.json").read_text()))
    assert again == {name: value for name, value in values(result).items() if f"{ID}transformer" in name}
    capsys.readouterr()
    assert short_run.main([*options, "--steps", "40", "--output", str(tmp_path / "other")]) == 1
    assert "was trained with other settings; give another folder" in capsys.readouterr().err
    # Its seconds and bytes would be recorded as those of the card and the packages at hand.
    monkeypatch.setattr(short_run, "card", lambda: "another card")
    monkeypatch.setattr(short_run, "package_versions", lambda: {"torch": "1"})
    assert short_run.main([*options, "--output", str(tmp_path / "other")]) == 1
    assert "was trained with other card and versions; give another folder" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_programs_run_the_code_of_this_checkout(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    (checkout / "hwh_core").mkdir(parents=True)
    (checkout / "hwh_core" / "__init__.py").write_text("print('of the checkout')")
    (tmp_path / "program.py").write_text("import hwh_core")
    monkeypatch.setattr(short_run_training, "ROOT", checkout)
    log = tmp_path / "log"
    with short_run_training.process([sys.executable, str(tmp_path / "program.py")], log) as started:
        short_run_training.wait(started, 60, log, until=lambda: False)
    assert log.read_text() == "of the checkout\n"


def test_models_of_another_size_than_their_name_are_refused(folder, tmp_path, capsys):
    data, output = folder / "work" / "data", tmp_path / "output"
    assert short_run.main(["--store", str(data), "--output", str(output)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: --store: {data / 'train'} has a vocabulary of 512 entries, expected 32,000")
    assert errors.count("\n") == 1
    assert not output.exists()


def test_parts_of_two_cards_make_the_whole(result, tmp_path, capsys):
    given = [str(path) for path in parts(result, tmp_path)]
    assert short_run.main(["--join", *given, "--output", str(tmp_path / "whole")]) == 0
    whole = json.loads((tmp_path / "whole" / "short_run.json").read_text())
    assert values(whole) == values(result)
    commands = "; ".join(json.loads(Path(path).read_text())["command"] for path in given)
    assert (whole["card"], whole["command"]) == ("some card", commands)
    assert "short_run on some card" in capsys.readouterr().out
    assert (tmp_path / "whole" / "short_run.png").stat().st_size > 10_000


@pytest.mark.parametrize("damage", ["batches", "card", "twice", "other file", "absent"])
def test_parts_that_do_not_belong_together_are_refused(result, tmp_path, capsys, damage):
    first, second = parts(result, tmp_path)
    content = json.loads(second.read_text())
    if damage == "batches":
        short_run_report.held_out_figures(content["figures"])["transformer"]["sizes"]["store_sha256"] = "0"
        expected = f"{second} has another store_sha256 than {first}"
    elif damage == "card":
        content["card"] = "other card"
        expected = f"{second} has another card than {first}"
    elif damage == "twice":
        content = json.loads(first.read_text())
        expected = f"{ID}hwh_std_held_out_loss stands in {first} and in {second}"
    else:
        content |= {"command": "python -m benchmarks.probe", "figures": [{"id": "probe.speed", "value": 1.0}]}
        expected = f"--join: {second}: expected a result file"
    second.write_text(json.dumps(content))
    if damage == "absent":
        second.unlink()
    assert short_run.main(["--join", str(first), str(second), "--output", str(tmp_path / "whole")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: --join")
    assert errors.count("\n") == 1
    assert expected in errors
    assert not (tmp_path / "whole").exists()


def running_below(folder):
    """Processes whose command line names ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_early_it_leaves_no_process_and_no_result(tmp_path, number):
    command = [sys.executable, "-m", "benchmarks.short_run", "--quick", "--steps", "100000", "--output", str(tmp_path)]
    command += ["--architectures", "transformer"]
    # All in one place, also what is temporary.
    environment = os.environ | ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    # In the background of a shell without job control SIGINT is ignored, also by what the tests start there.
    hearing = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=hearing
    ) as process:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in tmp_path.glob("short_run-*/*/checkpoints/train_log.jsonl")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(running_below(tmp_path)) >= 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        time.sleep(0.5)
    else:
        assert process.returncode == 128 + number
        assert "Traceback" not in errors
        assert list(tmp_path.glob("short_run*")) == []
    assert running_below(tmp_path) == []
    assert list(tmp_path.glob("*.json")) == []


# Writes a row every 10 ms, and from where it should be stopped on every 100 ms; its fault says what it does wrong.
PRETENDER = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--checkpoints") + 1])
output = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
again = folder.exists()
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
folder.mkdir(exist_ok=True)
rows = []
fault = "FAULT"
for step in range(1, 41):
    rows.append({"step": step, "loss": 1.0 + again, "tokens_per_second": 1.0})
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    time.sleep(0.1 if step > 22 and not again and not stopped else 0.01)
    if stopped and fault != "deaf":
        if fault == "error":
            print("error: the disk is full", file=sys.stderr)
            sys.exit(1)
        if fault != "no checkpoint":
            place = folder / f"step-{step:08d}"
            place.mkdir()
            (place / "state.json").write_text(json.dumps({"step": step - (fault == "behind")}))
        sys.exit(143)
if again and fault == "liar":
    step = json.loads(next(folder.glob("step-*/state.json")).read_text())["step"]
    print(f"going on after step {step} of 40", file=sys.stderr)
(output / "model").mkdir(parents=True)
(output / "metrics.json").write_text("{}")
(output / "train_log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("deaf", "ended with code 0, expected 143"),
        ("error", "ended with code 1, expected 143 after SIGTERM; it said: error: the disk is full"),
        ("no checkpoint", "no checkpoint after SIGTERM"),
        ("behind", "its checkpoint is of step"),
        ("anew", "did not say that it goes on after step"),
        ("liar", "are not those that stood there at the stop"),
    ],
)
def test_a_stop_or_resumption_that_was_none_is_found(tmp_path, monkeypatch, fault, expected):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(PRETENDER.replace("FAULT", fault))
    monkeypatch.setattr(short_run_training, "ROOT", tmp_path)
    settings = {"model": {"architecture": "transformer"}, "training": {"steps": 40}}
    stores = short_run_training.Stores(tmp_path, tmp_path, tmp_path)
    with pytest.raises(short_run_training.RunError, match=expected):
        short_run_training.train_with_a_stop(settings, stores, tmp_path, 60)


def test_a_training_that_hangs_is_given_up(tmp_path):
    log = tmp_path / "log"
    with (
        pytest.raises(short_run_training.RunError, match=r"took longer than 0.2 s; it said: nothing"),
        short_run_training.process(["sleep", "100"], log) as started,
    ):
        short_run_training.wait(started, 0.2, log, until=lambda: False)
    assert started.returncode == -signal.SIGTERM


def test_each_step_once():
    rows = [{"step": step} for step in (1, 2, 3)]
    short_run_training.check_resumed(rows, rows[:2], 3)
    for wrong in (rows[:2], [*rows[:2], rows[1], rows[2]]):
        with pytest.raises(short_run_training.RunError, match="not each of 3 steps once"):
            short_run_training.check_resumed(wrong, rows[:2], 3)


def test_a_loss_that_does_not_fall_or_does_not_come_back_is_said():
    rows = [{"loss": loss} for loss in (6.0, 5.0)]
    good = {"rows": rows, "metrics": {"train_loss": 5.0, "held_out_loss": 5.1}, "fresh": {"held_out_loss": 5.102}}
    assert short_run_report.complaints("a", good) == []
    (lost,) = short_run_report.complaints("a", good | {"fresh": {"held_out_loss": 5.2}})
    assert "held-out loss of 5.2000 in a fresh process and had 5.1000" in lost
    (flat,) = short_run_report.complaints("a", good | {"rows": [{"loss": 5.0}, {"loss": 5.0}]})
    assert "did not fall" in flat
    assert short_run_report.complaints("a", good | {"fresh": {"held_out_loss": float("nan")}})


def test_bins_hold_equally_many_steps_and_leave_none_out():
    assert short_run_report.thinned([4.0, 2.0, 3.0], points=2) == [(1.5, 3.0), (3, 3.0)]
    curve = short_run_report.thinned([float(number) for number in range(440)])
    assert len(curve) == 147
    assert [step for step, _ in curve[:2]] == [2, 5]
    assert len(short_run_report.thinned([1.0] * 7)) == 7


def test_the_settings_are_the_papers_in_fewer_and_smaller_steps():
    scale = next(scale for scale in load_preset(ROOT / "config" / "paper.yaml").hwh.scales if scale.name == "380M")
    own, other = (short_run_training.settings_of(name, False, None, None) for name in ("hwh_std", "transformer"))
    assert own["training"] == other["training"]
    assert own["model"] == other["model"] | {"architecture": "hwh_std"}
    assert own["model"]["seed"] == 42
    assert own["model"]["shape"] == other["model"]["shape"]
    assert own["model"]["shape"]["num_layers"] == scale.shape.num_layers
    theirs = scale.training.model_dump(mode="json")
    changed = {key: value for key, value in own["training"].items() if value != theirs[key]}
    assert changed == {
        "steps": 440, "tokens_per_step": 131_072, "warmup_steps": 44, "checkpoint_every_steps": 440,
    }  # fmt: skip
    faster = short_run_training.settings_of("hwh_std", False, 100, 1e-3)["training"]
    assert (faster["steps"], faster["optimizer"]["learning_rate"]) == (100, 1e-3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--store", "{tmp}"],
            "error: --store {tmp}: expected a folder with train, held_out and tokenizer, and it has no",
        ),
        (["--quick", "--steps", "3"], "error: --steps 3: expected at least 20"),
        (["--quick", "--learning-rate", "-1"], "error: --settings: key 'training.optimizer.learning_rate' = -1.0"),
        (["--quick", "--work", "{tmp}"], "error: --work: {tmp}/transformer is there already"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path, capsys, arguments, expected):
    (tmp_path / "transformer").mkdir()
    given = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    assert short_run.main([*given, "--output", str(tmp_path / "output")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(expected.replace("{tmp}", str(tmp_path)))
    assert errors.count("\n") == 1
    assert not (tmp_path / "output").exists()


def test_a_store_that_is_damaged_is_named_and_nothing_is_written(tmp_path, capsys):
    data = short_run.quick_data(tmp_path / "data")
    tokens = data / "train" / "tokens.bin"
    tokens.write_bytes(bytes(tokens.stat().st_size))
    options = ["--quick", "--architectures", "transformer", "--store", str(data), "--output", str(tmp_path / "output")]
    assert short_run.main(options) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "error: transformer: ended with code 1, expected 143 after SIGTERM; it said: error: token store"
    )
    assert "sha256 of tokens.bin" in last
    assert not (tmp_path / "output").exists()
