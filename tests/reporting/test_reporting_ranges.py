"""Intervals never end outside of what a quantity can be, and cutting them decides nothing."""

from __future__ import annotations

import json
import math

import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.reporting import ledger
from hwh_core.reporting.intervals import NOT_NEGATIVE, PERCENT, Interval
from hwh_core.reporting.results import Results
from hwh_core.rope import predicted_index


@pytest.fixture(scope="module")
def disagreeing(tmp_path_factory):
    """Two seeds that disagree: bands far apart, and hybrids with accuracies near 0 and 100%."""
    preset = presets.preset(scales=[presets.scale(presets.ALL, seeds=2)])
    root = tmp_path_factory.mktemp("disagreeing")
    names = [model.name for model in preset.controlled.models]
    peaks = dict(zip(names, (13.97, 10.31, 7.2, 1.0, 11.8, 13.9), strict=True))
    tree.write_controlled(root, preset, peaks=peaks, below_band_ratio_ci=[-0.3, 0.4])
    tree.write_pretrained(root, preset)
    tree.write_hwh(root, preset, rows=3)
    tree.put_json(root / "synthetic.json", tree.synthetic())
    return Results(root, preset)


def numbers(entry: ledger.ClaimRecord) -> dict[str, list[float | None]]:
    """Intervals of a claim by part."""
    found = entry.ci if isinstance(entry.ci, dict) else {"": entry.ci}
    return {label: ends for label, ends in found.items() if ends is not None}


def by_id(results: Results) -> dict[str, ledger.ClaimRecord]:
    return {entry.id: entry for entry in ledger.evaluate(results)}


@pytest.mark.parametrize("case", ["laptop", "wide", "disagreeing"])
def test_cutting_intervals_changes_no_verdict_and_no_estimate(case, request, monkeypatch):
    found = request.getfixturevalue(case)
    results = found if isinstance(found, Results) else found.results()
    after = by_id(results)
    monkeypatch.setattr(Interval, "within", lambda self, possible: self)
    before = by_id(results)
    for name, entry in after.items():
        assert (entry.verdict, entry.parts, entry.ours) == (
            before[name].verdict,
            before[name].parts,
            before[name].ours,
        ), name
    if case == "disagreeing":
        assert any(numbers(entry) != numbers(before[name]) for name, entry in after.items())


def test_positions_lie_among_the_frequency_groups(disagreeing):
    found = by_id(disagreeing)
    intervals = numbers(found["C9"])
    assert [0.0, 31.0] in intervals.values()
    for low, high in intervals.values():
        assert 0 <= low <= high <= 31
    shift = predicted_index(64, 1e4, 256)
    residual = numbers(found["C11-scaled"])["r - r* (x*=4.4934), θ=1e4, L=256"]
    assert residual == [pytest.approx(-shift), pytest.approx(31 - shift)]
    for low, high in numbers(found["C4-scaled"]).values():
        assert 0 < low <= high
    for name in ("C5-scaled", "C10-scaled"):
        for low, high in numbers(found[name]).values():
            assert -31 <= low <= high <= 31


def test_shares_and_ratios_are_not_negative(disagreeing):
    for low, high in numbers(by_id(disagreeing)["C7-scaled"]).values():
        assert 0 <= low <= high


@pytest.mark.parametrize("name", ["B1-scaled", "B4-scaled", "M5-scaled"])
def test_accuracies_lie_between_0_and_100_percent(disagreeing, name):
    intervals = numbers(by_id(disagreeing)[name])
    assert intervals
    for low, high in intervals.values():
        assert 0 <= low <= high <= 100
    assert any(0.0 in ends or 100.0 in ends for ends in intervals.values())


def test_differences_of_accuracies_and_of_logarithms_keep_their_own_range(disagreeing):
    found = by_id(disagreeing)
    for name in ("M2-scaled", "M4-scaled", "M6-scaled", "B2-scaled", "B3-scaled"):
        for low, high in numbers(found[name]).values():
            assert -100 <= low <= high <= 100
    half = numbers(found["M3-scaled"])["needles at 2L: half of HwH-std - HwH-std-r"]
    assert -100 <= half[0] <= half[1] <= 50
    # A logarithm of perplexities has no limits: three rows leave it wide.
    assert any(low < 0 for label, (low, _) in numbers(found["M1b-scaled"]).items() if label.startswith("ln "))


def test_an_end_without_bound_stays_unknown():
    assert Interval(1.0, -math.inf, math.inf, 2).within(PERCENT) == Interval(1.0, -math.inf, math.inf, 2)
    assert Interval(5.0, -4.0, 14.0, 2).within(PERCENT) == Interval(5.0, 0.0, 14.0, 2)
    assert Interval(98.0, 90.0, 106.0, 2).within(PERCENT) == Interval(98.0, 90.0, 100.0, 2)
    assert Interval(98.0, -90.0, 106.0, 2).within(NOT_NEGATIVE) == Interval(98.0, 0.0, 106.0, 2)
    assert ledger._ends([None, 3.0]) == " [-∞, 3]"
    assert ledger._ends([None, None]) == " [-∞, ∞]"


def test_table_3_cuts_positions_and_the_periods_that_follow(disagreeing):
    from hwh_core.reporting.table3 import make

    rows = make(disagreeing).long()
    observed = rows[(rows["column"] == "observed r") & rows["ci_low"].notna()]
    assert observed["ci_low"].min() == 0
    assert observed["ci_high"].max() == 31
    periods = rows[(rows["column"] == "T(r)") & rows["ci_low"].notna()]
    assert periods["ci_low"].min() == pytest.approx(2 * math.pi)


def test_arithmetic_shows_neither_seeds_nor_samples(laptop, tmp_path):
    records = ledger.write(laptop.results(), tmp_path / "claims.json")
    lines = (tmp_path / "claims.md").read_text(encoding="utf-8").splitlines()
    shown = {line.split(" | ")[0].strip("| "): line.replace("\\|", "/").split(" | ") for line in lines if " | " in line}
    stored = {entry["id"]: entry for entry in json.loads((tmp_path / "claims.json").read_text())}
    for entry in records:
        seeds, samples = shown[entry.id][5:7]
        assert seeds == (str(entry.n_seeds) if entry.n_seeds else "-"), entry.id
        assert samples == (str(entry.n_samples) if entry.n_samples else "-"), entry.id
        assert stored[entry.id]["n_seeds"] == entry.n_seeds
    assert shown["N1"][5:7] == ["-", "-"]
    assert shown["C9"][6] != "-"
