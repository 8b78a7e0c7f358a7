"""Table of the claims of a finished run; of a probed model, its head atlas as one HTML page.

Of a results folder it reads claims.json, which `snakemake claims` makes. Of the folder of a probe (probe.npz, and what
else lies there of probe.json, heads.csv, bands.json, norms.npz and causal_summary.csv) it writes atlas.html, which
opens without a server.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..scripting import UserError

PARTS_SHOWN = 2
# Columns of the terminal below which the paper's number stands below the statement and has no column of its own.
NARROW = 110
STYLES = {"reproduced": "green", "not_reproduced": "red", "inconclusive": "yellow", "not_testable": "dim"}


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh report`."""
    parser = subparsers.add_parser("report", help="table of the claims of a finished run, or head atlas of a model")
    parser.add_argument(
        "results", type=Path, metavar="DIR", help="results folder of a preset (results/laptop), or folder of a probe"
    )
    parser.add_argument(
        "--verdict",
        type=_machine_form,
        choices=sorted(STYLES),
        help="show only these claims; without, all that were tested",
    )


def _machine_form(verdict: str) -> str:
    """A verdict as claims.json writes it."""
    return verdict.replace(" ", "_")


def _shown(verdict: str) -> str:
    """A verdict as people read it."""
    return verdict.replace("_", " ")


def read_claims(path: Path) -> list[dict[str, Any]]:
    """Claims of a ledger. Raises :class:`UserError` when it is absent or damaged."""
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; make it with `snakemake claims`, or name the folder of a probe (with probe.npz)"
        )
    try:
        claims = json.loads(path.read_text(encoding="utf-8"))
        for claim in claims:
            claim["id"], claim["statement"], claim["verdict"], claim["ours"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no claims ledger ({error}); delete it and run `snakemake claims`") from None
    return claims


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _ends(ci: list[Any]) -> str:
    """An interval; an end that is null has no bound."""
    low, high = ("-∞" if ci[0] is None else _number(ci[0])), ("∞" if ci[1] is None else _number(ci[1]))
    return f"[{low}, {high}]"


def _ours(claim: dict[str, Any]) -> str:
    """Our number with its interval (exact ones without); of a claim of several parts the first two, a line each."""
    exact = claim.get("n_seeds") == 0 and claim.get("scale") in ("N", "S")
    ours, ci = claim["ours"], None if exact else claim.get("ci")
    parts = ours.items() if isinstance(ours, dict) else [("", ours)]
    lines = []
    for label, value in parts:
        ends = ci.get(label) if isinstance(ci, dict) else ci
        interval = f" {_ends(ends)}" if ends else ""
        lines.append(f"{label}: " * bool(label) + _number(value) + interval)
    rest = len(lines) - PARTS_SHOWN
    more = [f"and {rest} more part{'s' * (rest > 1)}"] if rest > 0 else []
    return "\n".join(lines[:PARTS_SHOWN] + more)


def run(args: argparse.Namespace) -> int:
    """Print the table, the counts and the paths; of a probe write the atlas and print its path."""
    if (args.results / "probe.npz").is_file():
        if args.verdict:
            raise UserError(f"--verdict: {args.results} is the folder of a probe, which holds no claims; leave it out")
        from ..reporting.atlas import write_atlas

        print(f"Head atlas: {write_atlas(args.results, causal=True).resolve()}")
        return 0
    return _print_claims(args)


def _print_claims(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    ledger = args.results / "claims.json"
    claims = read_claims(ledger)
    wanted = [args.verdict] if args.verdict else [name for name in STYLES if name != "not_testable"]
    shown = [claim for claim in claims if claim["verdict"] in wanted]
    console = Console()
    narrow = console.width < NARROW
    # Without a title of its own width: a long path must not decide the width of the table.
    console.print(f"Claims in {ledger}", soft_wrap=True)
    table = Table()
    # The verdict is what is read first: never cut, whatever the width. Words of the others fold where they must.
    fixed = {"no_wrap": True, "overflow": "ignore"}
    table.add_column("claim", min_width=max((len(claim["id"]) for claim in shown), default=5), **fixed)
    table.add_column("statement", ratio=3, overflow="fold")
    if not narrow:
        table.add_column("paper", ratio=1, overflow="fold")
    table.add_column("ours [95% interval]", ratio=3, overflow="fold")
    table.add_column("verdict", min_width=max(len(_shown(name)) for name in STYLES), **fixed)
    for claim in shown:
        verdict = claim["verdict"]
        paper = "" if claim.get("paper") is None else _number(claim["paper"])
        if narrow:
            cells = (claim["id"], claim["statement"] + f"\n(paper: {paper})" * bool(paper), _ours(claim))
        else:
            cells = (claim["id"], claim["statement"], paper, _ours(claim))
        table.add_row(*map(escape, cells), f"[{STYLES.get(verdict, 'default')}]{escape(_shown(verdict))}[/]")
    console.print(table)
    counts = Counter(claim["verdict"] for claim in claims)
    console.print(", ".join(f"{counts[name]} {_shown(name)}" for name in STYLES if counts[name]), soft_wrap=True)
    for title, name in (("Claims", "claims.md"), ("Report", "report.html")):
        if (args.results / name).is_file():
            print(f"{title}: {(args.results / name).resolve()}")
    return 0
