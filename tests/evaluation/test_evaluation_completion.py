"""Retrieval tasks: prompts, documents cut around the answer and from the left, bad rows by name, our task files."""

from __future__ import annotations

import dataclasses

import pytest
from oracle_models import CopyModel, OracleConfig

from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.lm import HwHLM
from hwh_core.evaluation.rows import TASKS, check_rows, load_task_rows, read_rows
from hwh_core.evaluation.scores import prepare_completion, run_tasks
from hwh_core.evaluation.task_files import FOLDER
from hwh_core.evaluation.tasks import build_task, hub_source, task_config
from hwh_core.evaluation.windows import answer_place, window_of, windowed

NAMES = [name for name, spec in TASKS.items() if spec.completion is not None]
IDENTITY = {"scale": "tiny", "model": "m", "architecture": "transformer", "seed": 3}


def count(tokenizer, text):
    return len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", [name for name in NAMES if TASKS[name].own])
def test_our_task_files_are_those_of_lm_eval_too(name):
    """lm-eval's own index finds them through --include_path; repository and split are those of the JRT work."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    assert name in manager.all_tasks
    assert hub_source(name) == (f"hazyresearch/{name}", None, "validation")
    assert task_config(name)["generation_kwargs"] == {"until": ["\n"], "max_gen_toks": 48, "do_sample": False}


def test_rows_of_lm_evals_classes_come_from_where_these_say():
    assert hub_source("swde") == ("hazyresearch/based-swde-v2", "default", "validation")
    assert hub_source("squad_completion")[0] == "hazyresearch/based-squad"
    assert hub_source("piqa") == ("baber/piqa", None, "validation")


def test_the_question_is_asked_once_at_the_end_of_the_document(rows_folder):
    for name, marks in (("based_triviaqa", False), ("based_drop", False), ("based_nq_2048", False)):
        rows = load_task_rows(rows_folder, name, None, 0)
        task = build_task(rows)
        for row in rows.rows:
            prompt = task.doc_to_text(row)
            assert prompt.endswith(f". {row['question']}")
            assert f"{row['question']}. {row['question']}" not in prompt
            assert ("[PAR]" in prompt) == marks
    doc = {"context": "A. It ran. IT RAN", "question": "It ran", "answers": ["fast"]}
    config = {name: task_config(name)["doc_to_text"] for name in ("based_drop", "based_nq_2048")}
    # Natural Questions keeps the case and takes the question off once, as that task does.
    assert config["based_drop"](doc) == "A. It ran. It ran"
    assert config["based_nq_2048"](doc) == "A. It ran. IT RAN. It ran"
    assert config["based_nq_2048"]({**doc, "context": "A. It ran"}) == "A. It ran"


def test_an_answer_counts_in_any_case_and_any_of_several():
    score = task_config("based_drop")["process_results"]
    doc = {"answers": ["Fenwick", "the (old) mill"]}
    assert score(doc, ["near FENWICK."]) == {"contains": 1}
    assert score(doc, ["The (Old) Mill"]) == {"contains": 1}
    assert score(doc, ["the mill"]) == {"contains": 0}


def test_a_window_lies_around_the_answer_or_at_the_end():
    text = " ".join(f"w{number}" for number in range(100))
    spans = [(place, place + len(word)) for place, word in ((text.index(f"w{n} "), f"w{n}") for n in range(99))]
    spans.append((text.index("w99"), len(text)))
    place = answer_place(text, ["nothing", "W50"])
    assert text[place:].startswith("w50")
    assert window_of(text, spans, 11, place, "centred").split() == [f"w{n}" for n in range(45, 56)]
    assert window_of(text, spans, 11, place, "left").split() == [f"w{n}" for n in range(89, 100)]
    # Near the ends the window is moved inside; without an answer it is at the end, as lm-eval's.
    assert window_of(text, spans, 11, text.index("w2 "), "centred").split()[0] == "w0"
    assert window_of(text, spans, 11, text.index("w97"), "centred").split()[-1] == "w99"
    assert window_of(text, spans, 11, None, "centred") == window_of(text, spans, 11, None, "left")
    assert window_of(text, spans, 100, place, "left") == text
    assert answer_place(text, ["absent"]) is None


@pytest.mark.parametrize("name", NAMES)
def test_prompts_fit_the_window_and_keep_answer_and_question(name, rows_folder, tokenizer, prose):
    rows = load_task_rows(rows_folder, name, 3, 0)
    key = rows.spec.completion.document
    # The answer early in a long document: from the left it is lost, around the answer it stays.
    long = [{**row, key: f"{row[key]} {prose[0]} {row[key][-60:]}"} for row in rows.rows]
    rows = dataclasses.replace(rows, rows=long)
    prompt = build_task(rows).doc_to_text
    window = 600
    for cut in ("centred", "left"):
        made = windowed(rows, prompt, tokenizer, window, cut)
        assert made.cut == 3
        for before, row in zip(rows.rows, made.rows.rows, strict=True):
            text = prompt(row)
            assert window - 48 - 20 < count(tokenizer, text) <= window - 48
            question = row.get("question", "") if key == "context" else before["text"].strip()[-20:]
            assert text.endswith(question)
            found = any(a.lower() in row[key].lower() for a in rows.spec.completion.answers(row))
            assert found == (cut == "centred")
        assert made.without_answer == ([] if cut == "centred" else rows.labels)
    short = windowed(rows, prompt, tokenizer, 100_000, "centred")
    assert (short.cut, short.rows.rows) == (0, rows.rows)


def test_a_window_without_room_for_the_question_is_named(rows_folder, tokenizer):
    rows = load_task_rows(rows_folder, "based_drop", 2, 0)
    with pytest.raises(EvaluationError, match=r"task based_drop, row \d \(doc_id drop-\d\): question and answer alone"):
        windowed(rows, build_task(rows).doc_to_text, tokenizer, 48 + 5, "left")


def test_answers_longer_than_what_is_generated_are_named(rows_folder, tokenizer):
    rows = load_task_rows(rows_folder, "swde", 3, 0)
    rows.rows[1] = {**rows.rows[1], "value": "Ada Brook and " * 20, "text": f"{'Ada Brook and ' * 20}. Directed by:"}
    made = windowed(rows, build_task(rows).doc_to_text, tokenizer, 2000, "left")
    assert made.too_long == [rows.labels[1]]
    label = prepare_completion(rows, tokenizer, 2000)[0].label
    assert f"1 with too long an answer: {rows.labels[1]}" in label


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("swde", {"value": " "}, "fields 'text' and 'value' must not be empty"),
        ("fda", {"text": ""}, "fields 'text' and 'value' must not be empty"),
        ("based_drop", {"answers": []}, "'answers' must hold at least 1 texts, none of them empty"),
        ("based_triviaqa", {"answers": ["1843", ""]}, "none of them empty"),
        ("based_nq_512", {"question": " "}, "field 'question' is empty"),
    ],
)
def test_empty_answers_and_questions_are_named(name, change, message, rows_folder):
    rows = read_rows(rows_folder / f"{name}.jsonl")
    rows[1] = {**rows[1], **change}
    with pytest.raises(EvaluationError, match=rf"^task {name}, row 1 \(doc_id .*{message}"):
        check_rows(TASKS[name], rows)


class RememberingModel(CopyModel):
    """Writes what stood behind the first "Directed by:" of the prompt, and a line break."""

    def next_token(self, tokens):
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        asked, _, written = text.rpartition("Directed by:")
        known = asked.partition("Directed by:")[2].partition("\n")[0] if "Directed by:" in asked else ""
        target = self.tokenizer.encode(f"{known}\n", add_special_tokens=False)
        done = len(self.tokenizer.encode(written, add_special_tokens=False)) if written else 0
        return target[done] if known and done < len(target) else self.tokenizer.eos_token_id


def test_both_cuts_stand_side_by_side_and_one_prompt_is_asked_once(rows_folder, tokenizer, prose, monkeypatch):
    from hwh_core.evaluation import lm as module

    rows = load_task_rows(rows_folder, "swde", 4, 0)
    for number in (0, 1):
        text = rows.rows[number]["text"].removesuffix("Directed by:")
        rows.rows[number] = {**rows.rows[number], "text": f"{text}{prose[number]}\nDirected by:"}
    asked = []
    generate = module.generate_greedy
    monkeypatch.setattr(
        module,
        "generate_greedy",
        lambda model, prompts, *rest: asked.extend(prompts) or generate(model, prompts, *rest),
    )
    lm = HwHLM(RememberingModel(OracleConfig(vocab_size=len(tokenizer)), tokenizer), tokenizer, batch_tokens=4096)
    table, seconds = run_tasks(lm, prepare_completion(rows, tokenizer, 700), IDENTITY)
    scores = table.set_index("metric")
    assert scores.loc["contains", "value"] == 1.0
    assert scores.loc["contains_left", "value"] == 0.5
    assert "2 documents cut around the answer to prompts of 700 tokens" in scores.loc["contains", "label"]
    assert "2 without their answer: row" in scores.loc["contains_left", "label"]
    assert set(table["num_truncated"]) == {0}
    assert set(table["n"]) == {4}
    assert set(table["rows_sha256"]) == {rows.sha256}
    assert set(table["task_version"]) == {"1"}
    assert list(seconds) == ["swde", "swde_left"]
    # Two documents are cut in two ways, two are whole: six prompts, none twice.
    assert len(asked) == len({tuple(prompt) for prompt in asked}) == 6
