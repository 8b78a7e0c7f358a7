"""Which part of a long document stays in the prompt of a retrieval task.

A model reads at most ``window`` tokens with its answer. lm-eval drops what is too much from the left, which can take
the answer away; the JRT work keeps the stretch around the answer. Both are measured, side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import EvaluationError
from .rows import Row, TaskRows

Cut = Literal["centred", "left"]
#: Tokens at the end of a prompt that is one text: they hold the unfinished sentence and always stay.
ENDING_TOKENS = 64


@dataclass(frozen=True)
class Windowed:
    """Rows whose prompts fit, how many documents were cut, and rows (by label) that cannot be answered as they are.

    ``without_answer``: no answer stands in what is left of the document; ``too_long``: every answer takes more tokens
    than may be generated.
    """

    rows: TaskRows
    cut: int
    without_answer: list[str]
    too_long: list[str]


def _spans(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]


def answer_place(text: str, answers: Sequence[str]) -> int | None:
    """Character at which the first of the answers that occur begins, in any case; None if there is none."""
    for answer in answers:
        if found := re.search(re.escape(answer.strip()), text, re.IGNORECASE):
            return found.start()
    return None


def window_of(text: str, spans: Sequence[tuple[int, int]], room: int, place: int | None, cut: Cut) -> str:
    """The part of a text that ``room`` tokens hold: its end, or the stretch with ``place`` (a character) in the middle.

    ``spans``: characters of each token. Where the middle would reach beyond the text, the stretch is moved inside.
    """
    if len(spans) <= room:
        return text
    if room <= 0:
        return ""
    start = len(spans) - room
    if cut == "centred" and place is not None:
        token = next(index for index, (_, end) in enumerate(spans) if end > place)
        start = min(start, max(0, token - room // 2))
    return text[spans[start][0] : spans[start + room - 1][1]]


def cut_row(
    row: Row, key: str, prompt: Callable[[Row], str], answers: Sequence[str], tokenizer: Any, room: int, cut: Cut
) -> Row:
    """The row with its document (field ``key``) cut so that its prompt takes at most ``room`` tokens.

    What follows the document in the prompt stays whole; where the document is the prompt, its last
    :data:`ENDING_TOKENS`. Raises :class:`EvaluationError` if even that does not fit.
    """
    whole = prompt(row)
    total = len(_spans(tokenizer, whole))
    if total <= room:
        return row
    # The document as it stands in the prompt, which a task may have cleaned.
    question = prompt({**row, key: ""})
    text = whole.removesuffix(question)
    spans = _spans(tokenizer, text)
    ending = ""
    if not question.strip():
        if room < ENDING_TOKENS:
            raise EvaluationError(
                f"the last {ENDING_TOKENS} tokens of the prompt hold an unfinished sentence and stay, but only "
                f"{max(room, 0)} are left beside the answer; enlarge evaluation.retrieval.window"
            )
        border = spans[-ENDING_TOKENS][0]
        text, ending = text[:border], text[border:]
        spans = _spans(tokenizer, text)
    place = answer_place(text, answers)
    left = len(spans) - (total - room)
    # Tokens at the borders of the parts may differ from those of the whole prompt: a few words give way then.
    for allowed in range(left, max(-1, left - 16), -1):
        changed = {**row, key: window_of(text, spans, allowed, place, cut) + ending}
        if len(_spans(tokenizer, prompt(changed))) <= room:
            return changed
    raise EvaluationError(
        f"question and answer alone do not fit: the prompt without its document takes more than {max(room, 0)} tokens; "
        "enlarge evaluation.retrieval.window"
    )


def windowed(rows: TaskRows, prompt: Callable[[Row], str], tokenizer: Any, window: int, cut: Cut) -> Windowed:
    """All rows of a retrieval task with prompts of at most ``window`` tokens, room for the answer included.

    Raises :class:`EvaluationError` naming task and row if a question does not fit.
    """
    task = rows.spec.completion
    kept, changed, without, long = [], 0, [], []
    for row, label in zip(rows.rows, rows.labels, strict=True):
        answers = task.answers(row)
        try:
            new = cut_row(row, task.document, prompt, answers, tokenizer, window - task.max_new_tokens, cut)
        except EvaluationError as error:
            raise EvaluationError(f"task {rows.spec.name}, {label}: {error}") from None
        kept.append(new)
        changed += new is not row
        if answer_place(new[task.document], answers) is None:
            without.append(label)
        if min(len(_spans(tokenizer, f" {answer.strip()}")) for answer in answers) > task.max_new_tokens:
            long.append(label)
    return Windowed(replace(rows, rows=kept), changed, without, long)
