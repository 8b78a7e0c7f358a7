"""Tokens that one core tokenizes into a token store, beside `datasets.map` with the same tokenizer on the same text.

    python -m benchmarks.data --text FOLDER

takes any folder of .txt or .md files, cut at ends of paragraphs into documents about as long as web pages. Both sides
run in one process without threads and in turn; what counts is processor time, so that a busy machine changes little.
`--tokenizer` names a tokenizer folder; without it byte-level BPE with 32,000 entries is trained on the text. Writes
benchmarks/results/data.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.recording import OUTPUT_HELP, Figure, command_again, interquartile_range, output_of, record
from hwh_core.data.sources import write_source
from hwh_core.data.tokenizer import load_backend, save_trained, train_bpe
from hwh_core.data.tokenizing import tokenize_documents
from hwh_core.progress import progress

ROOT = Path(__file__).parents[1]
QUICK_TEXT = ROOT / "tests" / "fixtures" / "text"
# The mean of FineWeb-Edu's documents is about 4.6 kB.
DOCUMENT_BYTES = 4600
# As in examples of the library: datasets' own default.
PEER_BATCH = 1000


def documents(folder: Path, most_bytes: int) -> Iterator[dict[str, str]]:
    """Documents of about :data:`DOCUMENT_BYTES` from the text files below ``folder``, in the order of their names."""
    taken = 0
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".md") and path.is_file()):
        piece: list[str] = []
        size = 0
        for paragraph in [*path.read_text(encoding="utf-8").split("\n\n"), None]:
            if paragraph is not None:
                piece.append(paragraph)
                size += len(paragraph.encode())
            text = "\n\n".join(piece)
            if (paragraph is None or size >= DOCUMENT_BYTES) and text.strip():
                yield {"id": f"{path.relative_to(folder)}/{taken}", "source": "text", "title": "", "text": text}
                taken += size
                piece, size = [], 0
                if taken >= most_bytes:
                    return


def timed(function: Callable[[], int]) -> dict[str, float]:
    """Tokens of one call, its seconds by the clock and of the processor."""
    started, cpu = time.perf_counter(), time.process_time()
    tokens = function()
    return {"tokens": tokens, "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


def peer(texts: list[str], tokenizer: Path, folder: Path) -> Callable[[], int]:
    """`datasets.map` over the texts in batches, in this process, into an Arrow file; returns the tokens."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    fast = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    data = datasets.Dataset.from_dict({"text": texts})

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = fast(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*ids, fast.eos_token_id] for ids in encoded]}

    def run() -> int:
        cache = folder / "peer.arrow"
        cache.unlink(missing_ok=True)
        made = data.map(
            tokenize,
            batched=True,
            batch_size=PEER_BATCH,
            remove_columns=["text"],
            load_from_cache_file=False,
            cache_file_name=str(cache),
        )
        import pyarrow.compute as compute

        return int(compute.sum(compute.list_value_length(made.data["input_ids"])).as_py())

    return run


def measure(text: Path, tokenizer: Path | None, most_bytes: int, repeats: int, vocab_size: int) -> list[Figure]:
    """Both figures. Raises ValueError where the two sides do not give the same number of tokens."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        chosen = list(documents(text, most_bytes))
        if not chosen:
            raise ValueError(f"--text {text}: there is no .txt or .md file with text below it")
        write_source(chosen, "text", folder / "documents.jsonl.zst")
        if tokenizer is None:
            tokenizer = folder / "tokenizer"
            save_trained(
                train_bpe(folder / "documents.jsonl.zst", vocab_size=vocab_size, training_bytes=most_bytes), tokenizer
            )
        _, _, entries = load_backend(tokenizer)
        text_bytes = sum(len(document["text"].encode()) for document in chosen)

        def ours() -> int:
            return tokenize_documents(folder / "documents.jsonl.zst", tokenizer, folder / "store")["tokens"]

        sides = {"ours": ours, "datasets": peer([document["text"] for document in chosen], tokenizer, folder)}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in progress(range(repeats), "repeats", unit="repeat"):
            for name, side in sides.items():
                runs[name].append(timed(side))
    counts = {run["tokens"] for side in runs.values() for run in side}
    if len(counts) != 1:
        raise ValueError(f"the two sides made different numbers of tokens: {sorted(counts)}")
    speeds = {name: [run["tokens"] / run["cpu_seconds"] for run in side] for name, side in runs.items()}
    median = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["datasets"], strict=True)]
    sizes = {"text_bytes": text_bytes, "documents": len(chosen), "tokens": int(counts.pop()), "vocab_size": entries}
    return [
        {
            "id": "data.tokenize_tokens_per_second_core",
            "value": median["ours"],
            "unit": "tokens a second of one core",
            "against": None,
            "spread": interquartile_range(speeds["ours"]),
            "sizes": sizes,
            "detail": {"runs": runs["ours"], "from": "document file (Zstandard, JSON)", "to": "token store"},
        },
        {
            "id": "data.tokenize_over_datasets",
            "value": statistics.median(ratios),
            "unit": "ratio",
            "against": "at least 1.0",
            "spread": interquartile_range(ratios),
            "sizes": sizes,
            "detail": {"datasets_tokens_per_second_core": median["datasets"], "runs": runs["datasets"]},
        },
    ]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder with .txt or .md files, at any depth")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer folder (default: BPE trained on the text)")
    parser.add_argument("--megabytes", type=float, default=40, help="text that is tokenized, in MB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the text of the smoke preset, 512 entries, two repeats")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    arguments = parser.parse_args()
    arguments.output = output_of(arguments.output, arguments.quick)
    if arguments.quick:
        figures = measure(arguments.text or QUICK_TEXT, arguments.tokenizer, 200_000, 2, 512)
    elif arguments.text is None:
        parser.error("--text FOLDER is needed (or --quick)")
    else:
        most = int(arguments.megabytes * 1e6)
        figures = measure(arguments.text, arguments.tokenizer, most, arguments.repeats, 32_000)
    command = command_again("data", sys.argv[1:], {str(arguments.text): "FOLDER"})
    record("data", figures, command, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
