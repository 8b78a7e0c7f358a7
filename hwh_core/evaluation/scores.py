"""One model on all tasks: a tidy table with one row a task and metric."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from .rows import TaskRows, rows_sha256
from .tasks import HELD_OUT_METRICS, HELD_OUT_TASK, build_task, held_out_task
from .windows import windowed

if TYPE_CHECKING:
    import pandas

    from .lm import HwHLM

#: Columns of scores.csv. ``num_tokens``: tokens whose probability was read; of answers that are generated, those of
#: their prompts. ``max_length``: the window of a perplexity, else the longest sequence given to the model, in tokens.
#: ``rows_sha256``: of the rows used, in order.
COLUMNS = (
    "scale", "model", "architecture", "seed", "task", "metric", "value", "stderr", "n", "num_truncated",
    "num_tokens", "task_version", "rows_sha256", "label", "rows_available", "max_length", "training_length", "add_bos",
)  # fmt: skip


#: So many rows are named in a label.
NAMED_ROWS = 5


@dataclass(frozen=True)
class PreparedTask:
    """A task ready to run: lm-eval's object, its metrics, and what is recorded about its rows."""

    name: str
    task: Any
    metrics: tuple[str, ...]
    rows_sha256: str
    rows_available: int
    label: str
    row_labels: list[str]
    suffix: str = ""
    """Behind the names of the metrics, where one task is measured in several ways."""


def prepare_rows(rows: TaskRows) -> PreparedTask:
    """A task over rows of the field's benchmarks."""
    label = f"{len(rows.rows)} of {rows.total} rows, zero-shot"
    if rows.note:
        label += f"; {rows.note}"
    name = rows.spec.name
    return PreparedTask(name, build_task(rows), rows.spec.metrics, rows.sha256, rows.total, label, rows.labels)


def prepare_completion(rows: TaskRows, tokenizer: Any, window: int) -> list[PreparedTask]:
    """A retrieval task twice: documents cut around the answer (``contains``) and from the left (``contains_left``).

    Labels say how many documents were cut and which rows cannot be answered as they are.
    """
    prompt = build_task(rows).doc_to_text
    prepared = []
    for cut, suffix in (("centred", ""), ("left", "_left")):
        made = windowed(rows, prompt, tokenizer, window, cut)
        whole = prepare_rows(made.rows)
        where = "around the answer" if cut == "centred" else "from the left"
        label = f"{whole.label}; {made.cut} documents cut {where} to prompts of {window} tokens with their answer"
        for problem, named in (
            ("without their answer", made.without_answer),
            ("with too long an answer", made.too_long),
        ):
            if named:
                label += f"; {len(named)} {problem}: {', '.join(named[:NAMED_ROWS])}"
        # The checksum is of the rows as they were: what is cut depends on the tokenizer.
        prepared.append(replace(whole, rows_sha256=rows.sha256, label=label, suffix=suffix))
    return prepared


def prepare_articles(excerpts: Sequence[dict[str, Any]], available: int) -> PreparedTask:
    """Word perplexity on excerpts of held-out articles."""
    rows = [{"id": document["id"], "text": document["text"]} for document in excerpts]
    return PreparedTask(
        HELD_OUT_TASK,
        held_out_task(rows),
        HELD_OUT_METRICS,
        rows_sha256(rows),
        available,
        "held-out articles, not WikiText",
        [f"article {row['id']}" for row in rows],
    )


def mean_stderr(values: Sequence[float]) -> float | None:
    """Standard error of a mean (sample standard deviation over root n); None for a single value."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


def ratio_stderr(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """Standard error of sum(numerators) / sum(denominators) over independent units, to first order."""
    count, total = len(numerators), math.fsum(denominators)
    if count < 2:
        return None
    ratio = math.fsum(numerators) / total
    residuals = [(a - ratio * b) ** 2 for a, b in zip(numerators, denominators, strict=True)]
    return math.sqrt(math.fsum(residuals) * count / (count - 1)) / total


def metric_stderr(metric: str, samples: Sequence[Any], value: float) -> float | None:
    """Standard error of an aggregated metric from its per-row values.

    Accuracies: of the mean. ``perplexity`` = exp(-mean log-likelihood), ``word_perplexity`` and ``bits_per_byte`` =
    functions of a ratio of sums over texts: propagated to first order. lm-eval would bootstrap these at random.
    """
    if metric in ("word_perplexity", "bits_per_byte"):
        error = ratio_stderr([sample[0] for sample in samples], [sample[1] for sample in samples])
        scale = value if metric == "word_perplexity" else 1 / math.log(2)
        return None if error is None else error * scale
    error = mean_stderr([float(sample) for sample in samples])
    return error if error is None or metric != "perplexity" else error * value


@contextmanager
def templates_compiled_once() -> Iterator[None]:
    """Within, lm-eval compiles each prompt template once, not again for every row: most of its time goes there."""
    from lm_eval import utils

    compiled = lru_cache(maxsize=256)(utils.env.from_string)
    with patch.object(utils.env, "from_string", compiled):
        yield


def run_task(lm: HwHLM, prepared: PreparedTask) -> list[dict[str, Any]]:
    """Run one task through lm-eval's evaluator; one record a metric."""
    from lm_eval.evaluator import evaluate

    lm.row_labels[prepared.name] = prepared.row_labels
    lm.counts.pop(prepared.name, None)
    with templates_compiled_once():
        outcome = evaluate(lm, {"tasks": {prepared.name: prepared.task}}, bootstrap_iters=0, log_samples=True)
    results, samples = outcome["results"][prepared.name], outcome["samples"][prepared.name]
    count = lm.counts[prepared.name]
    records = []
    for metric in prepared.metrics:
        value = float(results[f"{metric},none"])
        records.append(
            {
                "task": prepared.name,
                "metric": f"{metric}{prepared.suffix}",
                "value": value,
                "stderr": metric_stderr(metric, [sample[metric] for sample in samples], value),
                "n": len(samples),
                "num_truncated": count.truncated,
                "num_tokens": count.scored_tokens or count.input_tokens,
                "task_version": str(outcome["versions"][prepared.name]),
                "rows_sha256": prepared.rows_sha256,
                "label": prepared.label,
                "rows_available": prepared.rows_available,
                "max_length": count.longest,
                "add_bos": lm.add_bos_token,
            }
        )
    return records


def run_tasks(
    lm: HwHLM,
    tasks: Sequence[PreparedTask],
    identity: dict[str, Any],
    report: Callable[[str], None] = lambda line: None,
) -> tuple[pandas.DataFrame, dict[str, float]]:
    """All tasks on one model: the table of scores (:data:`COLUMNS`) and the seconds that each task took.

    ``identity``: scale, model, architecture, seed. ``report`` is told a line when a task is done.
    """
    import pandas

    identity = {**identity, "training_length": getattr(lm.config, "max_position_embeddings", None)}
    records, seconds = [], {}
    for prepared in tasks:
        begin = time.perf_counter()
        done = run_task(lm, prepared)
        name = f"{prepared.name}{prepared.suffix}"
        seconds[name] = round(time.perf_counter() - begin, 2)
        records += [{**identity, **record} for record in done]
        scores = ", ".join(f"{record['metric']} {record['value']:.4g}" for record in done)
        report(f"{prepared.name}: {scores} ({done[0]['n']} rows, {seconds[name]} s)")
    return pandas.DataFrame.from_records(records, columns=list(COLUMNS)), seconds
