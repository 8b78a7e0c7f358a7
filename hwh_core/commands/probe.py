"""RFIS and RPD of all heads of your own model on your own text.

MODEL is a Hugging Face folder (safetensors and tokenizer), TEXT one or more .txt, .jsonl, .jsonl.gz, .jsonl.zst or
.parquet files.
Writes probe.npz, probe.json and a summary of the layer means.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ..devices import take_devices
from ..scripting import UserError


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh probe`."""
    parser = subparsers.add_parser("probe", help="RFIS and RPD of all heads of your own model on your own text")
    parser.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face folder with weights and tokenizer")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text files; rows: column text")
    parser.add_argument("--out", type=Path, required=True, help="folder of probe.npz and probe.json")
    parser.add_argument("--samples", type=int, default=4, help="windows of text (default: 4; the paper uses 100)")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a window (default: 2048)")
    parser.add_argument("--queries", type=int, help="last positions measured (default: 128, or the length if less)")
    parser.add_argument("--seed", type=int, default=0, help="which windows are drawn (default: 0)")
    parser.add_argument(
        "--backend",
        choices=("auto", "triton", "cpu-native", "torch", "reference"),
        default="auto",
        help="default: auto",
    )


def read_texts(paths: list[Path]) -> list[str]:
    """Documents of text files. Raises :class:`UserError` naming the file that cannot be read."""
    from ..data.source_files import file_documents

    for path in paths:
        if not path.is_file():
            raise UserError(f"--text: {path} does not exist")
    return [document["text"] for path in paths for document in file_documents(path, str(path), "--text", "text")]


def run(args: argparse.Namespace) -> int:
    """Probe the model and print where the layer means of RPD are highest."""
    from dataclasses import replace

    import numpy as np

    from ..probes.measure import probe_model
    from ..probes.pretrained import check_length, load_model, load_tokenizer
    from ..probes.text import token_windows
    from ..provenance import write_manifest

    if args.queries is None:
        args.queries = min(128, args.length)
    for name in ("samples", "length", "queries"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name}: {getattr(args, name)} is not a positive number")
    if args.queries > args.length:
        raise UserError(f"--queries: {args.queries} is more than --length {args.length}; give at most that many")
    started = time.time()
    texts = read_texts(args.text)
    take_devices()
    tokenizer, model = load_tokenizer(args.model), load_model(args.model)
    check_length(model, args.length, "--length")
    samples = token_windows(texts, tokenizer, args.length, args.samples, args.seed)
    maps = probe_model(model, None, samples, args.queries, args.backend)
    settings = {key: str(value) for key, value in vars(args).items() if key != "command"}
    maps = replace(maps, description={**maps.description, "model": args.model.name, "seed": args.seed})
    maps.save(args.out / "probe.npz")
    write_manifest(
        args.out / "probe.npz", inputs=list(args.text), settings=settings, seed=args.seed, started=started,
        extra={"backend": maps.description["backend"]},
    )  # fmt: skip
    shape = " x ".join(map(str, maps.rpd.shape))
    error, backend = maps.description["max_logit_error"], maps.description["backend"]
    print(f"{args.out / 'probe.npz'}: {shape} (samples, layers, heads, frequencies)")
    print(f"largest relative error of the rebuilt logits {error:.1e}, backend {backend}")
    means = np.nanmean(maps.rpd, axis=(0, 2))
    for layer, row in zip(maps.layer_index, means, strict=True):
        peak = int(row.argmax())
        period = 2 * np.pi / maps.inv_freq[peak] if maps.inv_freq[peak] > 0 else float("inf")
        print(
            f"  layer {layer:3d}: RPD is highest at frequency {peak:3d} (period {period:.0f} tokens), {row[peak]:.3g}"
        )
    return 0
