"""Causal checks of one model: loss and needle answers without heads of a class or without rotation, beside random sets.

Writes causal.csv (a row an intervention, draw, measure and sample) and causal_summary.csv with the intervals. Killed,
the same command goes on after the finished interventions, which lie in causal_runs beside the output until then.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.devices import take_devices
from hwh_core.scripting import load_settings, run


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", required=True, help="JSON {model, causal, held_out_prose_source, seed}, or the path of a file"
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--probe", type=Path, required=True, help="its probe.npz, with heads.csv and bands.json beside")
    parser.add_argument("--documents", type=Path, required=True, help="held_out.jsonl.zst")
    parser.add_argument("--output", type=Path, required=True, help="causal.csv to write; the summary goes beside it")
    parser.add_argument("--restart", action="store_true", help="begin anew where causal_runs holds other checks")
    options = parser.parse_args()
    started = time.time()
    settings = load_settings(options.settings)
    take_devices()

    from hwh_core.config import CausalConfig
    from hwh_core.probes.causal import UNFINISHED, CausalChecks, sentences, write_checks
    from hwh_core.probes.jobs import setting
    from hwh_core.probes.model_folders import load_for_probe
    from hwh_core.probes.resume import remove
    from hwh_core.probes.text import prose_documents
    from hwh_core.reporting.results import HEADS_COLUMNS, ResultFolder

    folder = ResultFolder(options.probe.parent)
    heads, bands = folder.table("heads.csv", HEADS_COLUMNS), folder.json("bands.json")
    inv_freq = folder.maps(options.probe.name).inv_freq
    texts = prose_documents(options.documents, setting(settings, "held_out_prose_source"))
    tokenizer, model = load_for_probe(options.model, "float32", needs_head=True)
    checks = CausalChecks(
        model,
        tokenizer,
        heads,
        bands,
        texts,
        CausalConfig.model_validate(setting(settings, "causal")),
        rotated=int((inv_freq > 0).sum()),
        seed=setting(settings, "seed"),
    )
    unfinished = options.output.with_name(UNFINISHED)
    if options.restart:
        remove(unfinished)
    summary = write_checks(
        checks.table(resume=unfinished),
        options.output,
        inputs=[*folder.used, options.documents],
        settings=settings,
        seed=settings["seed"],
        started=started,
    )
    remove(unfinished)
    print("\n".join(sentences(summary)))


if __name__ == "__main__":
    run(main)
