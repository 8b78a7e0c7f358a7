"""benchmarks.train: its plan, its figures, and a run from end to end at a size of seconds."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import paper, train
from benchmarks.train_peers import matched_intermediate_size, our_parameters, peer_flops_per_token
from benchmarks.train_plan import full_plan, paper_plan, quick_plan
from hwh_core.architectures import layers_of_shape
from hwh_core.training.flops import model_flops_per_token

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.train", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_quick_run_measures_ours_a_peer_and_agreement(tmp_path):
    done = run("--quick", "--output", tmp_path, "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    figures = {figure["id"]: figure for figure in json.loads((tmp_path / "train.json").read_text())["figures"]}
    for name in ("transformer", "hwh_std", "hf_llama"):
        assert figures[f"train.quick_64_{name}_tokens_per_second"]["value"] > 0
    peer = figures["train.quick_64_hf_llama_tokens_per_second"]["detail"]
    assert peer["parameters"] == pytest.approx(peer["ours_parameters"], rel=0.01)
    assert figures["train.agreement_hwh_std_bfloat16_against_float32"]["value"] > 0
    assert {path.stem for path in (tmp_path / "kept").iterdir()} == {case.name for case in quick_plan()}


def test_a_case_that_fails_costs_no_other(tmp_path, monkeypatch, capsys):
    own = train.run_case

    def failing(case, *rest):
        if case.architecture == "hwh_std" and case.kind == "ours":
            return {"error": "ended with code 1: no such kernel"}
        return own(case, *rest)

    monkeypatch.setattr(train, "run_case", failing)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["train", "--quick", "--only", "quick_64_(tr|hwh)", "--output", str(tmp_path)])
    assert train.main() == 1
    assert "quick_64_hwh_std: ended with code 1: no such kernel" in capsys.readouterr().err
    figures = json.loads((tmp_path / "train_part.json").read_text())["figures"]
    assert [figure["id"] for figure in figures] == ["train.quick_64_transformer_tokens_per_second"]


def test_the_plan_can_be_built_and_names_are_unique():
    plan = full_plan()
    assert len({case.name for case in plan}) == len(plan)
    for case in plan:
        assert case.training.tokens_per_step == case.rows * case.length
        if case.kind in ("ours", "agreement"):
            layers = layers_of_shape(case.shape, case.architecture)
            assert len(layers) == case.shape["num_layers"]
    names = {case.name for case in plan}
    for own, _, peer, _ in train.COMPARISONS.values():
        assert own in names
        assert peer is None or peer in names


@pytest.mark.parametrize(("peer", "ours"), [("fla_gdn", "gdn"), ("hf_llama", "transformer")])
def test_a_peer_of_our_size_has_our_flops(peer, ours):
    """The same counting for peers: parameters without the input embedding, and the mixing of tokens."""
    case = next(case for case in full_plan() if case.architecture == peer)
    sizes = {name: case.shape[name] for name in ("hidden_size", "intermediate_size")}
    wanted = model_flops_per_token(
        layers_of_shape(case.shape, ours), **sizes, vocab_size=case.vocab_size, length=case.length
    )
    assert peer_flops_per_token(case, our_parameters(case)) == pytest.approx(wanted, rel=1e-9)


def test_comparisons_and_bounds():
    case = full_plan()[0]
    speeds = {"380m_2048_hwh_std": 98.0, "380m_2048_transformer": 100.0}
    results = {
        name: {"tokens_per_second": speed, "step_seconds": 1.0, "spread_seconds": 0.0, "mfu": speed / 200}
        for name, speed in speeds.items()
    }
    figure = train.comparison_figure("380m_2048_hwh_std_over_transformer", results)
    assert (figure["id"], figure["value"]) == ("train.380m_2048_hwh_std_over_transformer", 0.98)
    assert train.comparison_figure("380m_2048_transformer_mfu", results)["value"] == 0.5
    assert train.comparison_figure("380m_2048_gdn_over_fla", results) is None
    results["8x512_b8_2048_hwh_std"] = {"step_seconds": 0.019, "spread_seconds": 0.001}
    figure = train.comparison_figure("8x512_b8_hwh_std_step_ms", results)
    assert (figure["value"], figure["spread"]) == pytest.approx((19, 1))
    agreement = dataclasses.replace(case, kind="agreement")
    curves = {agreement.name: {"differences": {"bfloat16_against_float32": 0.2, "chunked_against_plain_loss": 0.001}}}
    assert len(train.complaints([agreement], curves)) == 1
    assert "0.2 nats" in train.complaints([agreement], curves)[0]
    curves[agreement.name]["differences"]["bfloat16_against_float32"] = float("nan")
    assert len(train.complaints([agreement], curves)) == 1


def test_memory_that_does_not_suffice_halves_the_batch(monkeypatch):
    asked = []

    def child(command, **_):
        rows = int(command[command.index("--rows") + 1]) if "--rows" in command else 16
        asked.append(rows)
        result = {"out_of_memory": True, "error": "no memory"} if rows > 4 else {"rows": rows}
        Path(command[4]).write_text(json.dumps(result))
        return subprocess.CompletedProcess(command, 0, "", "warning: something\n")

    monkeypatch.setattr(train.subprocess, "run", child)
    assert train.run_case(full_plan()[0], "1", False, 10) == {"rows": 4, "warnings": ["warning: something"]}
    assert asked == [16, 8, 4]


def test_devices_are_taken_among_the_visible_ones(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert train.visible_devices(1, 2) == ["1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert train.visible_devices(0, 2) == ["4", "6"]
    with pytest.raises(ValueError, match="--devices 3"):
        train.visible_devices(0, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert train.visible_devices(0, 1) == [None]


def test_peers_are_matched_to_our_parameters():
    case = next(case for case in full_plan() if case.kind == "hf")
    wanted, per_column = our_parameters(case), 3 * 1024 * 24
    width = matched_intermediate_size(case, lambda width: wanted + (width - 2880) * per_column)
    assert width == 2880
    with pytest.raises(ValueError, match="over 1% apart"):
        matched_intermediate_size(case, lambda width: 2 * wanted)


def test_the_fastest_way_to_run_a_peer_counts():
    """One that ends its process, another that is slower; and none that works."""
    crash, slow, fast = {"error": "ended with code -11"}, {"step_seconds": 0.4}, {"step_seconds": 0.3}
    best = train.fastest({"a": crash, "b": slow, "c": fast})
    assert best == {"step_seconds": 0.3, "variants": {"a": "ended with code -11", "b": 0.4, "c": 0.3}}
    none = train.fastest({"a": crash, "b": {"error": "no memory", "out_of_memory": True}})
    assert none["out_of_memory"]
    assert "-11" in none["error"]
    assert "no memory" in none["error"]


def test_the_papers_sizes_take_whole_micro_batches_of_real_text():
    plan = {case.name: case for case in paper_plan(quick=False)}
    names = ("transformer", "gdn", "inter", "hwh_std")
    assert set(plan) == {f"{size}_{name}" for size in ("380m", "1400m") for name in names}
    for case in plan.values():
        assert case.rows * case.length == case.training.tokens_per_step == 65536
        assert case.training.tokens_per_step % case.training.micro_batch_tokens == 0
        assert case.steps[0] >= 20


def test_a_quick_run_at_the_papers_kind_of_model_on_text(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["paper", "--quick", "--only", "hwh_std", "--output", str(tmp_path)])
    assert paper.main() == 0
    result = json.loads((tmp_path / "paper_part.json").read_text())
    figures = {figure["id"]: figure for figure in result["figures"]}
    assert set(figures) == {"paper.quick_hwh_std_tokens_per_second", "paper.quick_hwh_std_loss_fall"}
    assert figures["paper.quick_hwh_std_loss_fall"]["value"] > 0.1
    speed = figures["paper.quick_hwh_std_tokens_per_second"]
    assert speed["sizes"]["vocab_size"] == 512, "that of the store"
    assert len(speed["detail"]["loss_curve"]) == 27


def test_figures_of_a_card_and_a_loss_that_does_not_fall():
    case = paper_plan(quick=False)[0]
    curve = [10.0] * 27
    result = {"tokens_per_second": 1.0, "rows": 32, "vocab_size": 9, "mfu": 0.4, "peak_memory_bytes": 2**31}
    result["loss_curve"] = curve
    values = {figure["id"]: figure["value"] for figure in paper.figures_of(case, result, "0")}
    assert values["paper.380m_transformer_mfu"] == 0.4
    assert values["paper.380m_transformer_peak_gib"] == 2
    assert paper.complaints({"a": result, "b": {"error": "no memory"}}) == [
        "b: no memory",
        "a: the loss did not fall in 27 steps (by 0 nats)",
    ]
    assert paper.complaints({"a": result | {"loss_curve": [*curve[:-1], 9.0]}}) == []
