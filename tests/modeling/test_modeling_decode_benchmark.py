"""The decoding benchmark end to end at its smallest, and what benchmarks share."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwh_core.architectures import layers_of_shape

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def run(*arguments):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.decode", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_quick_form_runs_on_a_cpu(tmp_path):
    finished = run("--quick", "--output", str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    written = json.loads((tmp_path / "decode.json").read_text())
    assert {"card", "versions", "date", "command", "figures"} == set(written)
    assert written["command"] == "python -m benchmarks.decode --quick"
    figures = {figure["id"]: figure for figure in written["figures"]}
    for length in (64, 300):
        for architecture in ("transformer", "hwh_std"):
            for name in ("prefill", "decode", "batch8_decode"):
                assert figures[f"decode.{length}_{architecture}_{name}_tokens_per_second"]["value"] > 0
            size = figures[f"decode.{length}_{architecture}_cache_bytes"]
            assert size["value"] == size["against"] > 0
            assert size["detail"]["allocated_bytes"] >= size["value"]
        rates = [figures[f"decode.{length}_{name}_decode_tokens_per_second"] for name in ("hwh_std", "transformer")]
        ratio = figures[f"decode.{length}_hwh_std_over_transformer"]["value"]
        assert ratio == pytest.approx(rates[0]["value"] / rates[1]["value"])
    assert figures["decode.cache_ratio"]["value"] == pytest.approx(figures["decode.cache_ratio"]["against"])
    assert "decode.cache_ratio" in finished.stdout


def test_the_full_form_asks_for_a_card(tmp_path):
    finished = run("--output", str(tmp_path))
    assert finished.returncode == 1
    assert "needs a CUDA device, and torch sees none; --quick also runs on a CPU" in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_follow_from_the_layers_of_the_paper(benchmark_module):
    decode = benchmark_module("decode")
    plan = decode.full_plan()
    assert (plan.shape["num_layers"], plan.shape["hidden_size"], plan.vocab_size) == (24, 1024, 32000)
    assert plan.reference_length in plan.lengths
    full = decode.expected_cache_bytes(layers_of_shape(plan.shape, "transformer"), 1000, 2)
    assert full == 24 * 2 * 1024 * 1000 * 2
    # 2 layers without attention, 10 with 1/8 and 12 with 1/4 of the width in attention; the rest in heads of 128.
    wide, outer, middle = 2 * 8, 10 * 7, 12 * 6
    states = (wide + outer + middle) * (4 * 128 * 128 + 2 * 3 * 3 * 128)
    hybrid = decode.expected_cache_bytes(layers_of_shape(plan.shape, "hwh_std"), 1000, 2)
    assert hybrid == (10 * 128 + 12 * 256) * 2 * 1000 * 2 + states
    window = decode.expected_cache_bytes(layers_of_shape(plan.shape, "hwh_swa"), 1000, 2)
    assert window == ((10 * 128 + 12 * 256) * 1000 + (2 * 1024 + 10 * 896 + 12 * 768) * 127) * 2 * 2


@pytest.mark.parametrize(("value", "accepted"), [(0.2, True), (0.2018, True), (0.2022, False), (0.197, False)])
def test_another_ratio_of_caches_ends_the_program(benchmark_module, value, accepted):
    figures = [{"id": "decode.cache_ratio", "value": value, "unit": "ratio", "against": 0.2}]
    if accepted:
        benchmark_module("decode").check_cache_ratio(figures)
        return
    with pytest.raises(SystemExit, match=f"{value:.5f}, but the layers give 0.20000"):
        benchmark_module("decode").check_cache_ratio(figures)


def test_recorded_figures_are_read_back(benchmark_module, tmp_path, capsys):
    recording = benchmark_module("recording")
    figures = [
        {"id": "a.speed", "value": 1234567.0, "unit": "tokens/s", "against": "b[1]", "spread": 2.5},
        {"id": "a.missing", "value": None, "unit": "bytes", "against": 7},
    ]
    path = recording.record("a", figures, "python -m benchmarks.a", tmp_path / "deep")
    assert path == tmp_path / "deep" / "a.json"
    assert json.loads(path.read_text())["figures"] == figures
    printed = capsys.readouterr().out
    for words in ("a.speed", "1,234,567 ± 2.5", "b[1]", str(path)):
        assert words in printed
    file = recording.record("a", figures, "python -m benchmarks.a", tmp_path / "other.json")
    assert file == tmp_path / "other.json"
    assert file.is_file()
    with pytest.raises(ValueError, match=r"id 'a.speed' occurs twice"):
        recording.record("a", figures[:1] * 2, "", tmp_path)


def test_a_timing_counts_its_calls(benchmark_module, monkeypatch):
    recording = benchmark_module("recording")
    monkeypatch.setattr(recording.torch.cuda, "is_available", lambda: False)
    times = iter([0.0, 1.0, 10.0, 13.0, 20.0, 22.0])
    monkeypatch.setattr(recording.time, "perf_counter", lambda: next(times))
    calls = []
    timing = recording.median_seconds(lambda: calls.append(1), repeats=3, warmup=2)
    assert len(calls) == 5
    assert timing == (2.0, 1.0)
    with pytest.raises(ValueError, match="repeats = 0"):
        recording.median_seconds(lambda: None, repeats=0)
