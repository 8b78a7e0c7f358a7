"""The registry holds every claim, the records follow the schema, and the report says what it must."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
import report_preset as presets
import report_tree as tree

from hwh_core.reporting import claims_numeric, ledger
from hwh_core.reporting.claim_model import ClaimRecord, record
from hwh_core.reporting.results import Results
from hwh_core.reporting.selection import ReportError

ROOT = Path(ledger.__file__).resolve().parents[2]
OF_THE_PAPER = (
    {f"N{i}" for i in range(1, 8)}
    | {"S1", "S2"}
    | {f"C{i}" for i in range(1, 12)}
    | {f"W{i}" for i in range(1, 10)}
    | {f"M{i}" for i in range(1, 7)}
    | {"M1b"}
    | {f"B{i}" for i in range(1, 6)}
)
SCALED = {f"C{i}-scaled" for i in (4, 5, 6, 7, 8, 10, 11)} | {
    f"{name}-scaled" for name in ("M1b", "M2", "M3", "M4", "M5", "M6", "B1", "B2", "B3", "B4", "B5")
}
IN_TRAINED_WORDING = {f"{name}-trained" for name in ("M3", "M4", "M5", "M6", "B1", "B2", "B4")}
ON_SMOLLM2 = {f"{name}-smollm2" for name in ("W1", "W2", "W3", "W4", "W5", "W8", "C7", "C8")}


def by_id(results: Results) -> dict[str, ClaimRecord]:
    return {entry.id: entry for entry in ledger.evaluate(results)}


def test_the_registry_holds_every_claim_once():
    ids = [claim.id for claim in ledger.CLAIMS]
    assert len(ids) == len(set(ids))
    assert set(ids) == OF_THE_PAPER | SCALED | IN_TRAINED_WORDING | ON_SMOLLM2


def test_scaled_and_other_rows_name_their_scale():
    for claim in ledger.CLAIMS:
        if claim.id.endswith("-smollm2"):
            assert claim.claim_scale == "SmolLM2-135M"
            assert claim.paper is None
        elif claim.scale in "MB":
            size = {"M": "380M", "B": "1.4B"}[claim.scale]
            assert claim.claim_scale == ("scaled" if claim.id.endswith(("-scaled", "-trained")) else size)


def test_numeric_claims_are_all_reproduced():
    for claim in claims_numeric.CLAIMS:
        entry = record(claim, claim.evaluate(None))
        assert entry.verdict == "reproduced", (entry.id, entry.ours)
        assert entry.evidence
        assert (ROOT / entry.evidence).is_file()


def test_a_wrong_constant_would_not_be_reproduced(monkeypatch):
    monkeypatch.setattr(claims_numeric, "predicted_index", lambda *sizes: 21.99)
    assert claims_numeric.n1(None).verdict == "not_reproduced"


def test_a_readout_that_depends_on_the_log_base_would_not_be_reproduced(monkeypatch):
    right = claims_numeric.measure

    def scaled_with_the_base(dtype, base=math.e):
        return tuple(values * base / math.e for values in right(dtype))

    monkeypatch.setattr(claims_numeric, "measure", scaled_with_the_base)
    assert claims_numeric.n7(None).verdict == "not_reproduced"


@pytest.mark.parametrize(
    ("content", "claim", "expected"),
    [
        (tree.synthetic(0.1), "S1", "reproduced"),
        (tree.synthetic(0.6), "S1", "not_reproduced"),
        (tree.synthetic(0.1, right=36), "S2", "reproduced"),
        (tree.synthetic(0.1, right=35), "S2", "not_reproduced"),
    ],
)
def test_synthetic_claims_need_every_case(tmp_path, content, claim, expected):
    tree.put_json(tmp_path / "synthetic.json", content)
    entry = next(c for c in ledger.CLAIMS if c.id == claim)
    assert entry.evaluate(Results(tmp_path, presets.preset())).verdict == expected


def test_laptop_leaves_the_papers_own_rows_untestable(laptop):
    found = by_id(laptop.results())
    for name in ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10", "C11", "W3", "M1", "M2", "B1", "B5"):
        assert found[name].verdict == "not_testable", name
        assert found[name].ours is None
        assert found[name].note
    for name in ("C9", "C4-scaled", "C5-scaled", "C7-scaled", "C8-scaled", "C10-scaled", "C11-scaled", "W3-smollm2"):
        assert found[name].verdict != "not_testable", name
        assert found[name].ours is not None, name
    for entry in found.values():
        if entry.verdict in ("reproduced", "not_reproduced") and entry.scale != "N":
            assert (laptop.root / entry.evidence).is_file(), entry.id


def test_no_claim_is_read_from_the_smoke_preset(tmp_path):
    preset = presets.preset(name="smoke")
    tree.write_all(tmp_path, preset)
    for entry in ledger.evaluate(Results(tmp_path, preset)):
        if entry.scale == "N":
            assert entry.verdict == "reproduced"
        else:
            assert entry.verdict == "not_testable"
            assert "smoke preset" in entry.note


def test_ledger_files(laptop, tmp_path):
    records = ledger.write(laptop.results(), tmp_path / "claims.json")
    stored = json.loads((tmp_path / "claims.json").read_text())
    assert isinstance(stored, list)
    assert [ClaimRecord.model_validate(entry).id for entry in stored] == [entry.id for entry in records]
    wanted = {"id", "statement", "paper", "ours", "tolerance", "ci", "n_seeds", "n_samples", "metric", "scale"}
    assert wanted | {"claim_scale", "verdict", "evidence", "note"} <= set(stored[0])
    manifest = json.loads((tmp_path / "claims.json.manifest.json").read_text())
    assert len(manifest["inputs"]) >= len(laptop.preset.controlled.models)
    report = (tmp_path / "claims.md").read_text()
    for entry in records:
        assert f"| {entry.id} |" in report
    for text in ("What was tried", "FineWeb-Edu", "40,960 tokens", "Figure 8", "SmolLM2-135M-Instruct", "not testable"):
        assert text in report
    total = next(line for line in report.splitlines() if line.startswith("| all |"))
    assert sum(int(cell) for cell in total.split("|")[2:-1]) == len(records)


def test_a_missing_result_is_an_error_and_not_an_untestable_claim(tmp_path):
    preset = presets.preset()
    tree.write_all(tmp_path, preset)
    (tmp_path / "hwh/tiny/gdn/niah.csv").unlink()
    with pytest.raises(ReportError, match=r"gdn/niah\.csv does not exist"):
        ledger.write(Results(tmp_path, preset), tmp_path / "claims.json")
    assert not (tmp_path / "claims.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "proved"},
        {"unknown": 1},
        {"ours": None},
        {"evidence": None},
        {"ci": [1.0]},
        {"id": "X1"},
        {"verdict": "not_testable", "note": ""},
    ],
)
def test_the_schema_refuses_records_that_prove_nothing(change):
    claim = claims_numeric.CLAIMS[2]
    good = record(claim, claim.evaluate(None)).model_dump()
    ClaimRecord.model_validate(good)
    with pytest.raises(pydantic.ValidationError):
        ClaimRecord.model_validate(good | change)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def test_program_prints_the_table_and_where_the_report_lies(laptop, tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text(laptop.preset.model_dump_json())
    output = tmp_path / "claims.json"
    done = run("make_claims", "--root", str(laptop.root), "--settings", str(settings), "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "C9" in done.stdout
    assert "not testable with this preset" in done.stdout
    assert f"Report: {tmp_path / 'claims.md'}" in done.stdout
    assert output.is_file()


@pytest.mark.parametrize(
    ("script", "number", "named"),
    [("draw_figure", "13", "it lacks pretrained model Gemma-7B"), ("make_table", "7", "it lacks HwH architecture")],
)
def test_programs_end_in_one_sentence_without_the_models(laptop, tmp_path, script, number, named):
    settings = laptop.preset.model_dump_json()
    done = run(script, number, "--root", str(laptop.root), "--settings", settings, "--output", str(tmp_path / "x"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
