"""Which artifacts of a results folder no longer follow from their inputs, settings and code.

Reads every manifest below results/<preset>. Exits with 0 when all artifacts follow and with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..config import PresetConfig, load_preset
from ..scripting import UserError
from ..verification import Verifier
from .doctor import find_presets


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh verify`."""
    parser = subparsers.add_parser("verify", help="which artifacts no longer follow from inputs, settings and code")
    parser.add_argument("results", type=Path, help="results folder of a preset, for example results/laptop")
    parser.add_argument("--config", type=Path, help="preset file (default: the one in config/ named like the folder)")
    parser.add_argument(
        "--root", type=Path, default=Path("."), help="folder of the workflow (default: the current one)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _preset(args: argparse.Namespace) -> PresetConfig:
    if args.config is not None:
        return load_preset(args.config)
    return find_presets(args.root, [args.results.resolve().name])[0]


def run(args: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    if not args.results.is_dir():
        raise UserError(f"{args.results} is no folder; give the results folder of a preset, such as results/laptop")
    findings = Verifier(args.results, _preset(args), args.root).check()
    stale = [finding for finding in findings if not finding.follows]
    if args.json:
        rows = [{"artifact": str(f.artifact), "follows": f.follows, "reasons": f.reasons} for f in findings]
        print(json.dumps(rows, indent=2))
    else:
        for finding in stale:
            print(f"{finding.artifact}: {'; '.join(finding.reasons)}")
        print(f"{len(findings)} artifacts checked, {len(stale)} no longer follow from their inputs, settings and code")
    return 1 if stale else 0
