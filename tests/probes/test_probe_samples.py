"""Samples with evidence: SQuAD-style rows among others, chat histories, planted facts, and the hub's files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
import transformers as tf

from hwh_core.probes import samples as samples_module
from hwh_core.probes.contexts import packed_examples
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.questions import read_chat_histories, read_questions
from hwh_core.probes.samples import HUB_FILES, Source, noise_haystack, parse_source, take_samples
from hwh_core.scripting import UserError

ROWS = [
    (f"The sailor of tower {n} carried a lantern. " * 3, question)
    for n in range(12)
    for question in (f"Who is in tower {n}?", f"What was carried in tower {n}?")
]


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return tf.AutoTokenizer.from_pretrained(corpus.tokenizer)


def gold_text(tokenizer, example):
    return tokenizer.decode([example.context[i] for i in example.gold_positions()])


@pytest.fixture
def files(tmp_path):
    """The same rows in every layout that is read."""
    rows = [{"context": context, "question": question} for context, question in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    pairs = [{"query": row["question"], "answer": row["context"]} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pairs), tmp_path / "pairs.parquet")
    paragraphs = [
        {"context": rows[i]["context"], "qas": [{"id": str(j), "question": rows[j]["question"]} for j in (i, i + 1)]}
        for i in range(0, len(rows), 2)
    ]
    squad = {"version": "1.1", "data": [{"title": "towers", "paragraphs": paragraphs}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "pairs.parquet", "squad.json"])
def test_every_layout_gives_the_same_questions(files, name):
    expected = [(context.strip(), question) for context, question in ROWS]
    assert read_questions([files / name]) == expected


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", '{"context": "x"}', r"a\.jsonl:1: expected an object with fields 'context' and 'question'"),
        ("a.jsonl", '{"context": "x", "question": "y"}\nnothing', r"a\.jsonl:2: expected an object"),
        ("a.jsonl", '{"context": "x", "question": " "}', r"a\.jsonl:1: its context or question is empty"),
        ("a.json", '{"data": [{"title": 1}]}', r"a\.json: expected SQuAD's layout"),
        ("a.json", "{", r"a\.json cannot be read"),
        ("a.parquet", "PAR1", r"a\.parquet cannot be read"),
        ("a.csv", "x", r"a\.csv: unknown ending"),
    ],
)
def test_files_of_another_layout_are_named(tmp_path, name, content, named):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ProbeError, match=named):
        read_questions([tmp_path / name])
    with pytest.raises(ProbeError, match="does not exist"):
        read_questions([tmp_path / "none.jsonl"])


def test_packed_questions(files, tokenizer):
    source = Source("squad", (files / "rows.jsonl",))
    examples, about = take_samples(source, tokenizer, 400, 5, 0)
    assert (about["dropped"], about["short"], about["samples"]) == (0, 0, "squad")
    for example in examples:
        assert len(example.prompt()) == 400
        number = tokenizer.decode(example.question).split("tower ")[1].split("?")[0].replace(" ", "")
        assert f"tower{number}carried" in gold_text(tokenizer, example).replace(" ", "")
        # A context with two questions stands among the others once.
        text = tokenizer.decode(example.context).replace(" ", "")
        assert text.count(f"tower{number}carried") == 3
    assert len({example.gold[0][0] for example in examples}) > 1
    again, _ = take_samples(source, tokenizer, 400, 5, 0)
    assert [example.prompt() for example in again] == [example.prompt() for example in examples]


def test_samples_that_do_not_fill_the_length_are_counted(files, tokenizer):
    with pytest.raises(ProbeError, match=r"no sample of 9000 tokens \(0 have evidence .* 24 are shorter\)"):
        take_samples(Source("squad", (files / "rows.jsonl",)), tokenizer, 9000, 5, 0)
    with pytest.raises(ProbeError, match=r"no sample of 60 tokens \(24 have evidence longer than half"):
        take_samples(Source("squad", (files / "rows.jsonl",)), tokenizer, 60, 5, 0)
    examples, counts = packed_examples(ROWS, tokenizer, 9000, 5, 0)
    assert len(examples) == 5
    assert counts == {"dropped": 0, "short": 0}


def history(number: int) -> dict:
    sessions = [
        [
            {"role": "user", "content": f"My boat {number} in harbor {place} is called the river letter."},
            {"role": "assistant", "content": "A long winter under the bridge. "},
        ]
        for place in range(8)
    ]
    names = [f"session_{place}" for place in range(8)]
    return {
        "question_id": f"q{number}", "question_type": "single-session-user",
        "question": f"What is boat {number} called?", "answer": "the river letter",
        "haystack_dates": [f"2023/05/0{place + 1}" for place in range(8)],
        "haystack_session_ids": names, "haystack_sessions": sessions,
        "answer_session_ids": [names[number % 8]] + ([names[7]] if number == 1 else []),
    }  # fmt: skip


@pytest.fixture
def histories(tmp_path):
    rows = [history(number) for number in range(6)] + [history(6) | {"question_id": "q6_abs"}]
    path = tmp_path / "longmemeval.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_chat_histories(histories, tokenizer):
    examples, about = take_samples(Source("longmemeval", (histories,)), tokenizer, 600, 100, 0)
    assert len(examples) == 6, "the question without an answer is left out"
    assert (about["dropped"], about["short"]) == (0, 0)
    for example in examples:
        assert len(example.prompt()) == 600
        number = int(tokenizer.decode(example.question).split("boat ")[1].split(" called")[0])
        gold = gold_text(tokenizer, example)
        assert len(example.gold) == (2 if number == 1 else 1)
        assert gold.count("Chat of 2023") == len(example.gold)
        assert f"harbor {number % 8} " in " ".join(gold.split())


def test_evidence_of_chat_histories_keeps_its_relative_place(histories, tokenizer):
    examples, _ = take_samples(Source("longmemeval", (histories,)), tokenizer, 600, 100, 0)
    starts = {}
    for example in examples:
        number = int(tokenizer.decode(example.question).split("boat ")[1].split(" called")[0])
        if number != 1:
            size = example.gold[0][1] - example.gold[0][0]
            starts[number] = example.gold[0][0] / (len(example.context) - size)
    for number, start in starts.items():
        assert start == pytest.approx(number / 7, abs=0.03)


def test_histories_of_another_layout_are_named(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"question_id": "a"}]', encoding="utf-8")
    with pytest.raises(ProbeError, match=r"rows\.json: is not in the layout of LongMemEval .*haystack_dates"):
        list(read_chat_histories(path, 0))


def test_planted_facts_in_rulers_noise(tokenizer):
    examples, about = take_samples(Source("ruler", ()), tokenizer, 300, 3, 0)
    assert about["files"] == []
    for example in examples:
        assert len(example.prompt()) == 300
        assert "magic numbers for" in gold_text(tokenizer, example)
    line = noise_haystack(100).splitlines()[0]
    assert line.count(".") == 5
    assert " ".join(line.split()[:3]) in " ".join(tokenizer.decode(examples[0].context).split())


def test_text_has_no_evidence(corpus, tokenizer, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(corpus.texts), encoding="utf-8")
    examples, _ = take_samples(Source("text", (path,)), tokenizer, 200, 2, 0)
    assert [len(example.prompt()) for example in examples] == [200, 200]
    assert examples[0].gold_positions().size == 0


@pytest.mark.parametrize("kind", ["nq", "longmemeval"])
def test_pinned_files_of_the_hub_are_read_from_its_cache(kind, files, histories, tokenizer, monkeypatch, tmp_path):
    """A cache in the hub's layout is enough; the file is the one at the pinned commit."""
    local = {"nq": files / "pairs.parquet", "longmemeval": histories}[kind]
    pinned = HUB_FILES[kind]
    folder = tmp_path / "hub" / f"datasets--{pinned.repository.replace('/', '--')}" / "snapshots" / pinned.revision
    (folder / pinned.file).parent.mkdir(parents=True)
    (folder / pinned.file).write_bytes(local.read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if pinned.sha256 is not None:
        with pytest.raises(ProbeError, match=f"expected {pinned.sha256}"):
            take_samples(Source(kind, ()), tokenizer, 400, 3, 0)
        mine = replace(pinned, sha256=hashlib.sha256(local.read_bytes()).hexdigest())
        monkeypatch.setitem(samples_module.HUB_FILES, kind, mine)
    examples, about = take_samples(Source(kind, ()), tokenizer, 400, 3, 0)
    assert [e.prompt() for e in examples] == [
        e.prompt() for e in take_samples(Source(kind, (local,)), tokenizer, 400, 3, 0)[0]
    ]
    assert (about["repository"], about["revision"]) == (pinned.repository, pinned.revision)
    samples_module.keep_hub_file(HUB_FILES[kind], tmp_path / "kept" / "file")
    assert (tmp_path / "kept" / "file").read_bytes() == local.read_bytes()
    assert not (tmp_path / "kept" / "file").is_symlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=f"{pinned.repository} at revision {pinned.revision[:12]} cannot be read"):
        take_samples(Source(kind, ()), tokenizer, 400, 3, 0)


def test_sources_are_named_by_kind_and_files(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x")
    assert parse_source([f"text:{path}", str(path)]) == Source("text", (path, path))
    assert parse_source(["ruler"]) == Source("ruler", ())
    for words, named in (
        (["trivia"], "'trivia' is unknown; expected one of text, ruler"),
        (["squad"], "squad needs files: squad:FILE"),
        (["squad:"], "'squad:' is unknown"),
        (["longmemeval:a", "b"], "longmemeval takes one file"),
        ([f"squad:{tmp_path / 'none.jsonl'}"], "none.jsonl does not exist"),
    ):
        with pytest.raises(ProbeError, match=named):
            parse_source(words)
