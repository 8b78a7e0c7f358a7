"""How long each part of the evaluation takes with a model of the paper's 380M shape, beside lm-eval's own wrapper."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.evaluation_inputs import prose
from benchmarks.evaluation_wrappers import ARTICLES, SEED, ours, peer, run_task
from benchmarks.recording import Figure, Kept, Kind
from hwh_core.config import load_preset
from hwh_core.progress import progress

PRESET = Path(__file__).parents[1] / "config" / "paper.yaml"
SCALE, NIAH, ALL = "380M", "niah", "all"
ROPE_THETA = 10000.0
QUICK_SHAPE = {
    "num_layers": 8, "hidden_size": 64, "intermediate_size": 96, "attention_head_dim": 8, "gdn_head_dim": 8,
    "conv_size": 4, "gate": True,
}  # fmt: skip
QUICK_ROWS, QUICK_LENGTHS, QUICK_DEPTHS, QUICK_NEW_TOKENS = 2, [256], [0, 100], 12
QUICK_ARTICLE_BYTES = 1000
# Rows that both wrappers score: so many take lm-eval's seconds on a card. An article of the paper preset has 20,000
# bytes, three windows or so.
PEER_ROWS, PEER_ARTICLES = 2000, 100
# lm-eval's own way needs a batch size, in sequences; on a card a small one leaves it idle, so that the faster of these
# counts. With the larger its passes over answers are about as few as ours.
PEER_BATCH_SIZES = (64, 256)
# Windows are longer than answers: 64 of 2,048 tokens are all that ours puts in a batch in the paper preset, and logits
# of 256 would not fit on a card.
PEER_ARTICLE_BATCH_SIZES = (8, 64)
# The faster counts: in the first, kernels are compiled and memory is reserved.
PEER_REPEATS = 2
RATIO = "speedup_over_hflm"
# In which figures of one result must be equal.
ALIKE = ("architecture", "scale", "batch_tokens")


def with_total(figures: Sequence[Figure], names: Sequence[str]) -> list[Figure]:
    """The figures of tasks, and first the time of lm-eval's wrapper over ours for all ``names``, where all are there.

    Seconds of a task are scaled to all of its rows, so that the total is that of the whole evaluation.
    """
    measured = [figure for figure in figures if figure["id"] != _id(figure["sizes"], RATIO)]
    by_id = {figure["id"]: figure for figure in measured}
    ratios = {name: by_id.get(_id(measured[0]["sizes"], f"{name}_{RATIO}")) for name in names} if measured else {}
    if not ratios or None in ratios.values():
        return measured
    totals = {"ours_s": 0.0, "hflm_s": 0.0}
    for name in names:
        detail, rows = ratios[name]["detail"], ratios[name]["sizes"]["rows"]
        for key in totals:
            totals[key] += detail[key] * detail["rows_available"] / rows
    first = ratios[names[0]]
    total = Figure(
        id=_id(first["sizes"], RATIO), value=totals["hflm_s"] / totals["ours_s"], unit="times",
        against="lm-eval's HFLM, each task at the faster of its batch sizes",
        sizes={key: first["sizes"][key] for key in ALIKE} | {"tasks": len(names)},
        detail={"seconds_of_all_rows": totals, "precision": first["detail"]["precision"]},
    )  # fmt: skip
    return [total, *measured]


def kind_of(name: str, tasks: Sequence[str]) -> Kind:
    """What is joined to one result: of one model, for :data:`ALL` until ``tasks``, articles and grid are there."""
    if name != ALL:
        return Kind(f"evaluation_time_{name}", ALIKE)
    compared = [name for name in (*tasks, ARTICLES) if is_compared(name)]

    def complete(figures: Sequence[Figure]) -> bool:
        wanted = {f"{name}_s" for name in (*tasks, ARTICLES, NIAH)} | {f"{name}_{RATIO}" for name in compared}
        return {_id(figures[0]["sizes"], what) for what in wanted} <= {figure["id"] for figure in figures}

    return Kind(f"evaluation_time_{ALL}", ALIKE, lambda figures: with_total(figures, compared), complete)


def record_times(
    name: str,
    architecture: str,
    tokenizer: Any,
    rows: Path,
    quick: bool,
    samples_per_cell: int | None,
    command: str,
    output: Path | None,
) -> list[Figure]:
    """Measure with :func:`task_times` and write the figures, after every task."""
    measured = task_times(name, architecture, tokenizer, rows, quick, samples_per_cell)
    kept = Kept(kind_of(name, task_names(rows)), command, output, fresh=True)
    for figures in measured:
        kept.add(figures)
    kept.end()
    return kept.figures


def is_compared(name: str) -> bool:
    """Whether lm-eval's wrapper is timed on it too: not on what is generated, whose documents it would cut itself."""
    from hwh_core.evaluation.rows import TASKS

    return name == ARTICLES or TASKS[name].completion is None


def task_names(rows: Path) -> list[str]:
    """Tasks whose rows are there."""
    from hwh_core.evaluation.rows import TASKS

    return [path.stem for path in sorted(rows.glob("*.jsonl")) if path.stem in TASKS]


def task_times(
    name: str, architecture: str, tokenizer: Any, rows: Path, quick: bool, samples_per_cell: int | None = None
) -> Iterator[list[Figure]]:
    """Figures of one task with all its rows (or of articles, of the needle grid of the paper preset, of all in turn).

    Weights are random; the time does not depend on them. The vocabulary is that of ``tokenizer``. With
    ``samples_per_cell`` every length and depth of the grid has so many needles instead of the preset's.
    """
    from hwh_core.modeling import build_model

    names = [*task_names(rows), ARTICLES, NIAH]
    if name not in (*names, ALL):
        sys.exit(f"error: --task {name}: no rows of it in {rows}; expected one of {', '.join((*names, ALL))}")
    if not (quick or torch.cuda.is_available()):
        sys.exit("error: --task needs a CUDA device, and torch sees none; --quick also runs on a CPU")
    preset = load_preset(PRESET)
    changes: dict[str, Any] = {}
    articles: dict[str, Any] = {}
    if quick:
        changes |= {"lengths": QUICK_LENGTHS, "depths": QUICK_DEPTHS, "max_new_tokens": QUICK_NEW_TOKENS}
        articles |= {"max_documents": QUICK_ROWS, "max_bytes": QUICK_ROWS * QUICK_ARTICLE_BYTES}
    if quick or samples_per_cell is not None:
        changes["samples_per_cell"] = samples_per_cell or 1
    held_out = preset.evaluation.held_out_perplexity.model_copy(update=articles)
    niah = preset.evaluation.niah.model_copy(update=changes)
    evaluation = preset.evaluation.model_copy(update={"niah": niah, "held_out_perplexity": held_out})
    scale = next(scale for scale in preset.hwh.scales if scale.name == SCALE)
    shape = QUICK_SHAPE if quick else scale.shape.model_dump(exclude_none=True)
    model = build_model(shape, architecture, ROPE_THETA, True, scale.length, len(tokenizer), seed=0).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    for each in progress(names if name == ALL else [name], "tasks", unit="task"):
        measure = _niah if each == NIAH else _task
        yield measure(each, model, tokenizer, rows, evaluation, quick, architecture)


def _id(sizes: Mapping[str, Any], what: str) -> str:
    return f"eval.{sizes['scale'].lower()}_{what}"


def _sizes(architecture: str, quick: bool, **more: Any) -> dict[str, Any]:
    return {"architecture": architecture, "scale": "quick" if quick else SCALE, **more}


def _figure(name: str, seconds: float, sizes: dict[str, Any], **detail: Any) -> Figure:
    return Figure(id=_id(sizes, f"{name}_s"), value=seconds, unit="s", against=None, sizes=sizes, detail=detail)


def articles_of(texts: Sequence[str], config: Any) -> list[dict[str, str]]:
    """As many articles of as many bytes as a preset's ``held_out_perplexity``, of running prose over and over."""
    text, share = " ".join(texts), config.max_bytes // config.max_documents
    text *= 2 + share // len(text)
    begins = [number * share % (len(text) - share) for number in range(config.max_documents)]
    return [{"id": str(number), "text": text[begin : begin + share]} for number, begin in enumerate(begins)]


def _prepared(name: str, rows: Path, evaluation: Any, tokenizer: Any) -> Callable[[int | None], list[Any]]:
    """The task over so many of its rows, or over all; a retrieval task twice, with documents cut in two ways."""
    from hwh_core.evaluation.documents import perplexity_documents
    from hwh_core.evaluation.rows import TASKS, load_task_rows
    from hwh_core.evaluation.scores import prepare_articles, prepare_completion, prepare_rows

    if name != ARTICLES and TASKS[name].completion is not None:
        window = evaluation.retrieval.window
        return lambda count: prepare_completion(load_task_rows(rows, name, count, SEED), tokenizer, window)
    if name != ARTICLES:
        return lambda count: [prepare_rows(load_task_rows(rows, name, count, SEED))]
    config = evaluation.held_out_perplexity
    texts = articles_of(prose(rows), config)
    excerpts = perplexity_documents(texts, config.max_documents, config.max_bytes, SEED)
    return lambda count: [prepare_articles(excerpts[:count], len(excerpts))]


def _task(
    name: str, model: Any, tokenizer: Any, rows: Path, evaluation: Any, quick: bool, architecture: str
) -> list[Figure]:
    from hwh_core.evaluation.lm import HwHLM
    from hwh_core.evaluation.scores import run_task as run_whole_task

    window = evaluation.held_out_perplexity.window
    lm = HwHLM(model, tokenizer, batch_tokens=evaluation.batch_tokens, rolling_window=window)
    prepared = _prepared(name, rows, evaluation, tokenizer)
    for task in prepared(QUICK_ROWS):  # warms the kernels
        run_whole_task(lm, task)
    lm.generated.clear()
    tasks = prepared(QUICK_ROWS if quick else None)
    begun = time.perf_counter()
    records = [run_whole_task(lm, task)[0] for task in tasks]
    seconds = time.perf_counter() - begun
    sizes = _sizes(architecture, quick, rows=records[0]["n"], batch_tokens=evaluation.batch_tokens)
    found = [_figure(name, seconds, sizes, num_tokens=records[0]["num_tokens"])]
    if is_compared(name):
        most = QUICK_ROWS if quick else PEER_ARTICLES if name == ARTICLES else PEER_ROWS
        found.append(against_peer(name, prepared(most)[0], model, tokenizer, sizes))
    return found


def against_peer(name: str, prepared: Any, model: Any, tokenizer: Any, sizes: dict[str, Any]) -> Figure:
    """Time of lm-eval's HFLM over ours on the same rows in the same precision, in turn.

    Prompt templates are compiled once for both, which lm-eval alone does not do: what is compared are the wrappers.
    """
    from hwh_core.evaluation.inference import precision
    from hwh_core.evaluation.scores import templates_compiled_once

    wrappers = {"ours": ours(model, tokenizer, sizes["batch_tokens"])}
    beginning = wrappers["ours"].prefix_token_id
    whole_texts = "word_perplexity" in prepared.metrics
    batch_sizes = PEER_ARTICLE_BATCH_SIZES if whole_texts else PEER_BATCH_SIZES
    wrappers |= {f"hflm_{size}": peer(model, tokenizer, size, beginning) for size in batch_sizes}
    seconds: dict[str, list[float]] = {key: [] for key in wrappers}
    answers = {}
    with templates_compiled_once():
        for _ in range(PEER_REPEATS):
            for key, lm in wrappers.items():
                try:
                    run = run_task(lm, prepared.task, prepared.metrics)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    continue
                seconds[key].append(run.seconds)
                answers[key] = run.log_likelihoods
    least = {key: min(found) for key, found in seconds.items() if found}
    if "ours" not in least or len(least) < 2:
        without = "ours" if "ours" not in least else "HFLM at every batch size"
        sys.exit(f"error: --task {name}: {without} ran out of the card's memory; run it on a card that has more")
    fastest = min((key for key in least if key != "ours"), key=least.__getitem__)
    differences = [abs(a - b) for a, b in zip(answers["ours"], answers[fastest], strict=True)]
    products = precision(model.device)
    weights = str(model.dtype).removeprefix("torch.")
    return Figure(
        id=_id(sizes, f"{name}_{RATIO}"),
        value=least[fastest] / least["ours"],
        unit="times",
        against=f"lm-eval's HFLM at batch size {fastest.removeprefix('hflm_')}",
        sizes={**sizes, "rows": len(prepared.row_labels)},
        detail={
            "rows_available": prepared.rows_available,
            "ours_s": least["ours"],
            "hflm_s": least[fastest],
            "hflm_s_by_batch_size": {str(size): least.get(f"hflm_{size}") for size in batch_sizes},
            "measured": f"the fastest of {PEER_REPEATS} by the clock, without reading rows",
            "precision": f"matrix products in {products} over weights in {weights}, log-softmax in float32, both",
            "max_log_likelihood_difference": max(differences),
        },
    )


def _niah(
    name: str, model: Any, tokenizer: Any, rows: Path, evaluation: Any, quick: bool, architecture: str
) -> list[Figure]:
    from hwh_core.config import NiahGrid
    from hwh_core.evaluation.grids import grid_samples
    from hwh_core.evaluation.haystacks import prose_haystack
    from hwh_core.evaluation.niah_scoring import score_samples

    config = evaluation.niah
    begun = time.perf_counter()
    haystack = prose_haystack(prose(rows), "passages of BoolQ, not RULER essays")
    grid = NiahGrid(variant=config.variant, wording="ruler")
    samples = grid_samples(grid, config, tokenizer, haystack, seed=0)
    made = time.perf_counter()
    score_samples(model, tokenizer, samples, config.metric, evaluation.batch_tokens, config.max_new_tokens)
    done = time.perf_counter()
    sizes = _sizes(architecture, quick, prompts=len(samples), longest=max(config.lengths))
    return [_figure(name, done - begun, sizes, prompts_s=made - begun, scoring_s=done - made)]
