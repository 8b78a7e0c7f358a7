"""How long each part of the evaluation takes with a model of the paper's 380M shape."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.evaluation_inputs import prose
from benchmarks.recording import Figure
from hwh_core.config import load_preset

PRESET = Path(__file__).parents[1] / "config" / "paper.yaml"
SCALE, NIAH, ALL = "380M", "niah", "all"
ROPE_THETA = 10000.0
QUICK_SHAPE = {
    "num_layers": 8, "hidden_size": 64, "intermediate_size": 96, "attention_head_dim": 8, "gdn_head_dim": 8,
    "conv_size": 4, "gate": True,
}  # fmt: skip
QUICK_ROWS, QUICK_LENGTHS, QUICK_DEPTHS, QUICK_NEW_TOKENS = 2, [256], [0, 100], 12


def task_seconds(
    name: str, architecture: str, tokenizer: Any, rows: Path, quick: bool, samples_per_cell: int | None = None
) -> list[Figure]:
    """Seconds of one task with all its rows (or of the needle grid of the paper preset, or of all in turn).

    Weights are random; the time does not depend on them. The vocabulary is that of ``tokenizer``. With
    ``samples_per_cell`` every length and depth of the grid has so many needles instead of the preset's.
    """
    from hwh_core.evaluation.rows import TASKS
    from hwh_core.modeling import build_model

    names = [path.stem for path in sorted(rows.glob("*.jsonl")) if path.stem in TASKS]
    if name not in (*names, NIAH, ALL):
        sys.exit(f"error: --task {name}: no rows of it in {rows}; expected one of {', '.join((*names, NIAH, ALL))}")
    if not (quick or torch.cuda.is_available()):
        sys.exit("error: --task needs a CUDA device, and torch sees none; --quick also runs on a CPU")
    preset = load_preset(PRESET)
    changes: dict[str, Any] = {}
    if quick:
        changes |= {"lengths": QUICK_LENGTHS, "depths": QUICK_DEPTHS, "max_new_tokens": QUICK_NEW_TOKENS}
    if quick or samples_per_cell is not None:
        changes["samples_per_cell"] = samples_per_cell or 1
    evaluation = preset.evaluation.model_copy(update={"niah": preset.evaluation.niah.model_copy(update=changes)})
    scale = next(scale for scale in preset.hwh.scales if scale.name == SCALE)
    shape = QUICK_SHAPE if quick else scale.shape.model_dump(exclude_none=True)
    model = build_model(shape, architecture, ROPE_THETA, True, scale.length, len(tokenizer), seed=0).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    found = []
    for each in [*names, NIAH] if name == ALL else [name]:
        measure = _niah if each == NIAH else _task
        found.append(measure(each, model, tokenizer, rows, evaluation, quick, architecture))
    return found


def _figure(name: str, seconds: float, architecture: str, sizes: dict[str, Any], **detail: Any) -> Figure:
    shape = {"architecture": architecture, "scale": SCALE if sizes.pop("full") else "quick"}
    return Figure(
        id=f"eval.{shape['scale'].lower()}_{name}_s", value=seconds, unit="s", against=None, sizes={**shape, **sizes},
        detail=detail,
    )  # fmt: skip


def _task(name: str, model: Any, tokenizer: Any, rows: Path, evaluation: Any, quick: bool, architecture: str) -> Figure:
    from hwh_core.evaluation.lm import HwHLM
    from hwh_core.evaluation.rows import load_task_rows
    from hwh_core.evaluation.scores import prepare_rows, run_task

    lm = HwHLM(model, tokenizer, batch_tokens=evaluation.batch_tokens, rolling_window=2048)
    found = load_task_rows(rows, name, QUICK_ROWS if quick else None, 0)
    run_task(lm, prepare_rows(load_task_rows(rows, name, QUICK_ROWS, 0)))  # warms the kernels
    begun = time.perf_counter()
    record = run_task(lm, prepare_rows(found))[0]
    seconds = time.perf_counter() - begun
    sizes = {"full": not quick, "rows": record["n"], "batch_tokens": evaluation.batch_tokens}
    return _figure(name, seconds, architecture, sizes, scored_tokens=record["num_tokens"])


def _niah(name: str, model: Any, tokenizer: Any, rows: Path, evaluation: Any, quick: bool, architecture: str) -> Figure:
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
    sizes = {"full": not quick, "prompts": len(samples), "longest": max(config.lengths)}
    return _figure(name, done - begun, architecture, sizes, prompts_s=made - begun, scoring_s=done - made)
