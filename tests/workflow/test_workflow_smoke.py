"""The smoke preset from text to ledger, what reruns after an edit, and how a killed workflow goes on.

One file, so that parallel test workers run the preset once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from hwh_core.chains import find_chains
from hwh_core.config import load_preset
from hwh_core.files import sha256_of
from hwh_core.reporting.selection import figure_name, table_name

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
    for figure in preset.targets.figures:
        for kind in ("pdf", "png", "csv"):
            assert (root / f"figures/{figure_name(figure)}.{kind}").stat().st_size > 0
    for table in preset.targets.tables:
        for kind in ("csv", "md", "tex"):
            assert (root / f"tables/{table_name(table)}.{kind}").stat().st_size > 0
    for model in preset.pretrained.models:
        assert (root / f"pretrained/{model.name}/atlas.html").stat().st_size > 0
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


TARGET = "results/smoke/controlled/{model}/metrics.json"


def processes_of(folder) -> list[int]:
    """Processes whose command line names `folder`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    if str(folder).encode() in stream.read():
                        found.append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_killed_workflow_resumes_with_the_same_result(checkout, smoke):
    model = next(path.name for path in sorted((smoke.folder / "results/smoke/controlled").iterdir()))
    target = TARGET.format(model=model)
    log = checkout.folder / "results" / "smoke" / "controlled" / model / "train_log.jsonl"
    checkpoints = checkout.folder / "results" / "smoke" / "controlled" / model / "checkpoints"
    process = subprocess.Popen(
        checkout.command(target),
        env=checkout.environment(),
        cwd=checkout.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        assert process.poll() is None, "the workflow ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint was written in time"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    deadline = time.monotonic() + 20
    while processes_of(checkout.folder):
        assert time.monotonic() < deadline, f"jobs outlive their workflow: {processes_of(checkout.folder)}"
        time.sleep(0.2)

    result = checkout.run(target)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    resumed = load_file(checkout.folder / "results/smoke/controlled" / model / "model/model.safetensors")
    whole = load_file(smoke.folder / "results/smoke/controlled" / model / "model/model.safetensors")
    assert resumed.keys() == whole.keys()
    for name in whole:
        assert (resumed[name] == whole[name]).all(), name
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step stands twice in the training log"


CHAIN = "hwh/tiny/hwh_std_s0"
RECORD = f"results/smoke/chains/{CHAIN}.json"


def test_chains_of_two_machines_give_the_claims_of_one_that_keeps_weights(smoke, clone_without_weights):
    preset = load_preset(smoke.code / "config" / "smoke.yaml")
    names = set(find_chains(preset))

    # The pretrained model is that of the finished run; its path is in the settings of the text, which is made anew.
    first = clone_without_weights("first", smoke.folder, "controlled", "hwh", "claims*")
    result = first.run(RECORD)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    jobs = planned(result.stdout + result.stderr)
    assert (jobs["train_hwh"], jobs["evaluate"], jobs["evaluate_niah"], jobs["record_chain"]) == (1, 1, 1, 1)
    assert "train_controlled" not in jobs
    assert list((first.folder / "results").rglob("*.safetensors")) == []
    record = json.loads((first.folder / RECORD).read_text())
    assert {step["step"] for step in record["steps"]} == {"train", "evaluate", "evaluate_niah"}
    assert {Path(path).name for path in record["records"]} >= {"metrics.json", "scores.csv", "niah_cells.csv"}
    assert all(sha256_of(first.folder / path) == sha for path, sha in record["records"].items())
    result = first.run("-n", RECORD)
    assert "Nothing to be done" in result.stdout + result.stderr, "weights that are gone are no reason to train again"

    second = clone_without_weights("second", first.folder)
    others = sum(name.startswith("hwh/") for name in names) - 1
    result = second.run()
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    jobs = planned(result.stdout + result.stderr)
    assert jobs["tokenize_documents"] > 0, "this machine makes its text itself, later than the records that came to it"
    assert (jobs["train_hwh"], jobs["evaluate"], jobs["evaluate_niah"]) == (others, others, others)
    assert jobs["record_chain"] == len(names), "contents of the chain that came here are compared, too"
    assert jobs["train_controlled"] == jobs["extract_band"] == len(preset.controlled.models)
    assert list((second.folder / "results").rglob("*.safetensors")) == []
    for path in record["records"]:
        assert (second.folder / path).read_bytes() == (first.folder / path).read_bytes(), f"{path} was made anew"
    assert all((second.folder / f"results/smoke/chains/{name}.json").is_file() for name in names)

    claims = [json.loads((run.folder / "results/smoke/claims.json").read_text()) for run in (smoke, second)]
    assert claims[0] == claims[1]
    result = second.run("-n")
    assert "Nothing to be done" in result.stdout + result.stderr, result.stdout[-3000:]

    config = str(second.code / "config" / "smoke.yaml")
    result = second.program("-m", "hwh_core.cli", "verify", "results/smoke", "--config", config)
    assert (result.returncode, "weights not handed on: " in result.stdout) == (0, True), result.stdout + result.stderr
    result = second.program(str(second.code / "scripts" / "keep_reference.py"), "results/smoke")
    assert result.returncode == 0, result.stderr
    reference = second.folder / "results" / "reference" / "smoke"
    assert {path.name for path in (reference / "chains").rglob("*_s0.json")} == {
        f"{Path(name).name}.json" for name in names
    }
    result = second.program("-m", "hwh_core.cli", "verify", "results/reference/smoke", "--config", config)
    assert result.returncode == 0, result.stdout + result.stderr
