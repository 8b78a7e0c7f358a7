"""The smoke preset from text to ledger, and what reruns after an edit."""

from __future__ import annotations

import json
import re
import time

import pytest

from hwh_core.config import load_preset

pytestmark = pytest.mark.workflow


def planned(output: str) -> dict[str, int]:
    """The job table of a dry run: rule -> count."""
    table = {}
    for line in output.splitlines():
        match = re.match(r"^([a-z_0-9]+)\s+(\d+)$", line.strip())
        if match and match[1] != "total":
            table[match[1]] = int(match[2])
    return table


def test_everything_that_the_preset_names_is_there(smoke):
    preset = load_preset(smoke.code / "config" / "smoke.yaml")
    root = smoke.folder / "results" / "smoke"
    for number in preset.targets.figures:
        for kind in ("pdf", "png", "csv"):
            assert (root / f"figures/fig{number}.{kind}").stat().st_size > 0
    for number in preset.targets.tables:
        for kind in ("csv", "md", "tex"):
            assert (root / f"tables/table{number}.{kind}").stat().st_size > 0
    claims = json.loads((root / "claims.json").read_text())
    assert {"N1", "S1", "C9", "W3", "M1b", "B1"} <= {claim["id"] for claim in claims}
    measured = [claim for claim in claims if claim["id"][0] in "CWMB"]
    assert {claim["verdict"] for claim in measured} == {"not_testable"}, "no claim is read from the smoke preset"


def test_every_artifact_has_a_manifest_and_no_temporary_file_is_left(smoke):
    root = smoke.folder / "results" / "smoke"
    manifests = list(root.rglob("*.manifest.json"))
    assert len(manifests) > 20
    for manifest in manifests:
        assert manifest.with_name(manifest.name.removesuffix(".manifest.json")).exists()
    assert [path for path in root.rglob("*") if ".tmp" in path.name] == []


def test_second_run_and_dry_run_have_nothing_to_do(smoke):
    for arguments in ((), ("-n",)):
        started = time.monotonic()
        result = smoke.run(*arguments)
        assert result.returncode == 0, result.stderr[-3000:]
        assert "Nothing to be done" in result.stdout + result.stderr
        print(f"{arguments}: {time.monotonic() - started:.1f} s")


def test_an_edit_in_a_comment_reruns_nothing(smoke):
    path = smoke.code / "hwh_core" / "rope.py"
    before = path.read_text()
    try:
        path.write_text(before + "\n# a remark that changes nothing\n")
        result = smoke.run("-n")
    finally:
        path.write_text(before)
    assert "Nothing to be done" in result.stdout + result.stderr, result.stdout[-3000:]


def test_an_edit_in_one_module_reruns_its_dependants_and_nothing_else(smoke):
    path = smoke.code / "hwh_core" / "reporting" / "fig3.py"
    before = path.read_text()
    try:
        path.write_text(before + "\nADDED = 1\n")
        result = smoke.run("-n")
    finally:
        path.write_text(before)
    assert set(planned(result.stdout + result.stderr)) == {"fig3", "all"}

    path = smoke.code / "hwh_core" / "gpband" / "extraction.py"
    before = path.read_text()
    try:
        path.write_text(before + "\nADDED = 1\n")
        result = smoke.run("-n")
    finally:
        path.write_text(before)
    jobs = planned(result.stdout + result.stderr)
    preset = load_preset(smoke.code / "config" / "smoke.yaml")
    assert jobs["extract_band"] == len(preset.controlled.models)
    assert "claims" in jobs
    assert not {"train_controlled", "train_hwh", "probe_controlled", "evaluate", "tokenize_documents"} & set(jobs)


def test_a_changed_value_reruns_what_it_decides(smoke):
    path = smoke.code / "config" / "smoke.yaml"
    before = path.read_text()
    assert "bootstrap_resamples: 50" in before
    try:
        path.write_text(before.replace("bootstrap_resamples: 50", "bootstrap_resamples: 51"))
        result = smoke.run("-n")
    finally:
        path.write_text(before)
    jobs = planned(result.stdout + result.stderr)
    assert "extract_band" in jobs
    assert not {"train_controlled", "train_hwh", "probe_controlled", "evaluate"} & set(jobs)


def test_one_figure_is_redrawn_by_name(smoke):
    figure = smoke.folder / "results" / "smoke" / "figures" / "fig3.png"
    before = figure.read_bytes()
    result = smoke.run("fig3", "--forcerun", "fig3")
    assert result.returncode == 0, result.stderr[-3000:]
    assert set(planned(result.stdout + result.stderr)) == {"fig3"}
    assert figure.read_bytes() == before, "the same data must give the same picture, byte for byte"


def test_the_snakemake_report_is_made(smoke):
    report = smoke.folder / "report.html"
    result = smoke.run("--report", str(report))
    assert result.returncode == 0, result.stderr[-3000:]
    assert report.stat().st_size > 100_000
