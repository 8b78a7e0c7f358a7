"""Which artifacts of a results folder no longer follow from their inputs, settings and code.

Reads every manifest below results/<preset>. Exits with 0 when all artifacts follow and with 1 otherwise. Prints one
short line an artifact that does not follow, then a count by kind of reason; ``--json`` holds all reasons.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..config import PresetConfig, load_preset
from ..scripting import UserError
from ..verification import KINDS, Finding, Verifier
from .doctor import find_presets

# Characters of a line about one artifact.
LINE = 150


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh verify`."""
    parser = subparsers.add_parser("verify", help="which artifacts no longer follow from inputs, settings and code")
    parser.add_argument(
        "results",
        type=Path,
        help="results folder of a preset: results/laptop, or results/reference/laptop for what the repository keeps",
    )
    parser.add_argument("--config", type=Path, help="preset file (default: the one in config/ named like the folder)")
    parser.add_argument(
        "--root", type=Path, default=Path("."), help="folder of the workflow (default: the current one)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _preset(args: argparse.Namespace) -> PresetConfig:
    if args.config is not None:
        return load_preset(args.config)
    return find_presets(args.root, [args.results.resolve().name])[0]


def short_line(finding: Finding, folder: Path) -> str:
    """One artifact with its first reason, about ``LINE`` characters; paths in the reason are relative to ``folder``."""
    first = finding.reasons[0].replace(f"{folder.as_posix()}/", "")
    rest = f", and {len(finding.reasons) - 1} more" if len(finding.reasons) > 1 else ""
    room = max(20, LINE - len(f"{finding.artifact}: {rest}"))
    return f"{finding.artifact}: {first if len(first) <= room else first[: room - 1] + '…'}{rest}"


def summary(findings: list[Finding], reference: bool) -> list[str]:
    """Counts: artifacts by kind of reason, files that reference results do not keep, inputs that cannot be traced."""
    stale = [finding for finding in findings if not finding.follows]
    lines = [
        f"{len(findings)} artifacts checked, {len(stale)} no longer follow from their inputs, settings and code"
        + ("; --json lists all reasons" if any(len(finding.reasons) > 1 for finding in stale) else "")
    ]
    for kind, meaning in KINDS.items():
        kinds = [{reason.kind for reason in finding.causes} for finding in stale]
        count, alone = sum(kind in found for found in kinds), sum(found == {kind} for found in kinds)
        if count:
            lines.append(f"  {count}: {meaning}" + (f" ({alone} for this reason alone)" if alone else ""))
    missing = {path.resolve() for finding in findings for path in finding.not_kept}
    if reference:
        artifacts = sum(finding.artifact.resolve() in missing for finding in findings)
        inputs = len(missing - {finding.artifact.resolve() for finding in findings})
        lines.append(f"inputs not kept here: {inputs} (reference results; of {artifacts} artifacts the manifest alone)")
    elif missing:
        lines.append(f"weights not handed on: {len(missing)} (keep_weights: false; what was made from them is checked)")
    untraced = sorted({path.as_posix() for finding in findings for path in finding.untraced})
    if untraced:
        more = f" and {len(untraced) - 1} more" if len(untraced) > 1 else ""
        lines.append(f"made here without a manifest, so not traced further: {Path(untraced[0]).name}{more}")
    return lines


def run(args: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    if not args.results.is_dir():
        raise UserError(f"{args.results} is no folder; give the results folder of a preset, such as results/laptop")
    verifier = Verifier(args.results, _preset(args), args.root)
    findings = verifier.check()
    stale = [finding for finding in findings if not finding.follows]
    if args.json:
        rows = [
            {
                "artifact": str(finding.artifact),
                "follows": finding.follows,
                "reasons": finding.reasons,
                "kinds": [reason.kind for reason in finding.causes],
                "not_kept": [str(path) for path in finding.not_kept],
                "untraced": [str(path) for path in finding.untraced],
            }
            for finding in findings
        ]
        print(json.dumps(rows, indent=2))
    else:
        for finding in stale:
            print(short_line(finding, args.results))
        print("\n".join(summary(findings, verifier.reference)))
        declared = verifier.counted_as_before()
        if declared:
            print(
                "counted as an earlier form that gives the same results, each with the test that shows it "
                f"(hwh_core/equivalent_code.json): {', '.join(sorted(declared))}"
            )
    return 1 if stale else 0
