"""Chains of a preset, their records, and that nothing behind them needs weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwh_core import chains
from hwh_core.config import load_preset
from hwh_core.files import read_json, sha256_of, write_json
from hwh_core.provenance import write_manifest
from hwh_core.scripting import UserError
from hwh_core.verification import is_weights, read_manifests

ROOT = Path(__file__).resolve().parents[1]
PRESETS = sorted((ROOT / "config").glob("*.yaml"))
PROGRAM = "requirements/update.py"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_figures_tables_and_ledger_read_records_only_and_every_model_has_a_chain(path):
    preset = load_preset(path)
    read = chains.target_inputs(preset)
    assert not any(is_weights(Path(name)) or "/model/" in name or "/initial/" in name for name in read)
    found = chains.find_chains(preset)
    models = [model for scale in preset.hwh.scales for model in scale.models] + list(preset.controlled.models)
    assert len(found) == len(models)
    assert all(f"{name}/metrics.json" in chain.records for name, chain in found.items())
    own = {record for chain in found.values() for record in chain.records}
    rest = set(read) - own
    assert not any(name.startswith(("controlled/", "hwh/")) for name in rest), "a record of no chain"


def test_a_name_that_begins_like_another_is_another_chain(minimal_preset):
    names = ["controlled/base", "controlled/base_s1", "hwh/tiny/base"]
    assert chains.chains_of(names, ["controlled/base_s1/band.json", "synthetic.json"]) == ["controlled/base_s1"]
    assert chains.chains_of(names, ["synthetic.json"]) == []


def test_only_single_gpu_hands_on_no_weights():
    kept = {path.stem: load_preset(path).keep_weights for path in PRESETS}
    assert kept == {"config": True, "paper": True, "single_gpu": False, "smoke": True, "variants": True}


# Prints every rule of single_gpu as Snakemake has read it: its name, group, inputs and outputs with their flags.
RULES = """
import json, sys
from pathlib import Path
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings
root = Path(sys.argv[1])
class Names:
    scale, hwh, controlled = "35M", "hwh_std_s0", "theta1e4_L2048_s0"
def files(entries, job):
    made = [entry(Names) if callable(entry) else entry for entry in entries] if job else entries
    flat = [file for entry in made for file in (entry if isinstance(entry, list) else [entry])]
    return [(str(file), sorted(getattr(file, "flags", {}))) for file in flat]
with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
    workflow = api.workflow(
        resource_settings=ResourceSettings(cores=1), workdir=Path.cwd(), snakefile=root / "workflow/Snakefile",
        config_settings=ConfigSettings(configfiles=[root / "config/single_gpu.yaml"]),
    )
    links = [r for r in workflow._workflow.rules if "{controlled" in str(r.output) or "{hwh" in str(r.output)]
    print(json.dumps([[r.name, r._group, r.priority, files(r.input, True), files(r.output, False)] for r in links]))
"""
WEIGHTS = re.compile(r"\.safetensors$|/snapshots$")


@pytest.mark.workflow
def test_every_rule_that_reads_or_writes_weights_is_a_link_of_a_chain(tmp_path):
    """Its group is that of chains, it comes before further trainings, its weights go, and what it reads beside the
    model's folder is not told by time."""
    command = [sys.executable, "-c", RULES, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    rules = {name: rest for name, *rest in json.loads(done.stdout.splitlines()[-1])}
    assert {"train_controlled", "probe_controlled", "extract_band", "train_hwh", "evaluate", "evaluate_niah"} <= set(
        rules
    )
    assert sum(any(WEIGHTS.search(path) for path, _ in inputs) for _, _, inputs, _ in rules.values()) >= 4
    for name, (group, priority, inputs, outputs) in rules.items():
        assert group == "chain", f"rule {name} lacks `group: CHAIN`"
        assert priority == (0 if name.startswith("train_") else 1), f"rule {name}: priority {priority}"
        for path, flags in inputs:
            own = re.match(r"results/single_gpu/(controlled|hwh)/", path)
            assert own or "ancient" in flags, f"rule {name} reads {path}, which is not given through `compared`"
        for path, flags in outputs:
            assert ("temp" in flags) == bool(WEIGHTS.search(path)), f"rule {name}: {path} is wrongly kept or deleted"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A chain as the workflow leaves it: training on a card, a probe of two files, a band; weights are still there."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/p/hwh/tiny/a")
    (folder / "model").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    store = Path("results/p/data/index.json")
    write_json(store, {"tokens": 1})
    (folder / "checkpoints/state.json").write_text("{}")
    (folder / "model/config.json").write_text("{}")
    (folder / "model/model.safetensors").write_bytes(b"weights")
    write_json(folder / "metrics.json", {"device": "card"})

    def manifest(name: str, inputs: list[Path], script: str, settings: dict, **changes) -> None:
        path = folder / name
        if not path.exists():
            path.write_text(f"made {name}")
        made = write_manifest(path, inputs=inputs, settings=settings, started=time.time(), script=PROGRAM)
        write_json(made, read_json(made) | {"script": f"scripts/{script}.py"} | changes)

    card = {"system": "Linux", "cores": 8, "accelerator": "H200"}
    bare = {"system": "Linux", "cores": 8}
    manifest("model", [store], "train", {}, wall_seconds=90.0, machine=card, finished="2026-01-01T00:01:30Z")
    for name, seconds in (("probe_x1.npz", 3.0), ("probe_x2.npz", 7.0)):
        done = f"2026-01-01T00:02:0{seconds:.0f}Z"
        manifest(name, [folder / "model", store], "probe", {}, wall_seconds=seconds, machine=card, finished=done)
    last = "2026-01-02T00:00:00Z"
    manifest("band.json", [folder / "probe_x1.npz"], "band", {}, wall_seconds=1.0, machine=bare, finished=last)
    return folder


def test_a_chain_record_lists_files_steps_and_machines_without_weights(folder):
    (folder / "model/model.safetensors").unlink()
    record = chains.chain_record("hwh/tiny/a", 0, folder)
    steps = [(step["step"], step["seconds"], step["card"]) for step in record["steps"]]
    assert steps == [("train", 90.0, "H200"), ("probe", 7.0, "H200"), ("band", 1.0, None)]
    assert (record["seconds"], record["cards"]) == (98.0, ["H200"])
    assert record["machines"] == [{"system": "Linux", "cores": 8, "accelerator": "H200"}]
    names = {Path(path).relative_to(folder).as_posix() for path in record["records"]}
    assert {"metrics.json", "band.json", "band.json.manifest.json", "model/config.json"} <= names
    assert not any(is_weights(Path(name)) for name in names)
    assert all(sha256_of(path) == sha for path, sha in record["records"].items())


def test_records_of_another_machine_name_both(folder):
    path = folder / "band.json.manifest.json"
    write_json(path, read_json(path) | {"machine": {"system": "Linux", "cores": 64}})
    assert chains.chain_record("hwh/tiny/a", 0, folder)["machines"] == [
        {"system": "Linux", "cores": 8, "accelerator": "H200"},
        {"system": "Linux", "cores": 64},
    ]


@pytest.mark.parametrize(("name", "artifact"), [("results/p/data/index.json", "model"), ("probe_x1.npz", "band.json")])
def test_records_made_from_another_file_are_refused(folder, name, artifact):
    path = Path(name) if "/" in name else folder / name
    path.write_text("another", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{artifact} was made from another .*{path.name} .*delete .*metrics\.json"):
        chains.chain_record("hwh/tiny/a", 0, folder)


def test_a_probe_of_other_weights_is_refused_although_the_weights_are_gone(folder):
    (folder / "model/model.safetensors").unlink()
    chains.check_inputs(read_manifests(folder))
    path = folder / "model.manifest.json"
    write_json(path, read_json(path) | {"sha256": "0" * 64})
    with pytest.raises(UserError, match=r"probe_x1\.npz was made from another results/p/hwh/tiny/a/model "):
        chains.chain_record("hwh/tiny/a", 0, folder)


def test_a_chain_that_was_not_run_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"no manifest .* lies below empty; run its chain first"):
        chains.chain_record("hwh/tiny/a", 0, Path("empty"))
