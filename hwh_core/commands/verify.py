"""Which artifacts of a results folder no longer follow from their inputs, settings and code.

Reads every manifest below results/<preset>. Exits with 0 when all artifacts follow and with 1 otherwise. Prints one
short line an artifact that does not follow, then a count by kind of reason and what makes it anew; ``--json`` holds all
reasons.
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
# Of artifacts that are folders: the file in them that a rule is asked for.
FILE_OF_FOLDER = {
    "model": "config.json",
    "tokenizer": "tokenizer.json",
    "train": "index.json",
    "held_out": "index.json",
}


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


def _preset(args: argparse.Namespace) -> tuple[PresetConfig, Path]:
    """The preset that the results are of, and its file."""
    if args.config is not None:
        return load_preset(args.config), args.config
    (preset,) = find_presets(args.root, [args.results.resolve().name])
    files = sorted((args.root / "config").glob("*.yaml"))
    return preset, next(file for file in files if load_preset(file).preset == preset.preset)


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


def mend(stale: list[Finding], preset_file: Path) -> list[str]:
    """What makes artifacts anew that Snakemake, by its own records, would leave as they are: one line, or none.

    A missing or damaged intermediate file is nothing to Snakemake as long as what was made from it is there.
    """
    unseen = [finding.artifact for finding in stale if "artifact" in {reason.kind for reason in finding.causes}]
    if not unseen:
        return []
    file = unseen[0] / FILE_OF_FOLDER.get(unseen[0].name, "")
    each = ", one after the other or together" if len(unseen) > 1 else ""
    return [
        f"snakemake --cores all --configfile {preset_file} --forcerun {file} makes this file and all that follows from "
        f"it anew{each}; without --forcerun Snakemake may not notice that it was changed or is gone"
    ]


def run(args: argparse.Namespace) -> int:
    """Check, print, and return the exit code."""
    if not args.results.is_dir():
        raise UserError(f"{args.results} is no folder; give the results folder of a preset, such as results/laptop")
    if not args.root.is_dir():
        raise UserError(f"--root: {args.root} is no folder; give the folder of the workflow")
    preset, preset_file = _preset(args)
    verifier = Verifier(args.results, preset, args.root)
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
        if not verifier.reference:
            print("".join(f"{line}\n" for line in mend(stale, preset_file)), end="")
        declared = verifier.counted_as_before()
        if declared:
            print(
                "counted as an earlier form that gives the same results, each with the test that shows it "
                f"(hwh_core/equivalent_code.json): {', '.join(sorted(declared))}"
            )
    return 1 if stale else 0
