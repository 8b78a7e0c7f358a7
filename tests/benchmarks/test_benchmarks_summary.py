"""The table of targets says what the result files say, and nothing that is missing or missed is hidden."""

from __future__ import annotations

import pytest

from benchmarks import summary


def test_readme_says_what_the_results_say():
    text = (summary.FOLDER / "README.md").read_text(encoding="utf-8")
    assert summary.with_table(text, summary.table(summary.figures())) == text, "run python -m benchmarks.summary"


def test_rows_of_figures_that_are_reached_missed_and_missing():
    result = {"name": "x.json", "card": "card", "date": "2026-01-01"}
    found = {
        "probe.extra_mib": ({"value": 300.0, "unit": "MiB", "against": 256.0}, result),
        "probe.speedup_eager": ({"value": 25.0, "unit": "times", "against": 25.0}, result),
        "decode.cache_ratio": ({"value": 0.2, "unit": "ratio", "against": 0.18}, result),
    }
    rows = {line.split("`")[1]: line for line in summary.table(found).splitlines() if "`" in line}
    assert "300 MiB | no |" in rows["probe.extra_mib"]
    assert "25 times | yes |" in rows["probe.speedup_eager"]
    assert "0.18 by the layers | 0.2 | no |" in rows["decode.cache_ratio"]
    assert "not measured" in rows["gdn.cold_start_s"]
    assert len(rows) == len(summary.TARGETS)


def test_marks_must_be_there():
    with pytest.raises(ValueError, match="marks"):
        summary.with_table("# Benchmarks", "| table |")
