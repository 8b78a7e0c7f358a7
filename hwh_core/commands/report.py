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

STYLES = {"reproduced": "green", "not_reproduced": "red", "inconclusive": "yellow", "not_testable": "dim"}


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh report`."""
    parser = subparsers.add_parser("report", help="table of the claims of a finished run, and where its report lies")
    parser.add_argument("results", type=Path, help="results folder of a preset, for example results/laptop")
    parser.add_argument("--verdict", choices=sorted(STYLES), help="show only claims with this verdict")


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


def _short(value: Any) -> str:
    """A value of the ledger in a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return str(value)


def run(args: argparse.Namespace) -> int:
    """Print the table, the counts and the paths."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    ledger = args.results / "claims.json"
    claims = read_claims(ledger)
    shown = [claim for claim in claims if args.verdict in (None, claim["verdict"])]
    table = Table("Claim", "Statement", "Paper", "Ours", "95% CI", "Verdict", title=f"Claims in {ledger}")
    for claim in shown:
        verdict = claim["verdict"]
        cells = (claim["id"], claim["statement"], *(_short(claim.get(key)) for key in ("paper", "ours", "ci")))
        table.add_row(*map(escape, cells), f"[{STYLES.get(verdict, 'default')}]{escape(verdict)}[/]")
    console = Console()
    console.print(table)
    counts = Counter(claim["verdict"] for claim in claims)
    console.print(", ".join(f"{counts[name]} {name}" for name in STYLES if counts[name]))
    for title, name in (("Claims", "claims.md"), ("Report", "report.html")):
        if (args.results / name).is_file():
            print(f"{title}: {(args.results / name).resolve()}")
    return 0
