"""Files of questions that are packed, or hold line separators of Unicode inside a string: the same samples."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard

from hwh_core.probes.errors import ProbeError
from hwh_core.probes.pretrained import load_tokenizer
from hwh_core.probes.sample_files import take_samples_of_files
from hwh_core.probes.samples import Source, take_samples


@pytest.fixture(scope="module")
def tokenizer(random_llama):
    return load_tokenizer(random_llama)


def rows(between: str) -> list[dict[str, str]]:
    return [
        {"context": f"The river {n}{between}is long under bridge {n}.", "question": f"Which river {n}?"}
        for n in range(9)
    ]


def raw(between: str) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(between)).encode()


def squad(between: str) -> bytes:
    paragraphs = [{"context": row["context"], "qas": [{"question": row["question"]}]} for row in rows(between)]
    return json.dumps({"data": [{"paragraphs": paragraphs}]}, ensure_ascii=False).encode()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", raw),
        ("rows.jsonl.gz", lambda text: gzip.compress(raw(text))),
        ("rows.jsonl.zst", lambda text: zstandard.compress(raw(text))),
        ("rows.json.gz", lambda text: gzip.compress(squad(text))),
    ],
)
def test_samples_are_those_of_the_plain_file(tokenizer, tmp_path, separator, name, content):
    plain, given = tmp_path / "plain.jsonl", tmp_path / name
    plain.write_text("\n".join(map(json.dumps, rows(separator))))
    given.write_bytes(content(separator))
    wanted, about = take_samples(Source("squad", (plain,)), tokenizer, 120, 3, 0)
    found, told = take_samples_of_files(Source("squad", (given,)), tokenizer, 120, 3, 0)
    assert found == wanted
    assert told == about | {"files": [str(given)]}


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_bad_row_is_named_by_its_own_file_and_line(tokenizer, tmp_path, ending):
    content = raw("\u2028") + b'{"context": "only"}\n'
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with pytest.raises(ProbeError, match=rf"^{path.with_suffix('') if ending.endswith('gz') else path}") as caught:
        take_samples_of_files(Source("squad", (path,)), tokenizer, 120, 3, 0)
    assert str(caught.value) == f"{path}:10: expected an object with fields 'context' and 'question'"


def test_a_file_that_is_cut_short_is_named(tokenizer, tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(raw(" "))[:-20])
    with pytest.raises(ProbeError, match=r"rows\.jsonl\.gz is damaged or cut short"):
        take_samples_of_files(Source("squad", (path,)), tokenizer, 120, 3, 0)
