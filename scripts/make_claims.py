"""Test every claim of the paper on the results of a preset: claims.json, claims.md, and a table on the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path

from hwh_core.scripting import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the preset's results, results/<preset>")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--config", type=Path, help="preset file that made these results")
    origin.add_argument("--settings", help="the same preset as JSON text or the path of a JSON file")
    parser.add_argument("--output", type=Path, required=True, help="claims.json to write; claims.md stands beside it")
    options = parser.parse_args()

    from rich.console import Console

    from hwh_core.reporting import ledger
    from hwh_core.reporting.results import Results, preset_of

    records = ledger.write(Results(options.root, preset_of(options.config, options.settings)), options.output)
    console = Console()
    # Without a terminal (a log file) rich would assume 80 columns, too few for this table.
    console = console if console.is_terminal else Console(width=140)
    console.print(ledger.printed_table(records))
    summary = {verdict: sum(entry.verdict == verdict for entry in records) for verdict in ledger.VERDICTS}
    console.print(", ".join(f"{number} {verdict.replace('_', ' ')}" for verdict, number in summary.items()))
    console.print(f"Report: {options.output.with_suffix('.md')}", soft_wrap=True)


if __name__ == "__main__":
    run(main)
