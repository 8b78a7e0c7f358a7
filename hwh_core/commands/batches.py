"""A dry pass over the batches of a training: proves that no token is used twice in an epoch.

Reads no text, only the index of the token store. Exits with 1 if a window came twice, and before counting if the sizes
do not go together or, with --one-epoch, the steps need more text than there is.
"""

from __future__ import annotations

import argparse
import math
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

    _check_sizes(args)
    store = TokenStore.open(args.store)
    loader = BatchLoader(store, args.length, args.tokens_per_step // args.length, args.seed)
    epochs = args.steps / loader.steps_per_epoch
    if args.one_epoch and epochs > 1:
        most = loader.num_windows // loader.batch_size
        raise UserError(
            f"--steps: {args.steps} of {args.tokens_per_step} tokens need {math.ceil(1000 * epochs) / 1000:.3f} times "
            f"the text of {args.store}; add text" + (f" or lower the steps to at most {most}" if most else "")
        )
    found = dry_pass(loader, args.steps, lambda steps: progress(steps, "steps", unit="step"))
    print(
        f"{args.store}: {len(store.tokens):,} tokens, {found.windows:,} windows of {args.length}\n"
        f"{found.steps:,} steps with seed {args.seed} use {found.tokens:,} tokens, {found.epochs:.3f} epochs\n"
        f"windows that came twice within an epoch: {found.repeated}; left of the last epoch: {found.left:,}"
    )
    if found.repeated:
        raise UserError(f"{found.repeated} windows came twice within an epoch; this is an error of the loader")
    return 0


def _check_sizes(args: argparse.Namespace) -> None:
    """Raise :class:`UserError` naming the option where sizes do not go together, as a training does."""
    for name in ("length", "tokens_per_step", "steps"):
        if (value := getattr(args, name)) < 1:
            raise UserError(f"--{name.replace('_', '-')}: {value} is not a positive number")
    whole = args.tokens_per_step // args.length * args.length
    if args.tokens_per_step != whole:
        nearest = f"{whole} or {whole + args.length}" if whole else str(args.length)
        raise UserError(
            f"--tokens-per-step: {args.tokens_per_step} is no multiple of --length {args.length}, which a training "
            f"needs; give {nearest}"
        )
