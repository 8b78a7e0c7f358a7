"""Make one table from result files: CSV, Markdown, TeX, and a manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

from hwh_core.scripting import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="number of a table of the paper, 1 to 8, or heads or variants")
    parser.add_argument("--root", type=Path, required=True, help="folder of the preset's results, results/<preset>")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--config", type=Path, help="preset file that made these results")
    origin.add_argument("--settings", help="the same preset as JSON text or the path of a JSON file")
    parser.add_argument("--output", type=Path, required=True, help="results/<preset>/tables/table<N>, without suffix")
    options = parser.parse_args()

    from hwh_core.reporting.results import Results, preset_of
    from hwh_core.reporting.selection import id_of
    from hwh_core.reporting.tables import make_and_write

    results = Results(options.root, preset_of(options.config, options.settings))
    for path in make_and_write(id_of(options.table), results, options.output):
        print(path)


if __name__ == "__main__":
    run(main)
