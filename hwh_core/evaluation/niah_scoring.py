"""Scoring of needle prompts, and the tables of a grid."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .errors import EvaluationError
from .inference import generate_greedy, position_limit, token_batches
from .likelihood import score_pairs
from .prompts import NiahSample
from .scores import mean_stderr

if TYPE_CHECKING:
    import pandas

#: Columns of niah.csv, one row a prompt. ``needle_distance``: tokens from the needle's first to the prompt's end (of
#: several that are asked for, the one furthest back); ``correct``: share of the values that were given; ``fill_error``:
#: tokens by which prompt and room for the answer fall short of the length; ``depth`` is empty where it was not chosen.
SAMPLE_COLUMNS = (
    "scale", "model", "architecture", "seed", "length", "depth", "sample", "prompt_tokens", "needle_distance",
    "needle_distances", "correct", "metric", "haystack", "wording", "fill_error", "training_length",
)  # fmt: skip
#: Columns of niah_cells.csv, one row a length and depth: share of correct answers and its standard error.
#: ``prompts_sha256``: of the tokens of all prompts of the grid; ``task_version``: RULER's task and how it was filled.
CELL_COLUMNS = (
    "scale", "model", "architecture", "seed", "length", "depth", "metric", "mean", "stderr", "n", "haystack",
    "wording", "training_length", "num_truncated", "num_tokens", "task_version", "prompts_sha256",
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


def teacher_forced_exact(model: Any, samples: Sequence[NiahSample], batch_tokens: int, fill: int) -> list[float]:
    """1 where every token of the answer is the argmax given the prompt and the true tokens before it, else 0."""
    _check_lengths(model, samples, max(len(sample.answer) for sample in samples))
    pairs = [(sample.prompt, sample.answer) for sample in samples]
    with tqdm(total=len(samples), desc="prompts", leave=False, disable=None) as bar:
        return [float(exact) for _, exact in score_pairs(model, pairs, batch_tokens, fill, done=bar.update)]


def ruler_contains(
    model: Any, tokenizer: Any, samples: Sequence[NiahSample], batch_tokens: int, max_new_tokens: int, fill: int
) -> list[float]:
    """RULER's rule: share of the values that stand anywhere in the greedy continuation of ``max_new_tokens`` tokens."""
    _check_lengths(model, samples, max_new_tokens)
    correct = [0.0] * len(samples)
    with tqdm(total=len(samples), desc="prompts", leave=False, disable=None) as bar:
        for batch in token_batches([len(sample.prompt) + max_new_tokens for sample in samples], batch_tokens):
            prompts = [samples[index].prompt for index in batch]
            for index, tokens in zip(
                batch, generate_greedy(model, prompts, max_new_tokens, fill, tokenizer.eos_token_id), strict=True
            ):
                text = tokenizer.decode(tokens, skip_special_tokens=True).lower()
                values = samples[index].values
                correct[index] = sum(value.lower() in text for value in values) / len(values)
            bar.update(len(batch))
    return correct


def score_samples(
    model: Any, tokenizer: Any, samples: Sequence[NiahSample], metric: str, batch_tokens: int, max_new_tokens: int
) -> list[float]:
    """How far each prompt is answered, from 0 to 1, by ``teacher_forced_exact`` or ``ruler_contains``."""
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if fill is None:
        raise EvaluationError("the tokenizer has neither a padding nor an end token to fill batches with")
    if metric == "teacher_forced_exact":
        return teacher_forced_exact(model, samples, batch_tokens, fill)
    if metric == "ruler_contains":
        return ruler_contains(model, tokenizer, samples, batch_tokens, max_new_tokens, fill)
    raise EvaluationError(f"niah.metric: {metric!r} is unknown; known are teacher_forced_exact, ruler_contains")


def prompts_sha256(samples: Sequence[NiahSample]) -> str:
    """sha256 of the tokens of all prompts, in order; scores may be compared only where it is equal."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(",".join(map(str, sample.prompt)).encode() + b"\n")
    return digest.hexdigest()


def sample_table(
    samples: Sequence[NiahSample], correct: Sequence[float], identity: dict[str, Any], labels: dict[str, Any]
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
            "needle_distances": " ".join(map(str, sample.needle_distances)),
            "correct": int(share) if share in (0, 1) else share,
            "fill_error": sample.fill_error,
        }
        for sample, share in zip(samples, correct, strict=True)
    ]
    return pandas.DataFrame.from_records(records, columns=list(SAMPLE_COLUMNS))


def cell_table(table: pandas.DataFrame, task_version: str, checksum: str) -> pandas.DataFrame:
    """Mean, standard error and number of prompts of each length and depth (:data:`CELL_COLUMNS`).

    No prompt is ever truncated: one that does not fit a model's limit is an error before anything is scored.
    """
    measured = ("mean", "stderr", "n", "num_truncated", "num_tokens", "task_version", "prompts_sha256")
    constant = [name for name in CELL_COLUMNS if name not in measured]
    # Columns that are empty (no training length known) must not drop their rows.
    groups = table.groupby(constant, sort=False, dropna=False)
    cells = groups.agg(
        mean=("correct", "mean"),
        stderr=("correct", lambda values: mean_stderr(list(values))),
        n=("correct", "size"),
        num_tokens=("prompt_tokens", "sum"),
    ).reset_index()
    cells = cells.assign(num_truncated=0, task_version=task_version, prompts_sha256=checksum)
    return cells[list(CELL_COLUMNS)]
