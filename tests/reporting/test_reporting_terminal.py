"""Tables of claims on the terminal: the verdict is whole at every width, and written as people read it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from hwh_core import cli
from hwh_core.reporting import ledger

VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not testable")


@pytest.fixture(scope="module")
def folder(laptop, tmp_path_factory):
    """A ledger with claims of every verdict and of long statements."""
    root = tmp_path_factory.mktemp("claims")
    ledger.write(laptop.results(), root / "claims.json")
    records = json.loads((root / "claims.json").read_text())
    for number, entry in enumerate(records):
        entry["verdict"] = VERDICTS[number % 4].replace(" ", "_")
    records[1]["statement"] = "a training-length window and a word-that-is-longer-than-any-column-of-a-narrow-table"
    (root / "claims.json").write_text(json.dumps(records))
    return root


def report(folder, capsys, monkeypatch, width: int, *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", str(folder), *arguments])
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_verdict_no_claim_and_no_word_is_cut(folder, capsys, monkeypatch, width):
    output = report(folder, capsys, monkeypatch, width)
    records = json.loads((folder / "claims.json").read_text())
    tested = [entry for entry in records if entry["verdict"] != "not_testable"]
    assert "…" not in output
    assert "not_reproduced" not in output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    shown = {row[0]: row[-1] for row in rows if row[0]}
    assert shown == {entry["id"]: entry["verdict"].replace("_", " ") for entry in tested}
    statement = "".join(row[1] for row in rows[rows.index(next(r for r in rows if r[0] == tested[1]["id"])) :])
    assert "word-that-is-longer-than-any-column-of-a-narrow-table" in statement.replace(" ", "")


def test_80_columns_suffice(folder, capsys, monkeypatch):
    output = report(folder, capsys, monkeypatch, 80)
    assert max(len(line) for line in output.splitlines() if line.startswith("│")) <= 80
    # Too narrow for a column of its own: the paper's number stands below the statement.
    assert "(paper: " in output
    assert "(paper: " not in report(folder, capsys, monkeypatch, 160)


def test_exact_numbers_have_no_interval_and_a_part_is_counted_in_the_singular(folder, capsys, monkeypatch):
    output = report(folder, capsys, monkeypatch, 160)
    row = next(line for line in output.splitlines() if line.startswith("│ N1 "))
    assert "21.27" in row
    assert "[21.27, 21.27]" not in output
    assert "and 1 more part " in output
    assert "and 1 more parts" not in output


@pytest.mark.parametrize("given", ["not_reproduced", "not reproduced"])
def test_a_verdict_may_be_asked_for_in_both_forms(folder, capsys, monkeypatch, given):
    output = report(folder, capsys, monkeypatch, 120, "--verdict", given)
    rows = [line for line in output.splitlines() if line.startswith("│") and line.split("│")[1].strip()]
    assert rows
    assert all(line.rstrip("│").rstrip().endswith("not reproduced") for line in rows)


@pytest.mark.parametrize("width", [70, 140])
def test_the_table_that_ends_a_run_cuts_no_verdict_either(laptop, width):
    records = [entry for entry in ledger.evaluate(laptop.results()) if entry.verdict != "not_testable"]
    stream = io.StringIO()
    Console(file=stream, width=width).print(ledger.printed_table(records))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stream.getvalue().splitlines() if "│" in line]
    assert {row[0]: row[-1] for row in rows if row[0]} == {e.id: e.verdict.replace("_", " ") for e in records}
