"""Evaluation rows: one JSON object a line, in the field layout that lm-eval's task files read.

A folder of rows holds ``<task>.jsonl`` for every task and ``rows.json`` with counts and checksums. Rows are checked
before anything is scored: lm-eval's own errors name no row, and it scores an empty answer like any other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import EvaluationError

Row = dict[str, Any]

#: Rows that are no task: the essays of RULER's haystack, wanted by ``niah.haystack: essays`` only.
ESSAYS = "niah_essays"
#: Beside the rows: NLTK's English sentence splitter, which lm-eval's needle samples are cut with.
NLTK_DATA = "nltk_data"
SPLITTER = "tokenizers/punkt_tab/english"


@dataclass(frozen=True)
class Completion:
    """A task that generates an answer which stands in a document.

    ``document``: the field that may be cut; ``answers``: the gold answers of a row; ``max_new_tokens``: room for them.
    """

    document: str
    answers: Callable[[Row], list[str]]
    max_new_tokens: int = 48


@dataclass(frozen=True)
class TaskSpec:
    """What this project knows about one task.

    ``yaml`` is lm-eval's own task file below ``lm_eval/tasks`` or, with ``own``, ours below ``task_files``; ``split``
    the split that it evaluates; ``metrics`` those that the tables of the field report; ``fields`` the fields its
    templates read, with their types; ``check`` returns what is wrong with a row beyond that, or None; ``completion``
    what is known of a retrieval task.
    """

    name: str
    yaml: str
    split: str
    metrics: tuple[str, ...]
    fields: dict[str, type | tuple[type, ...]]
    check: Callable[[Row], str | None] = field(default=lambda row: None)
    completion: Completion | None = None
    own: bool = False


def _one_of(key: str, *allowed: Any) -> Callable[[Row], str | None]:
    def check(row: Row) -> str | None:
        if row[key] in allowed:
            return None
        return f"field {key!r} is {row[key]!r}, expected one of {', '.join(map(repr, allowed))}"

    return check


def _check_texts(texts: Sequence[Any], key: str, least: int) -> str | None:
    if len(texts) < least or not all(isinstance(text, str) and text.strip() for text in texts):
        return f"field {key!r} must hold at least {least} texts, none of them empty"
    return None


def _check_hellaswag(row: Row) -> str | None:
    problem = _check_texts(row["endings"], "endings", 2)
    if problem is None and str(row["label"]) not in [str(index) for index in range(len(row["endings"]))]:
        problem = f"field 'label' is {row['label']!r}, expected the number of one of the endings"
    return problem


def _check_arc(row: Row) -> str | None:
    choices = row["choices"]
    texts, labels = choices.get("text"), choices.get("label")
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        return "field 'choices' must hold the lists 'text' and 'label' of equal length"
    problem = _check_texts(texts, "choices.text", 2)
    if problem is None and row["answerKey"] not in labels:
        problem = f"field 'answerKey' is {row['answerKey']!r}, which is not among the labels {labels}"
    return problem


def _check_winogrande(row: Row) -> str | None:
    if row["sentence"].count("_") < 1:
        return "field 'sentence' has no '_' for the option"
    problem = _check_texts([row["option1"], row["option2"]], "option1, option2", 2)
    return problem or _one_of("answer", "1", "2")(row)


def _check_social_iqa(row: Row) -> str | None:
    problem = _check_texts([row["answerA"], row["answerB"], row["answerC"]], "answerA, answerB, answerC", 3)
    return problem or _one_of("label", "1", "2", "3")(row)


def _check_piqa(row: Row) -> str | None:
    return _check_texts([row["sol1"], row["sol2"]], "sol1, sol2", 2) or _one_of("label", 0, 1)(row)


def _check_lambada(row: Row) -> str | None:
    words = row["text"].split(" ")
    if len(words) < 2 or not words[-1].strip():
        return "field 'text' must hold a passage and its last word, parted by one space"
    return None


def _check_wikitext(row: Row) -> str | None:
    return None if row["page"].strip() else "field 'page' is empty"


def _check_completion(row: Row) -> str | None:
    return None if row["value"].strip() and row["text"].strip() else "fields 'text' and 'value' must not be empty"


def _check_cloze(row: Row) -> str | None:
    if not row["question"].strip():
        return "field 'question' is empty"
    return _check_texts(row["answers"], "answers", 1)


def _completion_task(name: str) -> TaskSpec:
    """One of lm-eval's tasks whose rows hold the whole prompt."""
    completion = Completion("text", lambda row: [row["value"]])
    fields = {"text": str, "value": str}
    return TaskSpec(
        name, f"{name}/{name}.yaml", "validation", ("contains",), fields, _check_completion, completion=completion
    )


def _cloze_task(name: str) -> TaskSpec:
    """One of our task files, whose rows hold a document and a question."""
    completion = Completion("context", lambda row: list(row["answers"]))
    fields = {"context": str, "question": str, "answers": list}
    return TaskSpec(
        name, f"{name}.yaml", "validation", ("contains",), fields, _check_cloze, completion=completion, own=True
    )


_ARC_FIELDS = {"question": str, "choices": dict, "answerKey": str}

#: Tasks that can be evaluated. Metrics: the convention of the GDN and Mamba papers (accuracy, or accuracy normalised
#: by the length of the answer for HellaSwag and ARC-Challenge; for retrieval whether the answer was written).
TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec("wikitext", "wikitext/wikitext.yaml", "test", ("word_perplexity",), {"page": str}, _check_wikitext),
        TaskSpec(
            "lambada_openai",
            "lambada/lambada_openai.yaml",
            "test",
            ("perplexity", "acc"),
            {"text": str},
            _check_lambada,
        ),
        TaskSpec(
            "piqa",
            "piqa/piqa.yaml",
            "validation",
            ("acc",),
            {"goal": str, "sol1": str, "sol2": str, "label": int},
            _check_piqa,
        ),
        TaskSpec(
            "hellaswag",
            "hellaswag/hellaswag.yaml",
            "validation",
            ("acc_norm",),
            {"ctx_a": str, "ctx_b": str, "activity_label": str, "endings": list, "label": (str, int)},
            _check_hellaswag,
        ),
        TaskSpec(
            "winogrande",
            "winogrande/default.yaml",
            "validation",
            ("acc",),
            {"sentence": str, "option1": str, "option2": str, "answer": str},
            _check_winogrande,
        ),
        TaskSpec("arc_easy", "arc/arc_easy.yaml", "test", ("acc",), _ARC_FIELDS, _check_arc),
        TaskSpec("arc_challenge", "arc/arc_challenge.yaml", "test", ("acc_norm",), _ARC_FIELDS, _check_arc),
        TaskSpec(
            "social_iqa",
            "siqa/siqa.yaml",
            "validation",
            ("acc",),
            {"context": str, "question": str, "answerA": str, "answerB": str, "answerC": str, "label": str},
            _check_social_iqa,
        ),
        TaskSpec(
            "boolq",
            "super_glue/boolq/default.yaml",
            "validation",
            ("acc",),
            {"passage": str, "question": str, "label": int},
            _one_of("label", 0, 1),
        ),
        *map(_completion_task, ("swde", "fda", "squad_completion")),
        *map(_cloze_task, ("based_triviaqa", "based_nq_512", "based_nq_1024", "based_nq_2048", "based_drop")),
    )
}


def task_spec(name: str) -> TaskSpec:
    """The task called ``name``. Raises :class:`EvaluationError` for an unknown one."""
    if name not in TASKS:
        raise EvaluationError(f"evaluation.tasks: {name!r} is not a known task; known are {', '.join(TASKS)}")
    return TASKS[name]


def row_label(index: int, row: Row) -> str:
    """How a row is named in errors: its number in the file, and its own id if it has one."""
    for key in ("id", "ind", "idx", "question_id", "doc_id"):
        if key in row:
            return f"row {index} ({key} {row[key]})"
    return f"row {index}"


def check_rows(spec: TaskSpec, rows: Sequence[Row]) -> None:
    """Check fields and values of all rows. Raises :class:`EvaluationError` naming task, row and field."""
    for index, row in enumerate(rows):
        where = f"task {spec.name}, {row_label(index, row)}"
        for key, kind in spec.fields.items():
            if key not in row or row[key] is None:
                raise EvaluationError(f"{where}: field {key!r} is missing; lm-eval's task file reads it")
            if not isinstance(row[key], kind) or isinstance(row[key], bool):
                kinds = kind if isinstance(kind, tuple) else (kind,)
                expected = " or ".join(k.__name__ for k in kinds)
                raise EvaluationError(f"{where}: field {key!r} is {row[key]!r}, expected {expected}")
        problem = spec.check(row)
        if problem:
            raise EvaluationError(f"{where}: {problem}")


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a ``.jsonl`` or ``.jsonl.gz`` file. Raises :class:`EvaluationError` naming file and line."""
    path = Path(path)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except FileNotFoundError:
        raise EvaluationError(
            f"{path} does not exist; scripts/extract_rows.py writes the rows of a task there"
        ) from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path} cannot be read as JSON lines in UTF-8: {error}") from None
    rows = []
    # Only "\n" ends a line: str.splitlines would also cut at the separators that JSON allows inside strings.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise EvaluationError(f"{path}, line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise EvaluationError(f"{path}, line {number}: expected a JSON object with the fields of one row")
        rows.append(row)
    if not rows:
        raise EvaluationError(f"{path} holds no rows")
    return rows


def rows_sha256(rows: Iterable[Row]) -> str:
    """sha256 of rows in their order, each as JSON with sorted keys on a line of its own."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def subset_indices(name: str, count: int, limit: int | None, seed: int) -> list[int]:
    """Indices of the rows that are used, ascending: all, or ``limit`` of them chosen by ``seed``.

    Rows are ranked by a hash of seed, task and index, so the choice depends on nothing else (no random generator of
    some version of a library) and a smaller limit takes a subset of a larger one.
    """
    if limit is None or limit >= count:
        return list(range(count))
    ranked = sorted(range(count), key=lambda index: hashlib.sha256(f"{seed}:{name}:{index}".encode()).digest())
    return sorted(ranked[:limit])


@dataclass(frozen=True)
class TaskRows:
    """The rows of one task that are scored: ``indices`` in the file, checksum of ``rows``, total in the file."""

    spec: TaskSpec
    rows: list[Row]
    indices: list[int]
    total: int
    note: str | None = None

    @property
    def sha256(self) -> str:
        """Checksum of the rows used; scores may be compared only where it is equal."""
        return rows_sha256(self.rows)

    @property
    def labels(self) -> list[str]:
        """Names of the rows for errors, in their order."""
        return [row_label(index, row) for index, row in zip(self.indices, self.rows, strict=True)]


def load_task_rows(folder: str | Path, name: str, limit: int | None, seed: int) -> TaskRows:
    """Read ``<folder>/<name>.jsonl``, check every row, and take the seeded subset of ``limit`` rows."""
    spec, folder = task_spec(name), Path(folder)
    rows = read_rows(folder / f"{name}.jsonl")
    check_rows(spec, rows)
    indices = subset_indices(name, len(rows), limit, seed)
    note = None
    if (folder / "rows.json").is_file():
        note = json.loads((folder / "rows.json").read_text(encoding="utf-8"))["tasks"].get(name, {}).get("note")
    return TaskRows(spec, [rows[index] for index in indices], indices, len(rows), note)
