"""Makes the needle prompts of a preset for one tokenizer: a .parquet file a grid, which every model then answers.

They depend on tokenizer, text and settings alone, and to make them takes longer than a small model needs to answer.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from hwh_core.evaluation.grids import GridInputs, make_grids
from hwh_core.evaluation.prompts import named_grids, write_prompts
from hwh_core.evaluation.settings import niah_settings, require
from hwh_core.progress import progress
from hwh_core.provenance import write_manifest
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Read the command line, make the prompts, write one file a grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings",
        required=True,
        help="JSON or its path: niah (as in the config), seed, held_out_prose_source (for the haystack "
        "held_out_prose), and optionally add_bos (as in evaluation) and unseen_only (keys and numbers that no "
        "retrieval mix trains on)",
    )
    parser.add_argument("--tokenizer", required=True, type=Path, help="tokenizer folder")
    parser.add_argument("--documents", type=Path, help="held-out documents, for the haystack held_out_prose")
    parser.add_argument("--rows", type=Path, help="folder of evaluation rows, for the haystack essays")
    parser.add_argument("--output", required=True, type=Path, help="folder to write niah.parquet and the others to")
    parser.add_argument("--workers", type=int, default=1, help="processes that make prompts (default: 1)")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    settings = require(load_settings(arguments.settings), ("niah", "seed"))
    config = niah_settings(settings["niah"])
    inputs = GridInputs(
        tokenizer=arguments.tokenizer,
        documents=arguments.documents,
        prose_source=settings.get("held_out_prose_source"),
        rows=arguments.rows,
        seed=settings["seed"],
        add_bos=settings.get("add_bos", False),
        unseen_only=settings.get("unseen_only", False),
    )
    started = time.time()
    grids = make_grids(
        config,
        inputs,
        workers=arguments.workers,
        progress=lambda parts, total: progress(parts, "needle prompts", total=total, unit="cell"),
    )
    for name, prompts in grids.items():
        output = arguments.output / f"{name}.parquet"
        write_prompts(prompts, output)
        short = max(sample.fill_error for sample in prompts.samples)
        write_manifest(
            output,
            inputs=[path for path in (arguments.tokenizer, arguments.documents, arguments.rows) if path is not None],
            settings=settings,
            seed=settings["seed"],
            started=started,
            extra={"grid": named_grids(config)[name].model_dump(mode="json"), "largest_fill_error_tokens": short},
        )
        print(f"{name}: {len(prompts.samples)} prompts, at most {short} tokens short of their length")


if __name__ == "__main__":
    run(main)
