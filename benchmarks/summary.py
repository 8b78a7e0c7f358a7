"""The table of targets and measured figures in benchmarks/README.md, written from benchmarks/results/*.json.

python -m benchmarks.summary          # write the table anew
python -m benchmarks.summary --check  # exit with 1 if it does not say what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- begin: python -m benchmarks.summary -->", "<!-- end -->"


class Target(NamedTuple):
    """What a figure is to reach; ``sense`` is ``<=``, ``>=`` or ``==`` (within 1% of what it is held against)."""

    statement: str
    id: str
    sense: str
    bound: float | None


DIFFERENCE = "eval.smollm2_max_relative_difference"
TARGETS = (
    Target("RFIS and RPD of one layer, against eager torch", "probe.speedup_eager", ">=", 25),
    Target("the same against torch.compile", "probe.speedup_compiled", ">=", 3),
    Target("extra memory", "probe.extra_mib", "<=", 256),
    Target("share of the special-function bound", "probe.bound_fraction", ">=", 0.5),
    Target("error, random heads (relative, beyond 1e-9)", "probe.error_random", "<=", 1e-5),
    Target("error, peaked heads", "probe.error_peaked", "<=", 1e-5),
    Target("error, vanishing divergences", "probe.error_vanishing", "<=", 1e-5),
    Target("100 samples of 8,192 tokens through a Qwen3-4B-shaped model", "probe.qwen3_4b_100x8192_s", "<=", 90),
    Target("peak memory of that", "probe.qwen3_4b_peak_gib", "<=", None),
    Target("one sample through SmolLM2-135M's shape, on a CPU", "probe.cpu_smollm2_sample_s", "<=", 6),
    Target("the same without a compiler", "probe.cpu_eager_sample_s", "<=", 15),
    Target("peak memory, 8B parameters, samples of 8,192 tokens", "probe.llama3_1_8b_peak_gib", "<=", 23),
    Target("first training step of HwH-std from empty caches", "gdn.cold_start_s", "<=", 60),
    Target("HwH-std, 8 layers of width 512, 16,384 tokens a step", "train.8x512_b8_hwh_std_step_ms", "<=", 20),
    Target("Transformer at 380M: share of the card's peak", "train.380m_2048_transformer_mfu", ">=", 0.45),
    Target("HwH-std over Transformer, 380M at 2,048", "train.380m_2048_hwh_std_over_transformer", ">=", 0.95),
    Target("the same at 8,192", "train.380m_8192_hwh_std_over_transformer", ">=", 1.0),
    Target("the same at 32,768", "train.380m_32768_hwh_std_over_transformer", ">=", 2.0),
    Target("HwH-std over Transformer, 1.4B at 2,048", "train.1400m_2048_hwh_std_over_transformer", ">=", 1.0),
    Target("our Gated DeltaNet over flash-linear-attention's, 380M", "train.380m_2048_gdn_over_fla", ">=", 1.0),
    Target("our Transformer over transformers' compiled Llama, 380M", "train.380m_2048_transformer_over_hf", ">=", 1.0),
    *(
        Target(f"{name} at {title}, real text: share of the card's peak", f"paper.{size}_{name}_mfu", ">=", None)
        for size, title in (("380m", "380M"), ("1400m", "1.4B"))
        for name in ("transformer", "gdn", "inter", "hwh_std")
    ),
    *(
        Target(f"{name} at 380M, training cut short: {what}", f"short_run.380m_{name}_{key}", "<=", None)
        for name in ("hwh_std", "transformer")
        for what, key in (("held-out loss, nats", "held_out_loss"), ("tokens", "tokens"))
    ),
    Target(
        "the same, HwH-std less Transformer: held-out loss, nats",
        "short_run.380m_hwh_std_minus_transformer_held_out_loss", "<=", None,
    ),
    Target("tokens a second that one core tokenizes", "data.tokenize_tokens_per_second_core", ">=", None),
    Target("the same over datasets.map", "data.tokenize_over_datasets", ">=", 1.0),
    Target("HwH-std at 380M on two devices with DDP, over twice one", "paper.ddp2_efficiency", ">=", None),
    Target("the same with FSDP2", "paper.fsdp2_efficiency", ">=", None),
    Target("decoding at 32,768 tokens, HwH-std over Transformer", "decode.32768_hwh_std_over_transformer", ">=", None),
    Target("bytes of HwH-std's cache over the Transformer's", "decode.cache_ratio", "==", None),
    Target("scores of SmolLM2-135M against lm-eval's HFLM", f"{DIFFERENCE}_to_hflm", "<=", 1e-6),
    Target("the same in float64", f"{DIFFERENCE}_to_hflm_float64", "<=", 1e-6),
    Target("log-likelihood of an answer, nats", "eval.smollm2_max_log_likelihood_difference_to_hflm", "<=", 1e-3),
    Target("eight tasks and articles, time of HFLM over ours", "eval.speedup_over_hflm", ">=", 1.5),
    Target("lm-eval's HFLM over ours at 380M, eight tasks and articles", "eval.380m_speedup_over_hflm", ">=", 1.5),
    *(
        Target(f"lm-eval's HFLM over ours at 380M, {name}", f"eval.380m_{name}_speedup_over_hflm", ">=", None)
        for name in ("hellaswag", "articles", "wikitext")
    ),
    Target("tokens by which needle prompts fall short of their length, single_2", "niah.fill_error_tokens", "<=", None),
    *(
        Target(f"the same, {variant}", f"niah.fill_error_tokens_{variant}", "<=", None)
        for variant in ("single_1", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue", "multiquery")
    ),
)  # fmt: skip


def figures(folder: Path = FOLDER / "results") -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every figure of the result files by id, with the file it stands in."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        found |= {figure["id"]: (figure, {**result, "name": path.name}) for figure in result["figures"]}
    return found


def reached(target: Target, figure: dict[str, Any]) -> str:
    """``yes``, ``no``, or nothing where there is no bound."""
    value = figure["value"]
    if target.sense == "==":
        return "yes" if abs(value / figure["against"] - 1) <= 0.01 else "no"
    if target.bound is None:
        return ""
    return "yes" if (value >= target.bound if target.sense == ">=" else value <= target.bound) else "no"


def number(value: float) -> str:
    """Three digits, without an exponent where it is readable."""
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.3g}"


def table(found: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Markdown: one row a target, ``not measured`` where no result file has it."""
    lines = ["| what | figure | target | measured | reached | where |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        words = {">=": "at least", "<=": "at most"}.get(target.sense)
        bound = "" if target.bound is None else f"{words} {target.bound:g}"
        if target.id not in found:
            lines.append(f"| {target.statement} | `{target.id}` | {bound} | not measured | | |")
            continue
        figure, result = found[target.id]
        if target.sense == "==":
            bound = f"{number(figure['against'])} by the layers"
        unit = f" {figure['unit']}" if figure["unit"] in ("s", "ms", "MiB", "GiB", "times") else ""
        where = f"[{result['name']}](results/{result['name']}), {result['card']}, {figure.get('date', result['date'])}"
        value = f"{number(figure['value'])}{unit}"
        cells = (target.statement, f"`{target.id}`", bound, value, reached(target, figure), where)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str, body: str) -> str:
    """The text with ``body`` between the marks. Raises ValueError if they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"benchmarks/README.md: the marks {BEGIN} and {END} are missing; put them back")
    return f"{before}{begin}\n{body}\n{end}{after}"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    readme = FOLDER / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = with_table(old, table(figures()))
    if arguments.check:
        return int(old != new)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
