"""Norms of queries and keys by frequency of a pretrained model on held-out text: norms.npz and norms.json."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", required=True, help="JSON {model, probe, held_out_prose_source, seed}, or the path of a file"
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--documents", type=Path, required=True, help="held_out.jsonl.zst")
    parser.add_argument("--output", type=Path, required=True, help="folder of norms.npz and norms.json")
    options = parser.parse_args()
    started = time.time()
    settings = load_settings(options.settings)
    take_devices()

    from hwh_core.probes.jobs import setting
    from hwh_core.probes.model_folders import load_for_probe
    from hwh_core.probes.norms import measure_norms
    from hwh_core.probes.pretrained import check_length
    from hwh_core.probes.text import prose_documents, token_windows
    from hwh_core.provenance import write_manifest

    length, count, queries = (setting(settings, "probe", key) for key in ("length", "num_samples", "num_queries"))
    texts = prose_documents(options.documents, setting(settings, "held_out_prose_source"))
    tokenizer, model = load_for_probe(options.model, "float32")
    check_length(model, length, "pretrained.probe.length")
    norms = measure_norms(model, token_windows(texts, tokenizer, length, count, setting(settings, "seed")), queries)
    about = {"model": setting(settings, "model", "name"), "seed": settings["seed"], **norms.description}
    replace(norms, description=about).save(options.output / "norms.npz")
    write_manifest(
        options.output / "norms.npz",
        inputs=[options.documents],
        settings=settings,
        seed=settings["seed"],
        started=started,
    )


if __name__ == "__main__":
    run(main)
