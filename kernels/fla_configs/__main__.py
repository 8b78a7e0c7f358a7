"""``python -m hwh_kernels.fla_configs harvest``: find this card's launch configurations of Gated DeltaNet's kernels.

Compiling the candidates, spread over ``--workers``, takes half a minute a shape on 24 cores; several calls with other
``--shapes`` and the same ``--output`` add up.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from . import FOLDER, folder_name
from .harvest import SHAPES, harvest


def shape(text: str) -> tuple[int, int]:
    """``7x64`` -> (7, 64): heads and head_dim. Raises ArgumentTypeError."""
    heads, _, head_dim = text.partition("x")
    if not (heads.isdecimal() and head_dim.isdecimal() and int(heads) > 0 and int(head_dim) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: expected <heads>x<head_dim>, for example 7x64")
    return int(heads), int(head_dim)


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m hwh_kernels.fla_configs", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)
    command = commands.add_parser("harvest", help="tune on this card and write one JSON file a kernel")
    command.add_argument(
        "--shapes",
        type=shape,
        nargs="+",
        default=list(SHAPES),
        metavar="HEADSxHEAD_DIM",
        help=f"default: {' '.join(f'{heads}x{head_dim}' for heads, head_dim in SHAPES)}, those of the presets",
    )
    command.add_argument("--batch", type=int, default=8, help="sequences of a micro-batch (default 8)")
    command.add_argument("--length", type=int, default=2048, help="tokens of a sequence (default 2048)")
    command.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="processes that compile candidates, 1 GiB of device memory each (default: one a core)",
    )
    command.add_argument(
        "--output", type=Path, help="folder to write; default: this card's own in the package, which then is used here"
    )
    return main


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = parser().parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("error: launch configurations are found on a GPU; torch sees none here")
    device = torch.device("cuda", torch.cuda.current_device())
    output = given.output or FOLDER / folder_name(torch.cuda.get_device_name(device))
    try:
        harvest(given.shapes, given.batch, given.length, output, device, given.workers)
    except (RuntimeError, ValueError, ImportError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
