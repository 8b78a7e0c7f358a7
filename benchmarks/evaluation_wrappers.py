"""One task through lm-eval's own wrapper and through ours: the same rows, the same precision, timed the same way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evaluation_inputs import prose

ARTICLES = "articles"
ROLLING_WINDOW = 2048
SEED = 0


class Run(NamedTuple):
    """One task through one wrapper: metrics, log-likelihoods of all answers, seconds by the clock and of the CPU."""

    metrics: dict[str, float]
    log_likelihoods: list[float]
    seconds: float
    cpu_seconds: float


def task_over(name: str, rows: Path, count: int) -> tuple[Any, tuple[str, ...], int]:
    """lm-eval's task over the seeded subset of ``count`` rows, its metrics, and the number of all rows."""
    from hwh_core.evaluation.rows import load_task_rows
    from hwh_core.evaluation.tasks import HELD_OUT_METRICS, build_task, held_out_task

    if name == ARTICLES:
        texts = prose(rows)
        return held_out_task([{"text": text[:1000]} for text in texts[:count]]), HELD_OUT_METRICS, len(texts)
    found = load_task_rows(rows, name, count, SEED)
    return build_task(found), found.spec.metrics, found.total


def run_task(lm: Any, task: Any, metrics: tuple[str, ...]) -> Run:
    """Score a task; the time is that of lm-eval's evaluator, without reading rows."""
    from lm_eval.evaluator import evaluate

    _wait()
    clock, cpu = time.perf_counter(), time.process_time()
    outcome = evaluate(lm, {"tasks": {"t": task}}, bootstrap_iters=0)
    _wait()
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
    answers = [response[0] for sample in outcome["samples"]["t"] for response in sample["resps"]]
    values = [float(answer[0] if isinstance(answer, tuple | list) else answer) for answer in answers]
    found = {metric: float(outcome["results"]["t"][f"{metric},none"]) for metric in metrics}
    return Run(found, values, seconds, cpu_seconds)


def score(lm: Any, name: str, rows: Path, count: int) -> Run:
    """Score the task over the subset of ``count`` rows."""
    task, metrics, _ = task_over(name, rows, count)
    return run_task(lm, task, metrics)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peer(model: Any, tokenizer: Any, batch_size: int, beginning: int | None = None) -> Any:
    """lm-eval's own wrapper, in the precision of ours: as ``mixed_precision_dtype`` it takes what ours runs in.

    Over products in bfloat16 it would also make the log-softmax and sum an answer's tokens in bfloat16, whose steps at
    20 nats are an eighth of one: so it is told to make these in float32, as ours does. ``beginning``: the token that a
    text without context begins after, if not lm-eval's own choice.
    """
    from lm_eval.models.huggingface import HFLM

    from hwh_core.evaluation.inference import precision

    dtype = precision(model.device)
    mixed = None if dtype == "float32" else dtype
    return HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_length=ROLLING_WINDOW,
        mixed_precision_dtype=mixed,
        softmax_dtype=None if mixed is None else "float32",
        prefix_token_id=beginning,
    )


def ours(model: Any, tokenizer: Any, batch_tokens: int) -> Any:
    """The wrapper of this project."""
    from hwh_core.evaluation.lm import HwHLM

    return HwHLM(model, tokenizer, batch_tokens=batch_tokens, rolling_window=ROLLING_WINDOW)
