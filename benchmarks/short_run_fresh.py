"""Open an exported model as a user does, in a process that knows nothing of its training: text and held-out loss.

Run by benchmarks.short_run; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

import hwh_core.modeling  # noqa: F401  (registers the model class)
from hwh_core.data.loader import BatchLoader
from hwh_core.data.store import TokenStore
from hwh_core.training.run import HELD_OUT_SEED

PROMPTS = (
    "The history of the city begins with",
    "Once upon a time there was a",
    "When water is heated, it",
)
NEW_TOKENS = 40
# Windows whose logits are made at once: four of 2,048 tokens and 32,000 entries take 1 GB.
ROWS = 4


@torch.inference_mode()
def held_out_loss(model: Any, windows: torch.Tensor) -> float:
    """Nats a token over ``windows`` int64 [count, length + 1], from the logits that the model gives its users."""
    total = 0.0
    for part in windows.split(ROWS):
        part = part.to(model.device)
        logits = model(input_ids=part[:, :-1]).logits
        total += cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum").item()
    return total / windows[:, 1:].numel()


@torch.inference_mode()
def continuation(model: Any, tokenizer: Any, prompt: str) -> dict[str, Any]:
    """The greedy text behind a prompt and its number of tokens; shorter where the model ends the text."""
    given = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
    ids = model.generate(
        given.input_ids, attention_mask=given.attention_mask, max_new_tokens=NEW_TOKENS, do_sample=False
    )
    new = ids[0, given.input_ids.shape[1] :]
    return {"prompt": prompt, "text": tokenizer.decode(new, skip_special_tokens=True), "tokens": len(new)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model folder in Hugging Face layout")
    parser.add_argument("--held-out", required=True, type=Path, help="token store")
    parser.add_argument("--length", required=True, type=int, help="tokens of a window")
    parser.add_argument("--windows", required=True, type=int, help="number of windows, those of the training's metrics")
    parser.add_argument("--precision", required=True, choices=("float32", "bfloat16"), help="that of the training")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(options.folder, trust_remote_code=False).eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(options.folder, trust_remote_code=False)
    loader = BatchLoader(TokenStore.open(options.held_out), options.length, options.windows, HELD_OUT_SEED)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=options.precision == "bfloat16"):
        found = {
            "model_class": type(model).__name__,
            "held_out_loss": held_out_loss(model, torch.from_numpy(loader.batch(0))),
            "texts": [continuation(model, tokenizer, prompt) for prompt in PROMPTS],
        }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
