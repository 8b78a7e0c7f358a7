"""Rows of question-answering data sets: contexts with questions, and chat histories with the sessions that answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ProbeError

QUESTION_FIELDS = (("context", "question"), ("answer", "query"))
"""Names of context and question: those of SQuAD, and those of Natural Questions as pairs."""

ENDINGS = ".jsonl, .json (SQuAD's own layout) or .parquet"
ABSTENTION = "_abs"


def read_questions(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """(context, question) of all rows of the files, in their order. Raises :class:`ProbeError` naming the row."""
    rows = []
    for path in paths:
        for where, row in _rows(path):
            names = next((names for names in QUESTION_FIELDS if isinstance(row, dict) and set(names) <= set(row)), None)
            if names is None:
                raise ProbeError(f"{where}: expected an object with fields 'context' and 'question'")
            context, question = (str(row[name]).strip() for name in names)
            if not context or not question:
                raise ProbeError(f"{where}: its {names[0]} or {names[1]} is empty; leave the row out")
            rows.append((context, question))
    return rows


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) of a file. Raises :class:`ProbeError` for what cannot be read."""
    if not path.is_file():
        raise ProbeError(f"{path} does not exist; expected a file of questions with their contexts, {ENDINGS}")
    try:
        if path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                yield f"{path}:{number}", _parsed(line)
        elif path.suffix == ".parquet":
            import pyarrow.parquet

            for number, row in enumerate(pyarrow.parquet.read_table(path).to_pylist()):
                yield f"{path}, row {number}", row
        elif path.suffix == ".json":
            yield from _squad(path, json.loads(path.read_text(encoding="utf-8")))
        else:
            raise ProbeError(f"{path}: unknown ending; expected {ENDINGS}")
    except ProbeError:
        raise
    except (OSError, ValueError) as error:  # errors of pyarrow, JSON and Unicode are ValueErrors
        raise ProbeError(f"{path} cannot be read ({str(error).splitlines()[0]}); replace it") from None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _squad(path: Path, value: Any) -> Iterator[tuple[str, Any]]:
    try:
        for article in value["data"]:
            for paragraph in article["paragraphs"]:
                for answer in paragraph["qas"]:
                    row = {"context": paragraph["context"], "question": answer["question"]}
                    yield f"{path}, question {answer.get('id', '')}", row
    except (KeyError, TypeError, AttributeError):
        raise ProbeError(f"{path}: expected SQuAD's layout: data, paragraphs, context, qas, question") from None


def read_chat_histories(path: Path, seed: int) -> Iterator[tuple[list[tuple[str, bool]], str]]:
    """(sessions, question) of LongMemEval's rows in random order; sessions that hold the answer are marked True.

    Questions that no session answers (ids ending in ``_abs``) are left out. Raises :class:`ProbeError`.
    """
    if not path.is_file():
        raise ProbeError(f"{path} does not exist; expected a JSON file in the layout of LongMemEval")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in rows if not row["question_id"].endswith(ABSTENTION)]
        for number in np.random.default_rng(seed).permutation(len(rows)):
            row = rows[number]
            sessions = [
                (f"Chat of {date}\n" + "\n".join(f"{turn['role']}: {turn['content']}" for turn in session), name)
                for date, name, session in zip(
                    row["haystack_dates"], row["haystack_session_ids"], row["haystack_sessions"], strict=True
                )
            ]
            yield [(text, name in row["answer_session_ids"]) for text, name in sessions], row["question"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(
            f"{path}: is not in the layout of LongMemEval ({type(error).__name__}: {error}); expected objects "
            "with question_id, question, haystack_dates, haystack_session_ids, haystack_sessions, answer_session_ids"
        ) from None
