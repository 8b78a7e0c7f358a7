"""A dry pass over the batches of a training: proves that no token is used twice in an epoch.

Reads no text, only the index of the token store. Exits with 1 if a window came twice, or with --one-epoch if the steps
need more text than there is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..scripting import UserError


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh batches`."""
    parser = subparsers.add_parser("batches", help="dry pass over the batches of a training: no token twice an epoch")
    parser.add_argument("store", type=Path, help="token store, for example results/paper/data/llama32k/train")
    parser.add_argument("--length", type=int, required=True, help="tokens of a sequence")
    parser.add_argument("--tokens-per-step", type=int, required=True, help="training.tokens_per_step")
    parser.add_argument("--steps", type=int, required=True, help="training.steps")
    parser.add_argument("--seed", type=int, required=True, help="seed of the model")
    parser.add_argument("--one-epoch", action="store_true", help="fail where the steps need text a second time")


def run(args: argparse.Namespace) -> int:
    """Walk through the batches and print what they use."""
    from ..data.dry_pass import dry_pass
    from ..data.loader import BatchLoader
    from ..data.store import TokenStore
    from ..progress import progress

    store = TokenStore.open(args.store)
    loader = BatchLoader(store, args.length, args.tokens_per_step // max(args.length, 1), args.seed)
    found = dry_pass(loader, args.steps, lambda steps: progress(steps, "steps", unit="step"))
    print(
        f"{args.store}: {len(store.tokens):,} tokens, {found.windows:,} windows of {args.length}\n"
        f"{found.steps:,} steps with seed {args.seed} use {found.tokens:,} tokens, {found.epochs:.3f} epochs\n"
        f"windows that came twice within an epoch: {found.repeated}; left of the last epoch: {found.left:,}"
    )
    if found.repeated:
        raise UserError(f"{found.repeated} windows came twice within an epoch; this is an error of the loader")
    if args.one_epoch and found.epochs > 1:
        raise UserError(
            f"{found.steps} steps need {found.epochs:.3f} times the text of {args.store}; add text or lower the steps"
        )
    return 0
