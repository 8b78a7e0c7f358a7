"""What a preset costs: counts from its sizes, speeds from the benchmarks, states from the files that are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hwh_core import cli
from hwh_core.commands import estimate as command
from hwh_core.config import load_preset, validate_preset
from hwh_core.estimate import disk_bytes, estimate, needle_batches, needle_prompts, target_folders, waiting
from hwh_core.memory_estimate import GIB, Card
from hwh_core.memory_plan import planned_trainings
from hwh_core.scripting import UserError
from hwh_core.throughput import ASSUMED_SHARE, Measurement, expected_speed, flops_per_token, measurements

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks" / "results"
MAIN = {f"hwh/{scale}/{name}_s42" for scale in ("380M", "1.4B") for name in ("transformer", "gdn", "inter", "hwh_std")}


@pytest.fixture(scope="module")
def paper():
    return load_preset(ROOT / "config" / "paper.yaml")


def jobs_of(preset, results=Path("nowhere"), **options):
    found = estimate(preset, results=results, benchmarks=BENCHMARKS, measured=measurements(BENCHMARKS), **options)
    return {job.name: job for job in found}


def training_of(preset, folder):
    return next(planned.training for planned in planned_trainings(preset) if planned.folder == folder)


# --------------------------------------------------------------------------- speeds


@pytest.mark.parametrize("architecture", ["transformer", "gdn", "inter", "hwh_std"])
@pytest.mark.parametrize(("scale", "name"), [("380M", "380m"), ("1.4B", "1400m")])
def test_cost_of_the_papers_tables_rests_on_steps_of_real_text(paper, scale, name, architecture):
    figures = {f["id"]: f for f in json.loads((BENCHMARKS / "paper.json").read_text())["figures"]}
    speed = expected_speed(training_of(paper, f"hwh/{scale}/{architecture}_s42"), measurements(BENCHMARKS))
    assert speed.basis == "measured"
    assert speed.tokens_per_second == figures[f"paper.{name}_{architecture}_tokens_per_second"]["value"]


def a_measurement(training, card="NVIDIA H200", rate=1000.0, architecture=None, tokens=65536, real_text=False):
    return Measurement(
        architecture or training.architecture,
        training.shape,
        training.length,
        training.vocab_size,
        tokens,
        rate,
        card,
        real_text,
    )


def test_an_architecture_that_was_not_measured_gets_the_least_share_of_its_size(paper):
    gdn, standard = (training_of(paper, f"hwh/1.4B/{name}_s42") for name in ("gdn", "hwh_std"))
    fast, slow = (
        a_measurement(standard, rate=rate, architecture=name) for rate, name in ((9e4, "inter"), (6e4, "hwh_std"))
    )
    speed = expected_speed(gdn, [fast, slow])
    assert speed.basis == "share of hwh_std"
    assert speed.tokens_per_second * flops_per_token(gdn) == pytest.approx(6e4 * flops_per_token(standard))


def test_another_card_is_credited_with_the_same_share_of_its_peak(paper):
    training = training_of(paper, "hwh/380M/transformer_s42")
    speed = expected_speed(training, [a_measurement(training)], "NVIDIA A100-SXM4-80GB")
    assert speed.basis == "share measured on NVIDIA H200"
    assert speed.tokens_per_second == pytest.approx(1000 * 312 / 989)
    with pytest.raises(UserError, match="'Abacus' is not known; expected a name with one of GB200"):
        expected_speed(training, [], "Abacus")


def test_a_size_that_was_not_measured_gets_the_assumed_share(paper):
    training = training_of(paper, "controlled/theta1e4_L4096_s42")
    speed = expected_speed(training, measurements(BENCHMARKS))
    assert speed.basis == "assumed share 20%"
    assert speed.tokens_per_second * flops_per_token(training) == pytest.approx(ASSUMED_SHARE * 989e12)


def test_assumed_share_is_under_every_measured_one():
    figures = json.loads((BENCHMARKS / "train.json").read_text())["figures"]
    shares = [share for figure in figures if (share := (figure.get("detail") or {}).get("mfu"))]
    assert len(shares) >= 15
    assert min(shares) > ASSUMED_SHARE


def test_of_several_measurements_those_on_this_card_and_on_real_text_count_then_the_nearest_batch(paper):
    training = training_of(paper, "hwh/380M/transformer_s42")
    small, large = (a_measurement(training, rate=rate, tokens=tokens) for rate, tokens in ((1.0, 16384), (2.0, 65536)))
    text = a_measurement(training, rate=3.0, tokens=16384, real_text=True)
    elsewhere = a_measurement(training, rate=4.0, card="NVIDIA H100 80GB HBM3", real_text=True)
    assert expected_speed(training, [small, large]).tokens_per_second == 2.0
    for order in ([small, large, text, elsewhere], [elsewhere, text, large, small]):
        assert expected_speed(training, order, "NVIDIA H200").tokens_per_second == 3.0


def test_results_of_a_cpu_and_of_peers_are_no_measurement(tmp_path):
    text = (BENCHMARKS / "train.json").read_text()
    assert "hf_llama" not in {one.architecture for one in measurements(BENCHMARKS)}
    (tmp_path / "train.json").write_text(json.dumps({**json.loads(text), "card": "CPU"}))
    assert measurements(tmp_path) == []


# --------------------------------------------------------------------------- jobs


def test_tokens_flops_and_hours_of_the_papers_scales(paper):
    jobs = jobs_of(paper)
    small, large = jobs["hwh/380M/transformer_s42"], jobs["hwh/1.4B/hwh_std_s42"]
    assert small.tokens == pytest.approx(15e9, rel=1e-4)
    assert large.tokens == pytest.approx(100e9, rel=1e-4)
    # 6 N D of the whole model lies near, attention above, the input embedding below.
    assert small.flops == pytest.approx(6 * small.parameters * small.tokens, rel=0.1)
    assert large.hours == pytest.approx(large.tokens / large.tokens_per_second / 3600)
    assert 400 < large.hours < 700
    assert small.memory < 80 * GIB
    assert small.disk == small.parameters * (8 + 2 * 12)


def test_needles_of_rulers_metric_are_read_and_written(paper):
    job = jobs_of(paper)["hwh/380M/hwh_std_s42: needles"]
    lengths = paper.evaluation.niah.lengths
    # The eleven depths of every length, and eight tasks as lm-eval samples them.
    assert job.tokens == 11 * 50 * sum(lengths) + 8 * 500 * (1024 + 2048 + 4096)
    assert needle_prompts(paper.evaluation.niah)[0] == 11 * 50 * len(lengths) + 8 * 500 * 3
    assert job.basis == "measured at 380M, hwh_std"
    other = jobs_of(paper, card="NVIDIA A100-SXM4-80GB")["hwh/380M/hwh_std_s42: needles"]
    assert (other.hours, other.basis) == (job.hours, "measured at 380M, hwh_std, NVIDIA H200")


def test_hours_of_needles_are_near_those_that_were_timed(paper):
    """330 prompts of all lengths in the paper preset's batches, as `benchmarks.evaluation --task niah` timed them."""
    figures = json.loads((BENCHMARKS / "evaluation_time_all.json").read_text())["figures"]
    timed = next(figure for figure in figures if figure["id"] == "eval.380m_niah_s")
    changes = {"additional": [], "samples_per_cell": 2}
    evaluation = paper.evaluation.model_copy(update={"niah": paper.evaluation.niah.model_copy(update=changes)})
    assert needle_prompts(evaluation.niah)[0] == timed["sizes"]["prompts"]
    job = jobs_of(paper.model_copy(update={"evaluation": evaluation}))["hwh/380M/hwh_std_s42: needles"]
    assert 0.7 < job.hours * 3600 / timed["detail"]["scoring_s"] < 1.5


def test_batches_of_needles(minimal_preset):
    minimal_preset["evaluation"]["niah"]["additional"] = [
        {"variant": "single_1", "wording": "ruler", "lengths": [128], "samples": 3}
    ]
    niah = validate_preset(minimal_preset, "test").evaluation.niah
    ((length, prompts),) = ((length, len(niah.depths) * niah.samples_per_cell) for length in niah.lengths)
    assert (length, prompts, len(niah.depths) * 3) == (64, 2, 6)
    # Two prompts of 64 tokens in one batch of 256, six of 128 in three; one at a time where none fits.
    assert needle_batches(niah, 256) == 1 + 3
    assert needle_batches(niah, 1) == 2 + 6


def test_other_wordings_have_the_depths_of_the_main_grid(minimal_preset):
    niah = minimal_preset["evaluation"]["niah"]
    niah["additional"] = [{"variant": "single_2", "wording": "second"}]
    niah["additional"].append({"variant": "single_1", "wording": "ruler", "lengths": [128], "samples": 3})
    prompts = needle_prompts(validate_preset(minimal_preset, "test").evaluation.niah)
    assert prompts == (2 + 2 + 6, 2 * 64 + 2 * 64 + 6 * 128)


def test_states_are_those_of_the_files(paper, tmp_path):
    done, begun = tmp_path / "hwh/380M/gdn_s42", tmp_path / "hwh/380M/inter_s42/checkpoints"
    for folder in (done, begun / "step-00000500", begun / "step-00014305", begun / ".step-00020000.x.tmp"):
        folder.mkdir(parents=True)
    (done / "metrics.json").write_text("{}")
    (tmp_path / "data/llama32k/train").mkdir(parents=True)
    (tmp_path / "data/llama32k/train/index.json").write_text("{}")
    jobs = jobs_of(paper, tmp_path)
    assert (jobs["hwh/380M/gdn_s42"].state, jobs["hwh/380M/gdn_s42"].hours_left) == ("done", 0)
    assert jobs["hwh/380M/inter_s42"].state == "step 14305 of 28610"
    assert jobs["hwh/380M/inter_s42"].hours_left == pytest.approx(jobs["hwh/380M/inter_s42"].hours / 2)
    assert jobs["data/llama32k"].state == "to do", "held-out text is not tokenized yet"
    assert "hwh/380M/gdn_s42" not in waiting(paper, jobs.values())
    assert "hwh/380M/inter_s42" in waiting(paper, jobs.values())


@pytest.mark.parametrize(
    ("left", "state", "share_left"),
    [
        ({"metrics.json": '{"steps": 28610}'}, "done", 0.0),
        ({"metrics.json": '{"steps": 100}'}, "to do", 1.0),
        ({"metrics.json": ""}, "to do", 1.0),
        ({"checkpoints/step-00030000/state.json": "{}"}, "to do", 1.0),
        ({"checkpoints/step-00030000/state.json": "{}", "checkpoints/step-00014305/state.json": "{}"}, None, 0.5),
    ],
)
def test_what_a_training_of_other_steps_left_is_not_counted(paper, tmp_path, left, state, share_left):
    for name, text in left.items():
        path = tmp_path / "hwh/380M/gdn_s42" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    job = jobs_of(paper, tmp_path)["hwh/380M/gdn_s42"]
    assert job.state == (state or "step 14305 of 28610")
    assert job.hours_left == pytest.approx(share_left * job.hours)


def test_targets_choose_their_trainings(paper):
    assert target_folders(paper, ["table1"]) == MAIN
    assert target_folders(paper, ["fig4"]) == {name for name in MAIN if "1.4B" in name}
    assert target_folders(paper, ["table3"]) == {f"controlled/{model.name}" for model in paper.controlled.models}
    needles = {f"{name}: needles" for name in MAIN if "1.4B" in name}
    assert set(jobs_of(paper, targets=["table1"])) == MAIN, "Table 1 has no needles"
    assert set(jobs_of(paper, targets=["table1", "table2"])) == MAIN | needles
    assert set(jobs_of(paper, targets=["table3"])) == target_folders(paper, ["table3"])
    with pytest.raises(UserError, match="target 'tabel1' is unknown"):
        target_folders(paper, ["tabel1"])


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_sum_is_that_of_the_jobs(path):
    preset = load_preset(path)
    jobs = list(jobs_of(preset).values())
    total = command.totals(jobs)
    assert total["flops"] == sum(job.flops for job in jobs) > 0
    assert total["disk_bytes"] > 0
    assert bool(total["gpu_hours"]) == any(job.gpu and job.hours for job in jobs)
    if preset.keep_weights and not preset.controlled.curve:
        assert total["disk_bytes"] == pytest.approx(disk_bytes(preset), rel=1e-6)


# --------------------------------------------------------------------------- the command


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["estimate", *arguments])
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


def test_command_prints_every_job_and_the_sum(capsys, monkeypatch):
    monkeypatch.setattr(command, "visible_devices", lambda: ())
    code, out, _ = run(capsys, "paper", "--root", str(ROOT))
    assert code == 0
    for name in MAIN:
        assert f" {name} " in out
    assert "GPU-hours (" in out
    code, out, _ = run(capsys, "paper", "--root", str(ROOT), "--json")
    assert code == 0
    assert json.loads(out)["total"]["gpu_hours"] > 1000


def test_readme_says_what_the_command_says(capsys, monkeypatch):
    """Written anew with `hwh estimate paper --target table1 table2 --markdown`."""
    monkeypatch.setattr(command, "visible_devices", lambda: ())
    _, out, _ = run(capsys, "paper", "--root", str(ROOT), "--target", "table1", "table2", "--markdown")
    assert out.strip() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_training_that_fits_no_card_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(command, "visible_devices", lambda: ("one",))
    monkeypatch.setattr(command, "planned_cards", lambda devices: [Card("a small card", 48 * GIB, 47 * GIB)])
    code, out, err = run(capsys, "paper", "--root", str(ROOT))
    assert code == 1
    assert "hwh/1.4B/gdn_s42" in out
    assert "a small card has 48.0 GiB" in err
    assert "lower hwh.scales.1.4B.training.micro_batch_tokens from 32768 to" in err


@pytest.mark.parametrize(
    ("card", "named"),
    [
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3 (the smallest of the cards that 'NVIDIA H100' names) has 79.6 GiB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 has 79.6 GiB"),
        ("A100", "NVIDIA A100-SXM4-40GB (the smallest of the cards that 'A100' names) has 40.0 GiB"),
    ],
)
def test_a_named_card_that_is_too_small_is_refused(capsys, monkeypatch, card, named):
    """Whatever cards are here."""
    monkeypatch.setattr(command, "visible_devices", lambda: ("one",))
    monkeypatch.setattr(command, "planned_cards", lambda devices: [Card("a large card", 999 * GIB, 999 * GIB)])
    code, out, err = run(capsys, "paper", "--root", str(ROOT), "--card", card)
    assert code == 1
    assert "hwh/1.4B/gdn_s42" in out
    assert named in err
    assert "lower hwh.scales.1.4B.training.micro_batch_tokens from 32768 to" in err
    lines = err.splitlines()
    assert all(line.startswith("error: ") and line.count(" has ") == 1 for line in lines), "a line a training"
    assert len({line.split(":")[1] for line in lines}) == len(lines)
    assert len(lines) > 1 or card != "A100"


def test_a_named_card_that_is_large_enough_or_unknown_is_not_refused(capsys, monkeypatch):
    monkeypatch.setattr(command, "visible_devices", lambda: ("one",))
    monkeypatch.setattr(command, "planned_cards", lambda devices: [Card("a small card", 48 * GIB, 47 * GIB)])
    code, _, err = run(capsys, "paper", "--root", str(ROOT), "--card", "NVIDIA H200")
    assert (code, err) == (0, "")
    code, out, err = run(capsys, "paper", "--root", str(ROOT), "--card", "My H200 of 200 GB", "--json")
    assert code == 0
    assert "the memory of 'My H200 of 200 GB' is not known" in err
    json.loads(out)


def test_without_a_card_what_fits_on_no_known_card_is_refused(capsys, monkeypatch, minimal_preset):
    monkeypatch.setattr(command, "visible_devices", lambda: ())
    scale = minimal_preset["hwh"]["scales"][0]
    scale["shape"] |= {"hidden_size": 512, "intermediate_size": 1024, "num_layers": 32}
    scale["training"] |= {"tokens_per_step": 2**24, "steps": 100}
    # In float32 it is counted for a CPU, whose memory is no matter of cards.
    code, _, _ = run(capsys, "--settings", validate_preset(minimal_preset, "test").model_dump_json())
    assert code == 0
    scale["training"]["precision"] = "bfloat16"
    code, _, err = run(capsys, "--settings", validate_preset(minimal_preset, "test").model_dump_json())
    assert code == 1
    assert "hwh/tiny/hwh_std_s0: this training needs about" in err
    assert "the largest card known here" in err
    assert "lower hwh.scales.tiny.training.micro_batch_tokens from 16777216 to" in err


def test_settings_are_a_whole_preset(capsys, minimal_preset):
    preset = validate_preset(minimal_preset, "test")
    code, out, _ = run(capsys, "--settings", preset.model_dump_json(), "--json")
    assert code == 0
    names = [job["name"] for job in json.loads(out)["jobs"]]
    assert names == [
        "data/documents",
        "data/bpe512",
        "controlled/base",
        "hwh/tiny/hwh_std_s0",
        "hwh/tiny/hwh_std_s0: needles",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "-"),
        (7.27, "7.27"),
        (999.6, "1k"),
        (184755, "185k"),
        (380.2e6, "380M"),
        (1.391e9, "1.39B"),
        (1e11, "100B"),
    ],
)
def test_quantities(value, text):
    assert command.quantity(value) == text


def test_needs_no_torch():
    code = "import sys, hwh_core.commands.estimate; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
