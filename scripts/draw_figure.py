"""Draw one figure from result files: PDF, PNG, the CSV of what it shows, and a manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

from hwh_core.scripting import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", help="number of a figure of the paper, 2 to 15, or a name of ours such as qk_norm")
    parser.add_argument("--root", type=Path, required=True, help="folder of the preset's results, results/<preset>")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--config", type=Path, help="preset file that made these results")
    origin.add_argument("--settings", help="the same preset as JSON text or the path of a JSON file")
    parser.add_argument("--output", type=Path, required=True, help="results/<preset>/figures/fig<N>, without suffix")
    options = parser.parse_args()

    from hwh_core.reporting.results import Results, preset_of
    from hwh_core.reporting.selection import id_of
    from hwh_core.reporting.style import draw_and_write

    results = Results(options.root, preset_of(options.config, options.settings))
    for path in draw_and_write(id_of(options.figure), results, options.output):
        print(path)


if __name__ == "__main__":
    run(main)
