"""Scores one model on its needle grids; writes niah.csv (a row a prompt) and niah_cells.csv (a row a cell).

Each grid of ``niah.additional`` goes into tables of its own beside them, niah_<variant>_<wording>.csv and its cells.
One process scores them all: to start one takes longer than to score a small model.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.scripting import load_settings, run

KEYS = ("scale", "model", "niah", "training_length", "seed")
DEFAULT_BATCH_TOKENS = 8192


def main() -> None:
    """Read the command line, make the prompts, score them, write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings",
        required=True,
        help="JSON or its path: scale, model {name, architecture, seed}, niah (as in the config), training_length, "
        "seed (of the prompts), held_out_prose_source (for the haystack held_out_prose), and optionally batch_tokens "
        "and add_bos (as in evaluation), and "
        "unseen_only (keys and numbers that no retrieval mix trains on)",
    )
    parser.add_argument("--model", required=True, type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("--documents", type=Path, help="held-out documents, for the haystack held_out_prose")
    parser.add_argument("--rows", type=Path, help="folder of evaluation rows, for the haystack essays")
    parser.add_argument("--output", required=True, type=Path, help="table to write (niah.csv); the others beside it")
    arguments = parser.parse_args()
    started = time.time()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")

    from hwh_core.config import NiahGrid
    from hwh_core.evaluation.documents import essay_texts, held_out_prose
    from hwh_core.evaluation.haystacks import prose_haystack
    from hwh_core.evaluation.settings import niah_settings, require
    from hwh_core.files import write_table
    from hwh_core.provenance import write_manifest

    settings = require(load_settings(arguments.settings), KEYS)
    config = niah_settings(settings["niah"])
    grids = {arguments.output: NiahGrid(variant=config.variant, wording="ruler")}
    for grid in config.additional:
        grids[arguments.output.with_name(f"{arguments.output.stem}_{grid.name}.csv")] = grid
    if config.haystack == "held_out_prose":
        require(settings, ("held_out_prose_source",))
        if arguments.documents is None:
            raise EvaluationError("--documents is needed for the haystack held_out_prose")
        documents = held_out_prose(arguments.documents, settings["held_out_prose_source"])
        haystack = prose_haystack([document["text"] for document in documents], "held-out prose, not RULER essays")
    else:
        if arguments.rows is None:
            raise EvaluationError("--rows is needed for the haystack essays")
        haystack = prose_haystack(essay_texts(arguments.rows), "essays")

    take_devices()

    from hwh_core.evaluation.grids import grid_samples
    from hwh_core.evaluation.inference import load_model, precision
    from hwh_core.evaluation.niah_scoring import cell_table, prompts_sha256, sample_table, score_samples

    model, tokenizer = load_model(arguments.model)
    batch_tokens = settings.get("batch_tokens", DEFAULT_BATCH_TOKENS)
    identity = {"scale": settings["scale"], **{key: settings["model"][key] for key in ("architecture", "seed")}}
    identity["model"] = settings["model"]["name"]
    for output, grid in grids.items():
        begun, clock = time.time(), time.monotonic()
        samples = grid_samples(
            grid,
            config,
            tokenizer,
            haystack,
            seed=settings["seed"],
            add_bos=settings.get("add_bos", False),
            unseen_only=settings.get("unseen_only", False),
            rows=arguments.rows,
        )
        prepared = time.monotonic()
        correct = score_samples(model, tokenizer, samples, config.metric, batch_tokens, config.max_new_tokens)
        labels = {
            "metric": config.metric,
            "haystack": haystack.label,
            "wording": grid.wording,
            "training_length": settings["training_length"],
        }
        table = sample_table(samples, correct, identity, labels)
        version = f"niah_{grid.variant}, fill {grid.fill}"
        cells = output.with_name(f"{output.stem}_cells.csv")
        write_table(cell_table(table, version, prompts_sha256(samples)), cells)
        write_table(table, output)
        write_manifest(
            output,
            inputs=[path for path in (arguments.model, arguments.documents, arguments.rows) if path is not None],
            settings=settings,
            seed=settings["seed"],
            started=started if output == arguments.output else begun,
            beside=[cells],
            extra={
                "seconds": {"prompts": round(prepared - clock, 2), "scoring": round(time.monotonic() - prepared, 2)},
                "precision": precision(model.device),
                "largest_fill_error_tokens": max(sample.fill_error for sample in samples),
            },
        )
        print(f"{grid.variant}, wording {grid.wording}, fill {grid.fill}:")
        for length, members in table.groupby("length")["correct"]:
            print(f"length {length}: {100 * members.mean():.1f}% of {len(members)} prompts")


if __name__ == "__main__":
    run(main)
