"""Where the Global Positional Band of a RoPE model is predicted, from base, head size and training length.

Two constants are in use: that of the phase-free covariance and that of Oka et al.; both predictions are printed.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from ..rope import inverse_frequencies, periods, predicted_index, predicted_period
from ..scripting import UserError


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh band`."""
    parser = subparsers.add_parser("band", help="where the band of a RoPE model is predicted")
    parser.add_argument("--rope-theta", type=float, required=True, help="RoPE base, for example 1e6")
    parser.add_argument("--head-dim", type=int, required=True, help="dimensions of a head, for example 128")
    parser.add_argument("--length", type=float, required=True, help="training length in tokens, for example 32768")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def predictions(rope_theta: float, head_dim: int, length: float) -> dict[str, Any]:
    """Predicted index and period (tokens) by both constants. Raises :class:`UserError` for impossible sizes."""
    for name, value in (("rope-theta", rope_theta), ("length", length)):
        if not math.isfinite(value):
            raise UserError(f"--{name}: {value} is not a finite number")
    try:
        grid = periods(inverse_frequencies(head_dim, rope_theta))
        rows = {
            name: {
                "index": predicted_index(head_dim, rope_theta, length, name),
                "period_tokens": predicted_period(length, name),
            }
            for name in ("covariance", "oka")
        }
    except ValueError as error:
        raise UserError(f"--{str(error).replace('_', '-', 1)}") from None
    return {
        "rope_theta": rope_theta,
        "head_dim": head_dim,
        "length_tokens": length,
        "num_frequencies": int(grid.size),
        "longest_period_tokens": float(grid[-1]),
        "predicted": rows,
    }


def run(args: argparse.Namespace) -> int:
    """Print the predictions."""
    result = predictions(args.rope_theta, args.head_dim, args.length)
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    last = result["num_frequencies"] - 1
    print(f"base {args.rope_theta:g}, head_dim {args.head_dim}, training length {args.length:g} tokens")
    for name, label in (("covariance", "x* = 4.4934 (covariance)"), ("oka", "x* = 3.6572 (Oka et al.)")):
        row = result["predicted"][name]
        where = "" if 0 <= row["index"] <= last else f"  outside of the grid 0 to {last}"
        print(f"  {label}: frequency index {row['index']:.2f}, period {row['period_tokens']:.0f} tokens{where}")
    print("Models with scaled frequencies (YaRN, llama3) have another grid: `hwh probe` reads it from the model.")
    return 0
