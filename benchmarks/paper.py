"""Training on real text at the paper's two sizes: tokens a second, share of the card's peak, memory, falling loss.

    python -m benchmarks.paper --store results/paper/data/llama32k/train

takes any token store of this project with at most 32,000 entries, which the models have whatever the text needs. Each
of the four architectures at 380M and 1.4B parameters trains for 27 steps of 65,536 tokens in a process of its own,
with the micro-batches of config/paper.yaml. Writes benchmarks/results/paper.json. After each case all so far stands
in paper_part.json; a run with ``--only`` goes on with that file, which becomes paper.json when all are there, and
``--join A.json B.json`` makes one of parts from several machines. Exits with 1 if a case failed or a loss did not
fall.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.recording import OUTPUT_HELP, Figure, Kept, Kind, command_again, join, output_of
from benchmarks.train import CASE_SECONDS, Result, run_process, summary
from benchmarks.train_plan import Case, case_on, paper_plan
from hwh_core.data.sources import write_source
from hwh_core.data.store import TokenStore
from hwh_core.data.tokenizer import save_trained, train_bpe
from hwh_core.data.tokenizing import tokenize_documents
from hwh_core.progress import progress
from hwh_core.scripting import UserError

QUICK_TEXT = Path(__file__).parents[1] / "tests" / "fixtures" / "text"
GIB = 2**30
# Losses of so many steps at either end are averaged before they are compared.
COMPARED_STEPS = 5


def quick_store(folder: Path) -> Path:
    """A token store of the text of the smoke preset, for ``--quick``."""
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(QUICK_TEXT.glob("*.txt"))]
    documents = [{"id": name, "source": "text", "title": "", "text": text} for name, text in texts]
    write_source(documents, "text", folder / "text.jsonl.zst")
    save_trained(train_bpe(folder / "text.jsonl.zst", vocab_size=512, training_bytes=100_000), folder / "tokenizer")
    tokenize_documents(folder / "text.jsonl.zst", folder / "tokenizer", folder / "store")
    return folder / "store"


def loss_fall(result: Result) -> float:
    """Nats by which the loss has fallen: mean of the first steps less mean of the last."""
    curve = result["loss_curve"]
    return statistics.fmean(curve[:COMPARED_STEPS]) - statistics.fmean(curve[-COMPARED_STEPS:])


def figures_of(case: Case, result: Result, store_sha256: str) -> list[Figure]:
    """Figures of one case; share of the peak and memory only on a card."""
    sizes = {"rows": result["rows"], "length": case.length, "vocab_size": result["vocab_size"], "shape": case.shape}
    sizes |= {"store_sha256": store_sha256}
    left_out = ("tokens_per_second", "rows", "mfu", "peak_memory_bytes")
    detail = {key: value for key, value in result.items() if key not in left_out}
    peak = result["peak_memory_bytes"]
    values = {
        "tokens_per_second": (result["tokens_per_second"], "tokens/s"),
        "mfu": (result["mfu"], "share of the card's peak"),
        "peak_gib": (peak and peak / GIB, "GiB"),
        "loss_fall": (loss_fall(result), "nats"),
    }
    found: list[Figure] = []
    for name, (value, unit) in values.items():
        if value is not None:
            figure: Figure = {"id": f"paper.{case.name}_{name}", "value": value, "unit": unit, "against": None}
            found.append(figure | {"sizes": sizes, "detail": detail} if name == "tokens_per_second" else figure)
    return found


def complaints(results: Mapping[str, Result]) -> list[str]:
    """What makes the program fail: cases without a result, losses that do not fall."""
    failed = [f"{name}: {result['error']}" for name, result in results.items() if "error" in result]
    flat = [
        f"{name}: the loss did not fall in {len(result['loss_curve'])} steps (by {loss_fall(result):.3g} nats)"
        for name, result in results.items()
        if "error" not in result and not loss_fall(result) > 0
    ]
    return failed + flat


def kind_of(cases: Sequence[Case]) -> Kind:
    """What is joined to one result: figures of the same text and vocabulary, until each of ``cases`` is there."""
    wanted = {f"paper.{case.name}_tokens_per_second" for case in cases}
    alike = ("store_sha256", "vocab_size")
    return Kind("paper", alike, complete=lambda figures: wanted <= {figure["id"] for figure in figures})


def run_cases(
    cases: Sequence[Case], store: Path, quick: bool, seconds: int, done: Callable[[Case, Result], None]
) -> dict[str, Result]:
    """Results by case name, one after the other; ``done`` is called with each that did not fail."""
    results = {}
    for case in progress(cases, "cases", unit="case"):
        result = run_process(case, case.rows, None, dict(os.environ), quick, seconds, store)
        results[case.name] = result
        print(f"{case.name}: {summary(result)}", file=sys.stderr, flush=True)
        if "error" not in result:
            done(case, result)
    return results


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="token store with real text")
    parser.add_argument("--quick", action="store_true", help="tiny models, also without a GPU and without --store")
    parser.add_argument("--only", default="", help="regular expression: cases whose name it occurs in")
    parser.add_argument("--case-seconds", type=int, default=CASE_SECONDS, help="a case that takes longer is given up")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--join", nargs="+", type=Path, metavar="PART.json", help="only make one result of these parts")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    arguments = parser.parse_args()
    arguments.output = output_of(arguments.output, arguments.quick)
    everything = paper_plan(arguments.quick)
    cases = [case for case in everything if re.search(arguments.only, case.name)]
    if not cases:
        parser.error(f"--only {arguments.only!r} fits none of: {', '.join(case.name for case in everything)}")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    if arguments.store is None and not arguments.quick and arguments.join is None:
        parser.error("--store FOLDER is needed (or --quick, or --join)")
    kind = kind_of(everything)
    command, whole = command_again("paper", sys.argv[1:], {str(arguments.store): "STORE"}), cases == everything
    try:
        if arguments.join:
            join(kind, "paper", arguments.join, arguments.output)
            return 0
        with tempfile.TemporaryDirectory() as folder:
            store = (arguments.store or quick_store(Path(folder))).resolve()
            text = TokenStore.open(store)
            sha256, entries = text.sha256, cases[0].vocab_size
            if text.vocab_size > entries and not arguments.quick:
                raise UserError(
                    f"--store: {store} has a vocabulary of {text.vocab_size:,} entries, expected at most {entries:,}, "
                    "with which the models have their sizes; tokenize the text with a smaller tokenizer"
                )
            sizes = {"store_sha256": sha256, "vocab_size": case_on(cases[0], text.vocab_size).vocab_size}
            kept = Kept(kind, command, arguments.output, fresh=whole, sizes=sizes)
            results = run_cases(
                cases, store, arguments.quick, arguments.case_seconds,
                lambda case, result: kept.add(figures_of(case, result, sha256)),
            )  # fmt: skip
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    kept.end()
    failures = complaints(results)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
