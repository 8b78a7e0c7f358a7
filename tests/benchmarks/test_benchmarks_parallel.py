"""benchmarks.parallel from end to end at a size of seconds, and its figures."""

from __future__ import annotations

import json

import pytest

from benchmarks import parallel
from benchmarks.train_plan import parallel_case


def test_a_quick_run_measures_two_processes_against_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert parallel.main(["--quick", "--ways", "fsdp", "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "parallel.json").read_text())
    assert written["command"] == "python -m benchmarks.parallel --quick --ways fsdp"
    figures = {figure["id"]: figure for figure in written["figures"]}
    assert list(figures) == [
        "paper.fsdp2_efficiency", "paper.alone_tokens_per_second", "paper.fsdp2_tokens_per_second",
    ]  # fmt: skip
    one, two = (figures[f"paper.{name}_tokens_per_second"] for name in ("alone", "fsdp2"))
    assert (one["detail"]["processes"], two["detail"]["processes"]) == (1, 2)
    assert figures["paper.fsdp2_efficiency"]["value"] == pytest.approx(two["value"] / (2 * one["value"]))
    # Both train on the same sequences from the same weights.
    assert two["detail"]["losses"] == pytest.approx(one["detail"]["losses"], rel=1e-3)


def test_a_measurement_that_fails_costs_no_other():
    good = {"tokens_per_second": 8.0, "step_seconds": 2.0, "spread_seconds": 0.0, "rows": 4, "processes": 1}
    case = parallel_case(quick=True, architecture="hwh_std")
    figures = parallel.figures_of(case, {"alone": good, "ddp": {"error": "x"}, "fsdp": good | {"processes": 4}})
    assert [figure["id"] for figure in figures] == [
        "paper.fsdp4_efficiency", "paper.alone_tokens_per_second", "paper.fsdp4_tokens_per_second",
    ]  # fmt: skip
    assert figures[0]["value"] == 0.25
    assert [figure["id"] for figure in parallel.figures_of(case, {"alone": {"error": "x"}, "ddp": good})] == [
        "paper.ddp1_tokens_per_second"
    ]


def test_the_case_is_a_step_of_the_papers_training():
    case = parallel_case(quick=False, architecture="hwh_std")
    assert case.rows * case.length == case.training.tokens_per_step == 524288
    assert case.training.micro_batch_tokens == 65536
    assert case.steps[0] == case.steps[1]
