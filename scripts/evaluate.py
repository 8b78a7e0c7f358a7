"""Scores one model on the evaluation tasks and writes scores.csv (and .parquet)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run

KEYS = ("scale", "model", "evaluation", "seed", "held_out_prose_source")


def main() -> None:
    """Read the command line, run the tasks, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings",
        required=True,
        help="JSON or its path: scale, model {name, architecture, seed}, evaluation (as in the config), seed (of the "
        "choice of rows), held_out_prose_source",
    )
    parser.add_argument("--model", required=True, type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("--rows", required=True, type=Path, help="folder of evaluation rows (extract_rows.py)")
    parser.add_argument("--documents", required=True, type=Path, help="held-out documents (.jsonl.zst)")
    parser.add_argument("--output", required=True, type=Path, help="table to write (.csv)")
    arguments = parser.parse_args()
    started = time.time()
    # Everything is read from local files; a library that tries the network would wait for it to time out.
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")

    from hwh_core.evaluation.documents import held_out_prose, perplexity_documents
    from hwh_core.evaluation.rows import load_task_rows
    from hwh_core.evaluation.settings import evaluation_settings, require
    from hwh_core.files import write_table
    from hwh_core.provenance import write_manifest

    settings = require(load_settings(arguments.settings), KEYS)
    config = evaluation_settings(settings["evaluation"])
    perplexity = config.held_out_perplexity
    documents = held_out_prose(arguments.documents, settings["held_out_prose_source"])
    excerpts = perplexity_documents(documents, perplexity.max_documents, perplexity.max_bytes, settings["seed"])
    rows = [load_task_rows(arguments.rows, task.name, task.limit, settings["seed"]) for task in config.tasks]

    take_devices()

    # Rows are checked before these imports, which take seconds.
    from hwh_core.evaluation.inference import precision
    from hwh_core.evaluation.lm import HwHLM
    from hwh_core.evaluation.scores import prepare_articles, prepare_completion, prepare_rows, run_tasks

    lm = HwHLM(
        str(arguments.model),
        batch_tokens=config.batch_tokens,
        rolling_window=perplexity.window,
        add_bos=config.add_bos,
    )
    tasks = [prepare_articles(excerpts, len(documents))]
    for task in rows:
        if task.spec.completion is None:
            tasks.append(prepare_rows(task))
        else:
            tasks += prepare_completion(task, lm.tokenizer, config.retrieval.window)
    identity = {"scale": settings["scale"], **{key: settings["model"][key] for key in ("architecture", "seed")}}
    identity["model"] = settings["model"]["name"]
    table, seconds = run_tasks(lm, tasks, identity, report=lambda line: print(line, flush=True))
    write_table(table, arguments.output)
    write_manifest(
        arguments.output,
        inputs=[
            arguments.model,
            arguments.documents,
            *(arguments.rows / f"{task.name}.jsonl" for task in config.tasks),
        ],
        settings=settings,
        seed=settings["seed"],
        started=started,
        extra={"seconds_per_task": seconds, "precision": precision(lm.device)},
    )


if __name__ == "__main__":
    run(main)
