"""Document-grounded completion: TriviaQA, Natural Questions and DROP with the question as an unfinished sentence.

Prompts and scoring follow the tasks of the JRT work (HazyResearch/prefix-linear-attention), whose data sets the task
files beside this name. Functions of lm-eval task files: the folder also serves as ``--include_path`` of lm-eval.
"""

from __future__ import annotations

import re
from typing import Any

#: What remains of the structure of a web page in TriviaQA's documents.
PAGE_MARKS = re.compile(r"\[PAR\]|\[DOC\]|\[TLE\]")


def _closed(context: str, question: str) -> str:
    return f"{context.strip().strip('.')}. {question}"


def drop_prompt(doc: dict[str, Any]) -> str:
    """The document without the question at its end, a full stop, and the question."""
    context, question = doc["context"].strip(), doc["question"].strip()
    while context.lower().endswith(question.lower()):
        context = context[: -len(question)]
    return _closed(context, question)


def triviaqa_prompt(doc: dict[str, Any]) -> str:
    """The same without marks of web pages."""
    return drop_prompt({**doc, "context": PAGE_MARKS.sub("", doc["context"].strip())})


def nq_prompt(doc: dict[str, Any]) -> str:
    """The same, but the question is taken off once and only in the same case, as that task does it."""
    context, question = doc["context"].strip(), doc["question"].strip()
    return _closed(context.removesuffix(question), question)


def contains(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    """Whether any of the answers stands in the continuation, in any case."""
    continuation = results[0].lower()
    return {"contains": int(any(answer.lower() in continuation for answer in doc["answers"]))}
