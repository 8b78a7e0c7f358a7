"""Scoring of needle prompts, and the tables of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .errors import EvaluationError
from .inference import generate_greedy, logits_from, position_limit, score_tokens, token_batches
from .niah import NiahSample
from .scores import mean_stderr

if TYPE_CHECKING:
    import pandas

#: Columns of niah.csv, one row a prompt. ``needle_distance``: tokens from the needle's first to the prompt's end;
#: ``fill_error``: tokens by which prompt and room for the answer fall short of the length.
SAMPLE_COLUMNS = (
    "scale", "model", "architecture", "seed", "length", "depth", "sample", "prompt_tokens", "needle_distance",
    "correct", "metric", "haystack", "wording", "fill_error", "training_length",
)  # fmt: skip
#: Columns of niah_cells.csv, one row a length and depth: share of correct answers and its standard error.
CELL_COLUMNS = (
    "scale", "model", "architecture", "seed", "length", "depth", "metric", "mean", "stderr", "n", "haystack",
    "wording", "training_length",
)  # fmt: skip


def _check_lengths(model: Any, samples: Sequence[NiahSample], room: int) -> None:
    limit = position_limit(model)
    for sample in samples:
        needed = len(sample.prompt) + room
        if limit is not None and needed > limit:
            raise EvaluationError(
                f"{sample.name}: prompt and answer take {needed} tokens, but the model's limit "
                f"(max_position_embeddings) is {limit}; prompts are never truncated: use shorter niah.lengths"
            )


def teacher_forced_exact(model: Any, samples: Sequence[NiahSample], batch_tokens: int, fill: int) -> list[bool]:
    """Whether every token of the answer is the argmax given the prompt and the true tokens before it."""
    _check_lengths(model, samples, max(len(sample.answer) for sample in samples))
    inputs = [sample.prompt + sample.answer[:-1] for sample in samples]
    correct = [False] * len(samples)
    with tqdm(total=len(samples), desc="prompts", leave=False, disable=None) as bar:
        for batch in token_batches([len(tokens) for tokens in inputs], batch_tokens):
            first = min(len(samples[index].prompt) for index in batch) - 1
            logits = logits_from(model, [inputs[index] for index in batch], first, fill)
            for row, index in enumerate(batch):
                start = len(samples[index].prompt) - 1 - first
                answer = samples[index].answer
                correct[index] = score_tokens(logits[row, start : start + len(answer)], answer)[1]
            bar.update(len(batch))
    return correct


def ruler_contains(
    model: Any, tokenizer: Any, samples: Sequence[NiahSample], batch_tokens: int, max_new_tokens: int, fill: int
) -> list[bool]:
    """RULER's rule: whether the number stands anywhere in the greedy continuation of ``max_new_tokens`` tokens."""
    _check_lengths(model, samples, max_new_tokens)
    correct = [False] * len(samples)
    with tqdm(total=len(samples), desc="prompts", leave=False, disable=None) as bar:
        for batch in token_batches([len(sample.prompt) + max_new_tokens for sample in samples], batch_tokens):
            prompts = [samples[index].prompt for index in batch]
            for index, tokens in zip(
                batch, generate_greedy(model, prompts, max_new_tokens, fill, tokenizer.eos_token_id), strict=True
            ):
                text = tokenizer.decode(tokens, skip_special_tokens=True)
                correct[index] = samples[index].value.lower() in text.lower()
            bar.update(len(batch))
    return correct


def score_samples(
    model: Any, tokenizer: Any, samples: Sequence[NiahSample], metric: str, batch_tokens: int, max_new_tokens: int
) -> list[bool]:
    """Whether each prompt is answered, by ``teacher_forced_exact`` or ``ruler_contains``."""
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if fill is None:
        raise EvaluationError("the tokenizer has neither a padding nor an end token to fill batches with")
    if metric == "teacher_forced_exact":
        return teacher_forced_exact(model, samples, batch_tokens, fill)
    if metric == "ruler_contains":
        return ruler_contains(model, tokenizer, samples, batch_tokens, max_new_tokens, fill)
    raise EvaluationError(f"niah.metric: {metric!r} is unknown; known are teacher_forced_exact, ruler_contains")


def sample_table(
    samples: Sequence[NiahSample], correct: Sequence[bool], identity: dict[str, Any], labels: dict[str, Any]
) -> pandas.DataFrame:
    """One row a prompt (:data:`SAMPLE_COLUMNS`).

    ``identity``: scale, model, architecture, seed; ``labels``: metric, haystack, wording, training_length.
    """
    import pandas

    records = [
        {
            **identity,
            **labels,
            "length": sample.length,
            "depth": sample.depth,
            "sample": sample.sample,
            "prompt_tokens": len(sample.prompt),
            "needle_distance": sample.needle_distance,
            "correct": int(right),
            "fill_error": sample.fill_error,
        }
        for sample, right in zip(samples, correct, strict=True)
    ]
    return pandas.DataFrame.from_records(records, columns=list(SAMPLE_COLUMNS))


def cell_table(table: pandas.DataFrame) -> pandas.DataFrame:
    """Mean, standard error and number of prompts of each length and depth (:data:`CELL_COLUMNS`)."""
    constant = [name for name in CELL_COLUMNS if name not in ("mean", "stderr", "n")]
    # Columns that are empty (no training length known) must not drop their rows.
    groups = table.groupby(constant, sort=False, dropna=False)["correct"]
    cells = groups.agg(mean="mean", stderr=lambda values: mean_stderr(list(values)), n="size").reset_index()
    return cells[list(CELL_COLUMNS)]
