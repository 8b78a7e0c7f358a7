"""The paper's 380M training cut short but whole: trained, stopped, resumed, exported, opened anew, compared.

    python -m benchmarks.short_run --store FOLDER

takes a folder of this project with token stores train and held_out and their tokenizer of 32,000 entries, without which
the models would not have 380M parameters (benchmarks/README.md says how to make it). Each architecture is trained by
scripts/train.py on the same batches, stopped by SIGTERM a little after half of its steps and started again; its
exported folder is then opened in a fresh process, which writes text and computes the held-out loss again. Writes
benchmarks/results/short_run.json and, beside it, the loss curves as short_run.png. After each architecture all so far
stands in short_run_part.json; a run of one goes on with that file, which becomes short_run.json when both are there,
and ``--join A.json B.json`` makes one of parts from two cards. Exits with 1 if anything did not go as it should.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.paper import QUICK_TEXT
from benchmarks.recording import OUTPUT_HELP, Kept, card, command_again, join, output_of, read_result
from benchmarks.short_run_report import COMPARED, KIND, complaints, draw, figures_of, sizes_of
from benchmarks.short_run_training import (
    STEPS,
    Result,
    RunError,
    Stores,
    last_words,
    process,
    require,
    settings_of,
    train_with_a_stop,
    wait,
)
from benchmarks.train_plan import ARCHITECTURES
from hwh_core.data.sources import write_source
from hwh_core.data.store import TokenStore
from hwh_core.data.tokenizer import save_trained, train_bpe
from hwh_core.data.tokenizing import tokenize_documents
from hwh_core.files import read_json, write_json
from hwh_core.memory_plan import HUB_VOCABULARY
from hwh_core.provenance import package_versions
from hwh_core.scripting import UserError

# More than twice what a whole training takes on an H200; each of its two parts and the fresh process may take so long.
CASE_SECONDS = 900
# What a training gave, in the work folder, for another try at what comes behind it.
TRAINED = "trained.json"
# Stories of the smoke preset's text that `--quick` holds out.
QUICK_HELD_OUT = 6


def quick_data(folder: Path) -> Path:
    """Token stores and tokenizer of the smoke preset's text below ``folder``, for ``--quick``."""
    stories = sorted(QUICK_TEXT.glob("*.txt"))
    for name, paths in (("train", stories[:-QUICK_HELD_OUT]), ("held_out", stories[-QUICK_HELD_OUT:])):
        text = folder / f"{name}.jsonl.zst"
        documents = [
            {"id": path.name, "source": "text", "title": "", "text": path.read_text(encoding="utf-8")} for path in paths
        ]
        write_source(documents, "text", text)
        if name == "train":
            save_trained(train_bpe(text, vocab_size=512, training_bytes=100_000), folder / "tokenizer")
        tokenize_documents(text, folder / "tokenizer", folder / name)
    return folder


def open_anew(settings: dict[str, Any], stores: Stores, folder: Path, windows: int, seconds: float) -> Result:
    """What a fresh process makes of the exported model in ``folder``. Raises :class:`RunError` if it fails."""
    command = [sys.executable, "-m", "benchmarks.short_run_fresh", str(folder / "output" / "model")]
    command += ["--held-out", str(stores.held_out), "--length", str(settings["model"]["length"])]
    command += ["--windows", str(windows), "--precision", settings["training"]["precision"]]
    log, output = folder / "fresh.log", folder / "fresh.json"
    with process(command, log, output) as started:
        wait(started, seconds, log, until=lambda: False)
    code = started.returncode
    require(code == 0, f"the exported model cannot be used: a fresh process ended with code {code}; {last_words(log)}")
    # Last, below what a library may print.
    found: Result = json.loads(output.read_text(encoding="utf-8").strip().splitlines()[-1])
    silent = [text["prompt"] for text in found["texts"] if not text["tokens"]]
    require(not silent, f"the exported model writes nothing behind {silent[:1]}")
    return found


def trained_model(settings: dict[str, Any], stores: Stores, folder: Path, seconds: float) -> Result:
    """Train, stop, resume and export in ``folder``, or take what a run before it left there.

    Minutes of a card are not to be lost to what comes behind them. Raises :class:`RunError`, also where the run before
    had other settings, another text, another card or other packages: its seconds would be recorded as of these.
    """
    kept, made_with = folder / TRAINED, {"settings": settings, "store_sha256": TokenStore.open(stores.train).sha256}
    made_with |= {"card": card(), "versions": package_versions()}
    if kept.is_file():
        content = read_json(kept)
        result: Result = content.pop("result")
        other = [key for key in made_with if content.get(key) != made_with[key]]
        require(
            not other,
            f"--work: the model in {folder} was trained with other {' and '.join(other)}; give another folder",
        )
        print(f"{folder.name}: trained already, in {folder}", file=sys.stderr, flush=True)
        return result
    folder.mkdir(parents=True)
    result = train_with_a_stop(settings, stores, folder, seconds)
    write_json(kept, made_with | {"result": result})
    return result


def run_architecture(settings: dict[str, Any], stores: Stores, folder: Path, seconds: float) -> Result:
    """Train, stop, resume, export and open anew; ``error`` where it failed."""
    name = settings["model"]["architecture"]
    try:
        result = trained_model(settings, stores, folder, seconds)
        windows = result["metrics"]["held_out_windows"]
        result["fresh"] = open_anew(settings, stores, folder, windows, seconds)
    except RunError as error:
        print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
        return {"error": str(error)}
    for text in result["fresh"]["texts"]:
        print(f"{name}: {json.dumps(text, ensure_ascii=False)}", file=sys.stderr, flush=True)
    return result


@contextmanager
def work_folder(given: Path | None, architectures: Sequence[str]) -> Iterator[Path]:
    """``given``, or a temporary folder. Raises :class:`RunError` where ``given`` holds such a run that was cut off."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="short_run-") as folder:
            yield Path(folder)
        return
    there = [name for name in architectures if (given / name).exists() and not (given / name / TRAINED).is_file()]
    if there:
        raise RunError(f"--work: {given / there[0]} is there already; delete it or give another folder")
    given.mkdir(parents=True, exist_ok=True)
    yield given.resolve()


def draw_beside(path: Path) -> None:
    """Draw the loss curves of a result file to a .png file beside it."""
    result = read_result(path)
    draw(result["figures"], path.with_suffix(".png"), result["card"])


def measure(options: argparse.Namespace, command: str) -> int:
    """Run all architectures and write what succeeded; 1 if any did not."""
    names = list(dict.fromkeys(options.architectures))
    size = "quick" if options.quick else "380m"
    settings = {name: settings_of(name, options.quick, options.steps, options.learning_rate) for name in names}
    failures: list[str] = []
    with work_folder(options.work, names) as folder:
        stores = Stores.of(quick_data(folder / "data") if options.store is None else options.store)
        store = TokenStore.open(stores.train)
        if not options.quick and store.vocab_size != HUB_VOCABULARY:
            raise RunError(
                f"--store: {stores.train} has a vocabulary of {store.vocab_size:,} entries, expected "
                f"{HUB_VOCABULARY:,}: the models would not have 380M parameters; tokenize the text with a tokenizer of "
                "that size"
            )
        sizes = sizes_of(settings[names[0]], store)
        kept = Kept(KIND, command, options.output, fresh=set(COMPARED) <= set(names), sizes=sizes)
        for name in names:
            result = run_architecture(settings[name], stores, folder / name, options.case_seconds)
            if "error" in result:
                failures.append(f"{name}: {result['error']}")
                continue
            kept.add(figures_of(size, settings[name], result, store))
            failures += complaints(name, result)
    path = kept.end()
    if path is not None:
        draw_beside(path)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="folder with train, held_out and tokenizer")
    parser.add_argument("--quick", action="store_true", help="tiny models, also without a GPU and without --store")
    parser.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, default=list(COMPARED), help="one after the other"
    )
    parser.add_argument("--steps", type=int, help=f"training steps; default {STEPS}")
    parser.add_argument("--learning-rate", type=float, help="peak; default that of config/paper.yaml")
    parser.add_argument(
        "--case-seconds", type=int, default=CASE_SECONDS, help="a process that takes longer is given up"
    )
    parser.add_argument(
        "--work", type=Path, help="keep models and logs in this folder, whose trained models are not trained again"
    )
    parser.add_argument("--join", nargs="+", type=Path, metavar="PART.json", help="only make one result of these parts")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    options = parser.parse_args(arguments)
    options.output = output_of(options.output, options.quick)
    if options.store is None and not options.quick and options.join is None:
        parser.error("--store FOLDER is needed (or --quick, or --join)")
    try:
        if not options.join:
            named = {str(options.store): "STORE", str(options.work): "WORK"}
            return measure(options, command_again("short_run", arguments, named))
        draw_beside(join(KIND, "short_run", options.join, options.output))
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    # As at Ctrl-C: what was started ends, and the temporary folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
