"""The table of scores, and the three programs from end to end."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pandas
import pytest
import zstandard
from oracle_models import MAX_POSITIONS, OracleConfig, UniformModel

from hwh_core.evaluation.documents import excerpt, held_out_prose, perplexity_documents
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.inference import load_model
from hwh_core.evaluation.lm import HwHLM
from hwh_core.evaluation.rows import load_task_rows
from hwh_core.evaluation.scores import (
    COLUMNS,
    mean_stderr,
    metric_stderr,
    prepare_articles,
    prepare_rows,
    ratio_stderr,
    run_tasks,
    templates_compiled_once,
)

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
IDENTITY = {"scale": "tiny", "model": "m", "architecture": "transformer", "seed": 3}


def run_script(name: str, monkeypatch, *arguments: object) -> None:
    """Run a program under scripts/ in this process (its imports are paid for once)."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / name), *map(str, arguments)])
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


@pytest.fixture(scope="module")
def model_folder(tiny_llama, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated") / "model"
    tiny_llama.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def documents_file(prose, tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "held_out.jsonl.zst"
    lines = [
        json.dumps({"id": f"{source}-{number}", "source": source, "title": "", "text": text})
        for source in ("prose", "code")
        for number, text in enumerate(prose)
    ]
    path.write_bytes(zstandard.ZstdCompressor().compress(("\n".join(lines) + "\n").encode()))
    return path


@pytest.fixture
def settings():
    tasks = ["lambada_openai", "hellaswag", "boolq", "arc_challenge"]
    return {
        "scale": "tiny",
        "model": {"name": "m", "architecture": "transformer", "seed": 3},
        "seed": 0,
        "training_length": 64,
        "held_out_prose_source": "prose",
        "evaluation": {
            "rows": {"kind": "files", "path": "tests/fixtures/rows"},
            "tasks": [{"name": name, "limit": 5} for name in tasks],
            "held_out_perplexity": {"max_documents": 3, "max_bytes": 2400, "window": 64},
            "niah": {
                "variant": "single_2",
                "haystack": "held_out_prose",
                "lengths": [256],
                "depths": [0, 100],
                "samples_per_cell": 2,
                "max_new_tokens": 12,
                "metric": "teacher_forced_exact",
            },
            "batch_tokens": 2048,
        },
    }


def test_standard_errors_against_written_out_cases():
    assert mean_stderr([1.0, 0.0, 1.0, 1.0]) == pytest.approx(math.sqrt(0.1875 * 4 / 3 / 4))
    assert mean_stderr([1.0]) is None
    assert ratio_stderr([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == 0.0
    assert ratio_stderr([1.0, 3.0], [1.0, 1.0]) == pytest.approx(mean_stderr([1.0, 3.0]))
    assert metric_stderr("acc", [1, 0, 1, 1], 0.75) == mean_stderr([1, 0, 1, 1])
    assert metric_stderr("perplexity", [-2.0, -4.0], 20.0) == pytest.approx(20.0 * 1.0)
    assert metric_stderr("word_perplexity", [(-2.0, 1), (-4.0, 1)], 20.0) == pytest.approx(20.0 * 1.0)
    assert metric_stderr("bits_per_byte", [(-2.0, 1), (-4.0, 1)], 4.3) == pytest.approx(1 / math.log(2))
    assert metric_stderr("acc", [1], 1.0) is None


def test_the_table_carries_counts_and_the_checksum_of_its_rows(tiny_llama, tokenizer, rows_folder, prose):
    names = ["piqa", "lambada_openai"]
    tables = []
    for batch_tokens in (200, 5000):
        lm = HwHLM(tiny_llama, tokenizer, batch_tokens=batch_tokens, rolling_window=64)
        rows = [load_task_rows(rows_folder, name, 6, 0) for name in names]
        articles = [{"id": str(number), "text": text[:600]} for number, text in enumerate(prose[:3])]
        prepared = [prepare_articles(articles, 12), *map(prepare_rows, rows)]
        table, seconds = run_tasks(lm, prepared, IDENTITY)
        assert list(seconds) == ["held_out_articles", *names]
        tables.append(table)
    table = tables[0]
    assert tuple(table.columns) == COLUMNS
    assert list(zip(table["task"], table["metric"], strict=True)) == [
        ("held_out_articles", "word_perplexity"),
        ("held_out_articles", "bits_per_byte"),
        ("piqa", "acc"),
        ("lambada_openai", "perplexity"),
        ("lambada_openai", "acc"),
    ]
    assert list(table["n"]) == [3, 3, 6, 6, 6]
    assert set(table["num_truncated"]) == {0}
    assert table["stderr"].notna().all()
    first = table.set_index(["task", "metric"])
    assert first.loc[("held_out_articles", "word_perplexity"), "label"] == "held-out articles, not WikiText"
    assert first.loc[("held_out_articles", "word_perplexity"), "max_length"] == 64
    assert first.loc[("piqa", "acc"), "rows_sha256"] == load_task_rows(rows_folder, "piqa", 6, 0).sha256
    assert first.loc[("piqa", "acc"), "label"] == "6 of 8 rows, zero-shot"
    assert first.loc[("piqa", "acc"), "rows_available"] == 8
    assert first.loc[("piqa", "acc"), "training_length"] == MAX_POSITIONS
    # Other batches, same table.
    assert list(tables[1]["value"]) == pytest.approx(list(table["value"]), rel=1e-4)
    pandas.testing.assert_frame_equal(
        tables[1].drop(columns=["value", "stderr"]), table.drop(columns=["value", "stderr"])
    )


def test_word_perplexity_of_the_uniform_model_in_the_table(tokenizer, prose):
    vocabulary = len(tokenizer)
    lm = HwHLM(UniformModel(OracleConfig(vocab_size=vocabulary)), tokenizer, rolling_window=32)
    articles = [{"id": str(number), "text": text[:500].strip()} for number, text in enumerate(prose[:3])]
    table, _ = run_tasks(lm, [prepare_articles(articles, 3)], IDENTITY)
    row = table[table["metric"] == "word_perplexity"].iloc[0]
    words = sum(len(article["text"].split()) for article in articles)
    assert row["value"] == pytest.approx(vocabulary ** (row["num_tokens"] / words), rel=1e-6)
    bits = table[table["metric"] == "bits_per_byte"].iloc[0]["value"]
    size = sum(len(article["text"].encode()) for article in articles)
    assert bits == pytest.approx(row["num_tokens"] * math.log2(vocabulary) / size, rel=1e-6)


def test_excerpts_are_chosen_by_seed_and_cut_between_words():
    assert excerpt("one two three", 13) == "one two three"
    assert excerpt("one two three", 9) == "one two"
    assert excerpt("größer ist es", 8) == excerpt("größer ist es", 9) == excerpt("größer ist es", 10) == "größer"
    assert excerpt("größer ist es", 3) == ""
    assert excerpt("word", 2) == ""
    documents = [{"id": str(number), "text": f"article {number} has some words"} for number in range(20)]
    some = perplexity_documents(documents, 4, 60, 0)
    assert len(some) == 4
    assert all(len(document["text"].encode()) <= 15 for document in some)
    assert perplexity_documents(list(reversed(documents)), 4, 60, 0) == some
    assert perplexity_documents(documents, 4, 60, 1) != some
    assert len(perplexity_documents(documents, 100, 10**6, 0)) == 20
    with pytest.raises(EvaluationError, match=r"held_out_perplexity\.max_bytes: 1 bytes are too few"):
        perplexity_documents(documents, 20, 20, 0)


def test_a_source_without_documents_is_named(documents_file):
    with pytest.raises(EvaluationError, match="no documents of the source 'poems'"):
        held_out_prose(documents_file, "poems")


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(EvaluationError, match="is not a model folder in Hugging Face layout"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing-known"}')
    with pytest.raises(EvaluationError, match="cannot be loaded"):
        load_model(tmp_path)


def test_programs_from_rows_to_tables(settings, model_folder, documents_file, tmp_path, monkeypatch):
    names = [task["name"] for task in settings["evaluation"]["tasks"]]
    rows = tmp_path / "rows"
    given = json.dumps({"rows": settings["evaluation"]["rows"], "tasks": names})
    run_script("extract_rows.py", monkeypatch, "--settings", given, "--output", rows)
    assert json.loads((tmp_path / "rows.manifest.json").read_text())["script"] == "scripts/extract_rows.py"
    job = tmp_path / "settings.json"
    job.write_text(json.dumps(settings))
    tables = []
    for output in (tmp_path / "a" / "scores.csv", tmp_path / "b" / "scores.csv"):
        run_script(
            "evaluate.py", monkeypatch, "--settings", job, "--model", model_folder, "--rows", rows,
            "--documents", documents_file, "--output", output,
        )  # fmt: skip
        tables.append(output.read_bytes())
    assert tables[0] == tables[1]
    table = pandas.read_csv(tmp_path / "a" / "scores.csv")
    assert set(table["task"]) == {"held_out_articles", *names}
    manifest = json.loads((tmp_path / "a" / "scores.csv.manifest.json").read_text())
    assert set(manifest["seconds_per_task"]) == {"held_out_articles", *names}
    assert {str(rows / f"{name}.jsonl") for name in names} < set(manifest["inputs"])
    settings["niah"] = settings["evaluation"]["niah"]
    score_needles(settings, model_folder, tmp_path, monkeypatch, "--documents", documents_file)
    prompts, cells = pandas.read_csv(tmp_path / "niah.csv"), pandas.read_parquet(tmp_path / "niah_cells.parquet")
    assert len(prompts) == 4
    assert list(cells["n"]) == [2, 2]
    assert set(prompts["haystack"]) == {"held-out prose, not RULER essays"}
    assert set(prompts["training_length"]) == {64}
    assert set(prompts["wording"]) == {"ruler"}
    assert not list(tmp_path.glob("niah_*second*"))
    settings["niah"]["additional"] = [{"variant": "single_2", "wording": "second"}]
    unseen = settings | {"unseen_only": True}
    score_needles(unseen, model_folder, tmp_path, monkeypatch, "--documents", documents_file)
    assert set(pandas.read_csv(tmp_path / "niah_single_2_second_cells.csv")["wording"]) == {"second"}
    assert set(pandas.read_csv(tmp_path / "niah_cells.csv")["wording"]) == {"ruler"}
    manifest = json.loads((tmp_path / "niah_single_2_second.csv.manifest.json").read_text())
    assert manifest["settings"]["niah"]["additional"] == settings["niah"]["additional"]
    assert str(tmp_path / "prompts" / "niah_single_2_second.parquet") in manifest["inputs"]


def test_templates_are_compiled_once_and_give_the_same_text():
    from lm_eval import utils

    own = utils.env.from_string
    texts = [utils.apply_template("{{a}} and {{a|upper}}\n", {"a": word}) for word in ("x", "y")]
    with templates_compiled_once():
        assert utils.env.from_string("{{a}}") is utils.env.from_string("{{a}}")
        assert [utils.apply_template("{{a}} and {{a|upper}}\n", {"a": word}) for word in ("x", "y")] == texts
    assert utils.env.from_string == own
    assert utils.env.from_string("{{a}}") is not utils.env.from_string("{{a}}")


def score_needles(settings, model_folder, tmp_path, monkeypatch, *text):
    """Make the prompts out of ``text`` (options), then score them; the table is ``tmp_path / niah.csv``."""
    given = ["--settings", json.dumps(settings)]
    prompts = ["--tokenizer", model_folder, *text, "--output", tmp_path / "prompts"]
    run_script("build_niah_prompts.py", monkeypatch, *given, *prompts)
    scored = ["--model", model_folder, "--prompts", tmp_path / "prompts", "--output", tmp_path / "niah.csv"]
    run_script("evaluate_niah.py", monkeypatch, *given, *scored)


def test_needles_in_essays_take_their_haystack_from_the_rows(
    settings, model_folder, rows_folder, tmp_path, monkeypatch, capsys
):
    settings["niah"] = {**settings["evaluation"]["niah"], "haystack": "essays", "metric": "ruler_contains"}
    del settings["held_out_prose_source"]
    with pytest.raises(SystemExit):
        score_needles(settings, model_folder, tmp_path, monkeypatch)
    assert "--rows is needed for the haystack essays" in capsys.readouterr().err
    score_needles(settings, model_folder, tmp_path, monkeypatch, "--rows", rows_folder)
    assert set(pandas.read_csv(tmp_path / "niah.csv")["haystack"]) == {"essays"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluation": None}, "evaluation = None"),
        ({"held_out_prose_source": "poems"}, "no documents of the source 'poems'"),
        ({"seed": ...}, "key 'seed' is missing"),
        ({"evaluation.tasks": [{"name": "winogrande", "limit": 0}]}, "evaluation.tasks.0.limit = 0"),
        ({"evaluation.tasks": [{"name": "arc_hard"}]}, "'arc_hard' is not a known task"),
        ({"evaluation.held_out_perplexity": {"max_documents": 1, "max_bytes": 99, "window": 600}}, "takes 600 tokens"),
    ],
)
def test_bad_settings_end_in_one_sentence_and_leave_nothing(
    change, message, settings, model_folder, rows_folder, documents_file, tmp_path, monkeypatch, capsys
):
    for key, value in change.items():
        owner = settings["evaluation"] if key.startswith("evaluation.") else settings
        name = key.removeprefix("evaluation.")
        if value is ...:
            del owner[name]
        else:
            owner[name] = value
    with pytest.raises(SystemExit) as raised:
        run_script(
            "evaluate.py", monkeypatch, "--settings", json.dumps(settings), "--model", model_folder, "--rows",
            rows_folder, "--documents", documents_file, "--output", tmp_path / "scores.csv",
        )  # fmt: skip
    assert raised.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line
    assert list(tmp_path.iterdir()) == []
