"""The benchmark of evaluation at its least size, with made-up rows and a random model."""

from __future__ import annotations

import pytest

from benchmarks import evaluation, evaluation_time
from benchmarks.evaluation import ARTICLES, Plan, Run

PLAN = Plan(
    agreement_rows=2, timed_rows=2, repeats=1, batch_tokens=2048, lengths=(256,), depths=(0, 100)
)  # fmt: skip


@pytest.fixture
def small(monkeypatch, prose):
    for module in (evaluation, evaluation_time):
        monkeypatch.setattr(module, "prose", lambda rows: prose)
    monkeypatch.setattr(evaluation, "TASKS", ("piqa", ARTICLES))
    monkeypatch.setattr(evaluation, "AGREEMENT_TASKS", ("piqa", ARTICLES))
    monkeypatch.setattr(evaluation, "ROLLING_WINDOW", 256)


def test_scores_and_times_of_both_wrappers_become_figures(small, tiny_llama, tokenizer, rows_folder):
    figures = {f["id"]: f for f in evaluation.agreement(tiny_llama, tokenizer, rows_folder, PLAN)}
    name = "eval.smollm2_max_relative_difference"
    assert figures[f"{name}_to_hflm_float64"]["value"] < 1e-10
    assert figures[f"{name}_to_hflm"]["value"] < 1e-4
    assert figures["eval.smollm2_max_accuracy_difference_to_hflm"]["value"] == 0
    assert 0 < figures["eval.smollm2_max_log_likelihood_difference_to_hflm"]["value"] < 1e-3
    assert next(tiny_llama.parameters()).dtype.itemsize == 4
    evaluation.check(list(figures.values()))
    (speed,) = evaluation.speed(tiny_llama, tokenizer, rows_folder, PLAN)
    by_task = speed["detail"]["tasks"]
    total = {
        key: sum(t[f"{key}_s"] * t["rows_available"] / t["rows"] for t in by_task.values()) for key in ("hflm", "ours")
    }
    assert speed["value"] == pytest.approx(total["hflm"] / total["ours"])
    assert by_task["piqa"]["rows_available"] == 8


def test_a_difference_is_found_and_named():
    """Accuracies by their difference, perplexities by their ratio, answers in nats; a wrapper that errs is refused."""
    right = Run({"acc": 0.5, "perplexity": 20.0}, [-1.0, -2.0], 1.0, 1.0)
    wrong = Run({"acc": 0.75, "perplexity": 20.2}, [-1.0, -2.5], 1.0, 1.0)
    found = evaluation.largest_differences(right, wrong)
    assert found == pytest.approx({"accuracy": 0.25, "perplexity": 0.01, "log_likelihood": 0.5})
    figure = {"id": "eval.smollm2_max_accuracy_difference_to_hflm", "value": 0.25, "unit": "1", "against": 0.0}
    with pytest.raises(SystemExit, match=r"accuracy_difference_to_hflm = 0\.25 1, accepted: at most 0"):
        evaluation.check([figure])


def test_fill_error_of_a_grid(small, tokenizer, rows_folder):
    (figure,) = evaluation.fill(tokenizer, rows_folder, PLAN._replace(lengths=(400,)))
    assert figure["id"] == "niah.fill_error_tokens"
    assert figure["sizes"]["prompts"] == 2
    assert 0 <= figure["detail"]["least"] <= figure["value"] < 20


def test_one_command_measures_one_task_or_the_grid(small, tokenizer, rows_folder):
    for name, counted in (("piqa", {"rows": 2}), ("niah", {"prompts": 2, "longest": 256})):
        (figure,) = evaluation_time.task_seconds(name, "hwh_std", tokenizer, rows_folder, quick=True)
        assert figure["id"] == f"eval.quick_{name}_s"
        assert figure["value"] > 0
        assert counted.items() <= figure["sizes"].items()
    (figure,) = evaluation_time.task_seconds("niah", "hwh_std", tokenizer, rows_folder, quick=True, samples_per_cell=2)
    assert figure["sizes"]["prompts"] == 4
    with pytest.raises(SystemExit, match="--task riddles: no rows of it"):
        evaluation_time.task_seconds("riddles", "hwh_std", tokenizer, rows_folder, quick=True)


def test_the_number_of_needles_is_refused_where_it_says_nothing(capsys):
    for given, message in (
        (["--samples-per-cell", "2"], "belongs to --task"),
        (["--task", "niah", "--samples-per-cell", "0"], "'0': expected a whole number from 1 on"),
    ):
        with pytest.raises(SystemExit):
            evaluation.main(given)
        assert message in capsys.readouterr().err
