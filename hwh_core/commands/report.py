"""The table of the claims of a finished run, and where its report lies.

Reads claims.json of a results folder; nothing is computed anew. `snakemake claims` makes that file.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..scripting import UserError

PARTS_SHOWN = 2
STYLES = {"reproduced": "green", "not_reproduced": "red", "inconclusive": "yellow", "not_testable": "dim"}


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh report`."""
    parser = subparsers.add_parser("report", help="table of the claims of a finished run, and where its report lies")
    parser.add_argument("results", type=Path, help="results folder of a preset, for example results/laptop")
    parser.add_argument("--verdict", choices=sorted(STYLES), help="show only these; without, all that were tested")


def read_claims(path: Path) -> list[dict[str, Any]]:
    """Claims of a ledger. Raises :class:`UserError` when it is absent or damaged."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; make it with `snakemake claims`")
    try:
        claims = json.loads(path.read_text(encoding="utf-8"))
        for claim in claims:
            claim["id"], claim["statement"], claim["verdict"], claim["ours"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no claims ledger ({error}); delete it and run `snakemake claims`") from None
    return claims


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _ours(claim: dict[str, Any]) -> str:
    """Our number with its interval; of a claim of several parts the first two, a line each."""
    ours, ci = claim["ours"], claim.get("ci")
    parts = ours.items() if isinstance(ours, dict) else [("", ours)]
    lines = []
    for label, value in parts:
        ends = ci.get(label) if isinstance(ci, dict) else ci
        interval = f" [{', '.join(map(_number, ends))}]" if ends else ""
        lines.append(f"{label}: " * bool(label) + _number(value) + interval)
    more = [f"and {len(lines) - PARTS_SHOWN} more parts"] if len(lines) > PARTS_SHOWN else []
    return "\n".join(lines[:PARTS_SHOWN] + more)


def run(args: argparse.Namespace) -> int:
    """Print the table, the counts and the paths."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    ledger = args.results / "claims.json"
    claims = read_claims(ledger)
    wanted = [args.verdict] if args.verdict else [name for name in STYLES if name != "not_testable"]
    shown = [claim for claim in claims if claim["verdict"] in wanted]
    table = Table(title=f"Claims in {ledger}")
    for title, ratio in (
        ("claim", None),
        ("statement", 3),
        ("paper", 1),
        ("ours [95% interval]", 3),
        ("verdict", None),
    ):
        table.add_column(title, ratio=ratio)
    for claim in shown:
        verdict = claim["verdict"]
        paper = "" if claim.get("paper") is None else _number(claim["paper"])
        cells = (claim["id"], claim["statement"], paper, _ours(claim))
        table.add_row(*map(escape, cells), f"[{STYLES.get(verdict, 'default')}]{escape(verdict)}[/]")
    console = Console()
    console.print(table)
    counts = Counter(claim["verdict"] for claim in claims)
    console.print(", ".join(f"{counts[name]} {name}" for name in STYLES if counts[name]))
    for title, name in (("Claims", "claims.md"), ("Report", "report.html")):
        if (args.results / name).is_file():
            print(f"{title}: {(args.results / name).resolve()}")
    return 0
