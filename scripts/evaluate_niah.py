"""Scores one model on its needle grids; writes niah.csv (a row a prompt) and niah_cells.csv (a row a cell).

The prompts are those that build_niah_prompts.py made for the model's tokenizer. Each grid of ``niah.additional`` goes
into tables of its own beside them, niah_<variant>_<wording>.csv and its cells. One process scores them all: to start
one takes longer than to score a small model.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run

KEYS = ("scale", "model", "niah", "training_length")
DEFAULT_BATCH_TOKENS = 8192


def main() -> None:
    """Read the command line, make the prompts, score them, write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings",
        required=True,
        help="JSON or its path: scale, model {name, architecture, seed}, niah (as in the config), training_length, and "
        "optionally batch_tokens (as in evaluation)",
    )
    parser.add_argument("--model", required=True, type=Path, help="model folder in Hugging Face layout")
    parser.add_argument(
        "--prompts", required=True, type=Path, help="folder of needle prompts that build_niah_prompts.py made"
    )
    parser.add_argument("--output", required=True, type=Path, help="table to write (niah.csv); the others beside it")
    arguments = parser.parse_args()
    started = time.time()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")

    from hwh_core.evaluation.prompts import named_grids, read_prompts, require_tokenizer
    from hwh_core.evaluation.settings import niah_settings, require
    from hwh_core.files import write_table
    from hwh_core.provenance import write_manifest

    settings = require(load_settings(arguments.settings), KEYS)
    config = niah_settings(settings["niah"])
    grids = named_grids(config)
    files = {name: arguments.prompts / f"{name}.parquet" for name in grids}
    prompts = {name: read_prompts(path) for name, path in files.items()}
    require_tokenizer(prompts.values(), arguments.model)
    take_devices()

    from hwh_core.evaluation.inference import load_model, precision
    from hwh_core.evaluation.niah_scoring import cell_table, prompts_sha256, sample_table, score_samples

    model, tokenizer = load_model(arguments.model)
    batch_tokens = settings.get("batch_tokens", DEFAULT_BATCH_TOKENS)
    identity = {"scale": settings["scale"], **{key: settings["model"][key] for key in ("architecture", "seed")}}
    identity["model"] = settings["model"]["name"]
    for name, grid in grids.items():
        output = arguments.output.with_name(f"{arguments.output.stem}{name.removeprefix('niah')}.csv")
        begun, clock = time.time(), time.monotonic()
        samples = prompts[name].samples
        correct = score_samples(model, tokenizer, samples, config.metric, batch_tokens, config.max_new_tokens)
        labels = {
            "metric": config.metric,
            "haystack": prompts[name].haystack,
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
            inputs=[arguments.model, files[name]],
            settings=settings,
            started=started if output == arguments.output else begun,
            beside=[cells],
            extra={
                "seconds": {"scoring": round(time.monotonic() - clock, 2)},
                "precision": precision(model.device),
                "largest_fill_error_tokens": max(sample.fill_error for sample in samples),
            },
        )
        print(f"{grid.variant}, wording {grid.wording}, fill {grid.fill}:")
        for length, members in table.groupby("length")["correct"]:
            print(f"length {length}: {100 * members.mean():.1f}% of {len(members)} prompts")


if __name__ == "__main__":
    run(main)
