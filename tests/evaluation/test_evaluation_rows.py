"""Rows: checks that name task, row and field; the fixed subset; reading files."""

from __future__ import annotations

import gzip
import json

import pytest

from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.rows import (
    TASKS,
    check_rows,
    load_task_rows,
    read_rows,
    row_label,
    rows_sha256,
    subset_indices,
    task_spec,
)
from hwh_core.evaluation.tasks import HELD_OUT_METRICS, HELD_OUT_TASK, task_config
from hwh_core.reporting import task_scores


@pytest.mark.parametrize("name", TASKS)
def test_every_task_accepts_its_fixture_rows(name, rows_folder):
    rows = load_task_rows(rows_folder, name, None, 0)
    assert len(rows.rows) == rows.total > 1


def test_metrics_are_those_that_the_field_reports_and_the_tables_read():
    """Accuracy normalised by the length of the answer for HellaSwag and ARC-Challenge alone."""
    found = {name: spec.metrics for name, spec in TASKS.items() if spec.completion is None}
    assert found == {
        "wikitext": ("word_perplexity",),
        "lambada_openai": ("perplexity", "acc"),
        "hellaswag": ("acc_norm",),
        "arc_challenge": ("acc_norm",),
        **dict.fromkeys(("piqa", "winogrande", "arc_easy", "social_iqa", "boolq"), ("acc",)),
    }
    assert {spec.metrics for spec in TASKS.values() if spec.completion is not None} == {("contains",)}
    columns = [*task_scores.LANGUAGE, task_scores.LAMBADA_ACC, *task_scores.COMMONSENSE, *task_scores.RETRIEVAL]
    metrics = {name: spec.metrics for name, spec in TASKS.items()} | {HELD_OUT_TASK: HELD_OUT_METRICS}
    assert all(column.metric in metrics[task] for column in columns for task in column.tasks)


@pytest.mark.parametrize("name", TASKS)
def test_the_split_is_the_one_that_lm_eval_evaluates(name):
    config = task_config(name)
    expected = config.get("test_split") or config.get("validation_split")
    if "class" in config:
        expected = "test" if config["class"].has_test_docs(None) else "validation"
    assert TASKS[name].split == expected


@pytest.mark.parametrize("name", TASKS)
def test_a_missing_field_is_named_with_the_row(name, rows_folder):
    rows = read_rows(rows_folder / f"{name}.jsonl")
    for field in TASKS[name].fields:
        broken = [dict(row) for row in rows]
        del broken[1][field]
        with pytest.raises(EvaluationError, match=rf"task {name}, row 1\b.*'{field}' is missing"):
            check_rows(TASKS[name], broken)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("hellaswag", {"label": "4"}, "'label' is '4', expected the number of one of the endings"),
        ("hellaswag", {"endings": ["a", " ", "c", "d"]}, "'endings' must hold at least 2 texts, none of them empty"),
        ("piqa", {"sol2": ""}, "'sol1, sol2' must hold"),
        ("piqa", {"label": 2}, "'label' is 2, expected one of 0, 1"),
        ("piqa", {"label": True}, "'label' is True, expected int"),
        ("winogrande", {"sentence": "No place for an option."}, "'sentence' has no '_'"),
        ("winogrande", {"answer": "3"}, "'answer' is '3'"),
        ("arc_easy", {"answerKey": "Z"}, "'answerKey' is 'Z'"),
        ("arc_easy", {"choices": {"text": ["a", "b"], "label": ["A"]}}, "of equal length"),
        ("social_iqa", {"label": "0"}, "'label' is '0'"),
        ("social_iqa", {"answerB": " "}, "none of them empty"),
        ("boolq", {"label": -1}, "'label' is -1"),
        ("boolq", {"passage": None}, "'passage' is missing"),
        ("lambada_openai", {"text": "word"}, "a passage and its last word"),
        ("lambada_openai", {"text": "ends with a space "}, "a passage and its last word"),
        ("wikitext", {"page": " \n "}, "'page' is empty"),
    ],
)
def test_unusable_values_are_named(name, change, message, rows_folder):
    rows = read_rows(rows_folder / f"{name}.jsonl")
    rows[0] = {**rows[0], **change}
    with pytest.raises(EvaluationError, match=rf"^task {name}, row 0\b") as raised:
        check_rows(TASKS[name], rows)
    assert message in str(raised.value)


def test_rows_are_named_by_their_own_id_too(rows_folder):
    assert row_label(3, read_rows(rows_folder / "arc_easy.jsonl")[3]) == "row 3 (id EASY_3)"
    assert row_label(5, {"text": "x"}) == "row 5"


def test_unknown_task_is_named():
    with pytest.raises(EvaluationError, match="'arc_hard' is not a known task"):
        task_spec("arc_hard")


def test_subset_is_fixed_nested_and_depends_on_the_seed():
    small, large = subset_indices("piqa", 1000, 20, 7), subset_indices("piqa", 1000, 60, 7)
    # Written down once: a change of this list would silently change every published score on a subset.
    assert small[:8] == [65, 68, 182, 209, 248, 276, 290, 291]
    assert len(set(large)) == 60
    assert large == sorted(large)
    assert set(small) < set(large)
    assert small != subset_indices("piqa", 1000, 20, 8)
    assert small != subset_indices("boolq", 1000, 20, 7)
    assert subset_indices("piqa", 5, None, 7) == subset_indices("piqa", 5, 9, 7) == [0, 1, 2, 3, 4]


def test_checksum_is_of_the_rows_used(rows_folder):
    some, again = (load_task_rows(rows_folder, "piqa", 4, 1) for _ in range(2))
    assert some.sha256 == again.sha256 == rows_sha256([dict(reversed(row.items())) for row in some.rows])
    assert some.sha256 != load_task_rows(rows_folder, "piqa", 4, 2).sha256
    assert some.sha256 != load_task_rows(rows_folder, "piqa", 5, 1).sha256
    everything = read_rows(rows_folder / "piqa.jsonl")
    assert some.rows == [everything[index] for index in some.indices]


def test_separators_inside_strings_do_not_end_a_row(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n").encode()))
    assert read_rows(path) == [{"text": "a\u2028b\x85c"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; scripts/extract_rows.py"),
        (b"", "holds no rows"),
        (b'{"a": 1}\n{"a": \n', "line 2: not valid JSON"),
        (b"[1]\n", "line 1: expected a JSON object"),
        (b'{"a": "\xff"}\n', "cannot be read as JSON lines in UTF-8"),
    ],
)
def test_unreadable_files_are_named(content, message, tmp_path):
    path = tmp_path / "piqa.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EvaluationError, match=message) as raised:
        read_rows(path)
    assert str(path) in str(raised.value)
