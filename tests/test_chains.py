"""Chains of a preset, their records, and that nothing behind them needs weights."""

from __future__ import annotations

import re
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
    assert kept == {"config": True, "paper": True, "single_gpu": False, "smoke": True}


def test_every_rule_that_reads_weights_is_a_link_of_a_chain():
    """In the rules' text: their group, and no input beside the chain's own files that is looked at by its time."""
    rules = {}
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        for block in re.split(r"(?m)^(?=rule )", path.read_text(encoding="utf-8"))[1:]:
            rules[re.match(r"rule (\w+)", block).group(1)] = block
    links = {name for name, block in rules.items() if re.search(r"(model|initial)/model\.safetensors", block)}
    assert {"train_controlled", "probe_controlled", "train_hwh", "evaluate", "evaluate_niah"} <= links
    for name in links:
        block = rules[name]
        assert re.search(r"group:\s+CHAIN\b", block), f"rule {name} reads weights and lacks `group: CHAIN`"
        inputs = re.search(r"(?s)    input:\n(.*?)\n    output:\n(.*?)\n    log:", block)
        for text in re.findall(r'"([^"]*(?:/index\.json|tokenizer\.json|\.zst|rows\.json))"', inputs.group(1)):
            given = re.search(rf'compared\(\s*f?"{re.escape(text)}"', inputs.group(1))
            assert given, f"rule {name}: {text} is not given through `compared`"
        for text in re.findall(r'"([^"]*\.safetensors)"', inputs.group(2)):
            assert f'weights("{text}")' in inputs.group(2), f"rule {name}: {text} is kept, it needs `weights`"


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
