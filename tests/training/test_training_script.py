"""scripts/train.py from settings and stores to a model folder, with its failures."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from hwh_core.memory_estimate import peak_bytes, training_of
from hwh_core.training.settings import parse_settings


def run(command_and_environment, **options):
    command, environment = command_and_environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


def test_a_run_leaves_model_initial_log_metrics_and_manifest(settings, train_command, stores, tmp_path):
    output = tmp_path / "out"
    done = run(train_command(settings(), output))
    assert done.returncode == 0, done.stderr
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["tokens"] == 768
    assert metrics["mfu"] is None
    assert metrics["delta_net_backend"] == "torch"
    assert metrics["cuda_graph"] is False
    assert metrics["delta_net_check"] is None
    assert metrics["peak_memory_bytes"] > 50e6
    assert 2 < metrics["held_out_loss"] < 7
    rows = [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert metrics["train_loss"] == pytest.approx(rows[-1]["loss"])
    manifest = json.loads((output / "model.manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["settings"]["model"]["architecture"] == "hwh_std"
    assert set(manifest["fingerprint"]) == {"config", "data"}
    assert not list((output / "checkpoints").glob("step-*"))

    from hwh_core.data.tokenizer import tokenizer_fingerprint
    from hwh_core.modeling import HwHForCausalLM, build_model

    trained = HwHForCausalLM.from_pretrained(output / "model")
    initial = HwHForCausalLM.from_pretrained(output / "initial")
    assert trained.num_parameters() == metrics["parameters"]
    model = settings()["model"]
    fresh = build_model(model["shape"], "hwh_std", 1e4, True, 32, 320, 0)
    for name, parameter in fresh.named_parameters():
        assert torch.equal(initial.get_parameter(name), parameter), name
    assert not torch.equal(trained.lm_head.weight, initial.lm_head.weight)
    for folder in ("model", "initial"):
        assert tokenizer_fingerprint(output / folder) == tokenizer_fingerprint(stores["tokenizer"])
    assert trained.config.eos_token_id is not None


def test_a_retrieval_mix_is_trained_on_and_recorded(settings, train_command, tmp_path):
    mix = {"sequence_share": 0.5, "pairs_per_sequence": 1, "repeat_share": 0.4, "value_digits": [4]}
    values = settings(tokens_per_step=1024, steps=3)
    values["model"] |= {"length": 512, "architecture": "transformer"}
    data, losses = set(), set()
    for name, more in (("with", {"retrieval_mix": mix}), ("without", {})):
        done = run(train_command({**values, **more}, tmp_path / name))
        assert done.returncode == 0, done.stderr
        metrics = json.loads((tmp_path / name / "metrics.json").read_text())
        manifest = json.loads((tmp_path / name / "model.manifest.json").read_text())
        assert metrics["retrieval_mix"] == manifest["settings"].get("retrieval_mix") == more.get("retrieval_mix")
        data.add(metrics["fingerprint"]["data"])
        losses.add(metrics["train_loss"])
    assert len(data) == len(losses) == 2


def test_a_retrieval_mix_that_does_not_fit_is_refused_before_anything_is_written(settings, train_command, tmp_path):
    mix = {"sequence_share": 0.5, "pairs_per_sequence": 9, "repeat_share": 0.4, "value_digits": [4]}
    done = run(train_command({**settings(), "retrieval_mix": mix}, tmp_path / "out"))
    assert done.returncode == 1
    assert "error: retrieval_mix.pairs_per_sequence = 9: facts and questions take" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_finished_training_is_left_alone(settings, train_command, tmp_path):
    """The same command again trains nothing, and says what to delete; other settings train."""
    output = tmp_path / "out"
    assert run(train_command(settings(), output)).returncode == 0
    before = (output / "model" / "model.safetensors").stat().st_mtime_ns
    again = run(train_command(settings(), output))
    assert again.returncode == 0
    assert f"{output} is finished; delete {output / 'metrics.json'} to train anew" in again.stderr
    assert (output / "model" / "model.safetensors").stat().st_mtime_ns == before
    other = settings()
    other["model"]["seed"] += 1
    assert run(train_command(other, output)).returncode == 0
    assert (output / "model" / "model.safetensors").stat().st_mtime_ns > before


def test_two_processes_both_hear_that_a_training_is_finished(settings, train_command, tmp_path):
    """Only the first one looks; the other must not wait for a training that never starts."""
    command, environment = train_command(settings(), tmp_path / "out")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    started = [*launcher, *command[1:]]
    first = run((started, environment), timeout=300)
    assert first.returncode == 0, first.stderr[-3000:]
    again = run((started, environment), timeout=120)
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stderr.count("is finished; delete") == 1


def test_sigterm_saves_and_the_same_command_goes_on(settings, train_command, tmp_path):
    output = tmp_path / "out"
    values = settings(steps=5000, warmup_steps=10, checkpoint_every_steps=100000)
    command, environment = train_command(values, output)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    log = output / "checkpoints" / "train_log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 3):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "run it again to go on" in errors
    assert not (output / "metrics.json").exists()
    assert not (output / "model").exists()
    assert len(list((output / "checkpoints").glob("step-*"))) == 1


@pytest.mark.parametrize("damage", ["store", "tokenizer", "settings", "sizes"])
def test_bad_input_ends_in_one_sentence(settings, train_command, stores, tmp_path, damage):
    values, output = settings(), tmp_path / "out"
    command, environment = train_command(values, output)
    if damage == "settings":
        values["training"]["lerning_rate"] = 1
        command, environment = train_command(values, output)
        expected = "training.lerning_rate"
    elif damage == "sizes":
        values["model"]["shape"]["gdn_head_dim"] = 48
        command, environment = train_command(values, output)
        expected = "gdn_head_dim = 48"
    elif damage == "store":
        copy = tmp_path / "store"
        shutil.copytree(stores["train"], copy)
        data = bytearray((copy / "tokens.bin").read_bytes())
        data[10] ^= 1
        (copy / "tokens.bin").write_bytes(data)
        command[command.index("--store") + 1] = str(copy)
        expected = "tokens.bin"
    else:
        copy = tmp_path / "tokenizer"
        shutil.copytree(stores["tokenizer"], copy)
        data = json.loads((copy / "tokenizer.json").read_text())
        data["model"]["merges"].pop()
        (copy / "tokenizer.json").write_text(json.dumps(data))
        command[command.index("--tokenizer") + 1] = str(copy)
        expected = "does not fit token store"
    done = run((command, environment))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert not (output / "model").exists()
    assert not (output / "metrics.json").exists()


def test_help_needs_no_heavy_import(train_command, settings, tmp_path):
    (python, script, *_), environment = train_command(settings(), tmp_path)
    done = run(([python, "-X", "importtime", script, "--help"], environment))
    assert done.returncode == 0
    assert "--held-out" in done.stdout
    assert "torch" not in done.stderr


def test_a_card_that_is_too_small_is_refused_before_anything_is_written(settings, train_command, tmp_path, monkeypatch):
    """The card is made up: what is refused is decided before a device is used."""
    values = settings(tokens_per_step=4096, micro_batch_tokens=2048)
    (_, script, *arguments), environment = train_command(values, tmp_path / "out")
    program = (
        "import runpy, sys; from hwh_core import memory_plan; from hwh_core.memory_estimate import Card; "
        "memory_plan.card_at_hand = lambda rank: Card('a small card', 2**30, FREE); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    training = training_of(parse_settings(values), vocab_size=320)
    for free, mend in (
        (peak_bytes(training) - 1, "lower training.micro_batch_tokens from 2048 to 1024, the largest value that fits"),
        (10**6, "no value of training.micro_batch_tokens fits"),
    ):
        done = run(([sys.executable, "-c", program.replace("FREE", str(free)), script, *arguments], environment))
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: {tmp_path / 'out'}: this training needs about ")
        assert done.stderr.count("\n") == 1
        assert "a small card has 1.0 GiB" in done.stderr
        assert mend in done.stderr
        assert not (tmp_path / "out").exists()
