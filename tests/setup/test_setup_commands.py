"""The `hwh` command, doctor and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hwh_core import cli, machine
from hwh_core.commands import doctor, report
from hwh_core.config import ConfigError, load_preset, validate_preset
from hwh_core.estimate import disk_bytes
from hwh_core.machine import GIB, NEEDED, Accelerator, Machine
from hwh_core.readiness import preset_needs, verdict
from hwh_core.scripting import UserError

ROOT = Path(__file__).resolve().parents[2]


def hwh(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of one call in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


def a_machine(**changes: object) -> Machine:
    """A machine on which everything is there, less ``changes``."""
    facts = {
        "system": "Linux",
        "processor": "a processor",
        "cores": 2,
        "memory": 32 * GIB,
        "memory_available": 30 * GIB,
        "disk_free": 10**15,
        "python": "3.11.7",
        "compiler": "/usr/bin/g++",
        "python_header": "/usr/include/Python.h",
        "accelerators": (Accelerator("a card", 80 * GIB, (9, 0)),),
        "cuda_build": "13.0",
        "versions": dict.fromkeys([*NEEDED, "flash-linear-attention", "fla-core", "triton"], "1.0"),
        "programs": {"git": "/usr/bin/git", "sbatch": None},
    }
    return Machine(**{**facts, **changes})


@pytest.fixture
def workflow(tmp_path, minimal_preset):
    """A folder with one preset whose local files exist."""
    (tmp_path / "config").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "rows").mkdir()
    (tmp_path / "text" / "a.txt").write_text("text", encoding="utf-8")
    (tmp_path / "config" / "minimal.yaml").write_text(yaml.safe_dump(minimal_preset), encoding="utf-8")
    return tmp_path


def states(preset_data: dict, here: Machine, root: Path, **options: bool) -> dict[str, tuple[str, str]]:
    needs = preset_needs(validate_preset(preset_data, "test"), here, root, **options)
    return {need.what: (need.state, need.detail) for need in needs}


# --------------------------------------------------------------------------- the command


def test_help_lists_every_command_without_importing_one():
    program = "import sys; from hwh_core import cli\ntry: cli.main(['--help'])\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for name in cli.command_names():
        assert f"\n    {name} " in done.stdout
    assert not [m for m in cli.command_names() if f"'hwh_core.commands.{m}'" in done.stdout]
    assert "'torch'" not in done.stdout


@pytest.mark.parametrize("name", cli.command_names())
def test_every_command_has_help_options_and_run(name, capsys):
    code, output, _ = hwh(capsys, name, "--help")
    assert code == 0
    assert f"usage: hwh {name}" in output
    assert len(cli._summary(name)) > 10
    assert callable(getattr(sys.modules[f"hwh_core.commands.{name}"], "run", None))


@pytest.mark.parametrize("name", ["band", "onset", "report", "verify"])
def test_light_commands_do_not_import_torch(name):
    call = f"cli.main(['{name}', '--help'])"
    program = f"import sys; from hwh_core import cli\ntry: {call}\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"'hwh_core.commands.{name}'" in done.stdout
    assert "'torch'" not in done.stdout


@pytest.mark.parametrize("arguments", [["doktor"], [], ["--nothing"], ["doctor", "--nothing"]])
def test_wrong_command_line_is_refused(capsys, arguments):
    code, output, error = hwh(capsys, *arguments)
    assert code == 2
    assert output == ""
    assert "usage: hwh" in error


# --------------------------------------------------------------------------- doctor


def test_doctor_tells_the_machine_and_every_preset(workflow, capsys):
    code, output, _ = hwh(capsys, "doctor", "--json", "--root", str(workflow))
    found = json.loads(output)
    assert code == 0
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0)) or found["machine"]["cores"] >= 1
    assert found["machine"]["versions"]["torch"].startswith("2.")
    assert found["presets"]["minimal"]["verdict"] == "ready"
    assert found["optional"]["Snakemake"]["usable"] is True
    assert found["optional"]["lm-eval"]["usable"] is True


def test_doctor_prints_tables(workflow, capsys):
    code, output, _ = hwh(capsys, "doctor", "minimal", "--root", str(workflow))
    assert code == 0
    for title in ("This machine", "Optional parts", "Preset minimal: ready", "torch.compile"):
        assert title in output


def test_doctor_fails_for_an_asked_preset_that_cannot_run(workflow, minimal_preset, capsys):
    minimal_preset["data"]["sources"][0]["paths"] = ["nowhere/*.txt"]
    (workflow / "config" / "minimal.yaml").write_text(yaml.safe_dump(minimal_preset), encoding="utf-8")
    code, output, _ = hwh(capsys, "doctor", "minimal", "--json", "--root", str(workflow))
    assert code == 1
    assert json.loads(output)["presets"]["minimal"]["verdict"] == "not ready: local files"
    assert hwh(capsys, "doctor", "--json", "--root", str(workflow))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["largest"], "preset 'largest' is unknown"), (["absent.yaml"], "absent.yaml does not exist")],
)
def test_doctor_names_an_unknown_preset(workflow, capsys, arguments, named):
    code, _, error = hwh(capsys, "doctor", *arguments, "--root", str(workflow))
    assert code == 1
    assert error.startswith("error: ")
    assert named in error


@pytest.mark.parametrize("command", ["doctor", "estimate"])
def test_a_root_that_is_no_folder_is_named(workflow, capsys, command):
    code, _, error = hwh(capsys, command, "minimal", "--root", "nowhere")
    assert (code, error) == (1, "error: --root: nowhere is no folder; give the folder of the workflow\n")


@pytest.mark.parametrize(("option", "value"), [("--rope-theta", "inf"), ("--length", "inf"), ("--length", "nan")])
def test_a_band_of_no_finite_number_is_refused(capsys, option, value):
    sizes = {"--rope-theta": "1e6", "--head-dim": "128", "--length": "32768"} | {option: value}
    code, _, error = hwh(capsys, "band", *(word for pair in sizes.items() for word in pair))
    assert (code, error) == (1, f"error: {option}: {value} is not a finite number\n")


def test_doctor_outside_a_workflow_says_so(tmp_path, capsys):
    code, _, error = hwh(capsys, "doctor", "--root", str(tmp_path))
    assert code == 1
    assert "no preset lies in" in error


def test_optional_parts_say_what_is_missing():
    parts = doctor.optional_parts(a_machine(accelerators=(), compiler=None, versions={}))
    assert not any(usable for usable, _ in parts.values())
    assert "g++" in parts["torch.compile on the CPU"][1]
    assert "EXTRAS=gpu" in parts["fla kernels"][1]
    assert "EXTRAS=slurm" in parts["SLURM"][1]


# --------------------------------------------------------------------------- what a preset needs


def test_everything_there_is_ready(workflow, minimal_preset):
    needs = preset_needs(validate_preset(minimal_preset, "test"), a_machine(), workflow)
    assert verdict(needs) == "ready"
    assert {need.state for need in needs} == {"ok"}


def test_missing_packages_are_named(workflow, minimal_preset):
    state, detail = states(minimal_preset, a_machine(versions={"numpy": "1"}), workflow)["packages"]
    assert state == "missing"
    assert "torch" in detail
    assert "numpy" not in detail


def test_no_compiler_is_slower_not_missing(workflow, minimal_preset):
    state, detail = states(minimal_preset, a_machine(compiler=None), workflow)["torch.compile"]
    assert state == "slower"
    assert "C++" in detail
    assert "Python.h" not in detail


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accelerators": ()}, "no GPU is visible"),
        ({"accelerators": (), "cuda_build": None}, "CPU build"),
        ({"accelerators": (Accelerator("old card", GIB, (7, 5)),)}, "old card lacks bfloat16"),
    ],
)
def test_bfloat16_needs_a_fit_gpu(workflow, minimal_preset, changes, named):
    minimal_preset["hwh"]["scales"][0]["training"]["precision"] = "bfloat16"
    assert states(minimal_preset, a_machine(), workflow)["GPU"][0] == "ok"
    state, detail = states(minimal_preset, a_machine(**changes), workflow)["GPU"]
    assert state == "missing"
    assert named in detail


def test_the_largest_training_is_told_and_compared_with_the_gpus_here(workflow, minimal_preset):
    state, detail = states(minimal_preset, a_machine(accelerators=()), workflow)["GPU memory"]
    told = "largest training hwh/tiny/hwh_std_s0: 0.1 GiB on a GPU"
    assert (state, detail) == ("ok", f"{told}; no GPU here to compare with")
    assert states(minimal_preset, a_machine(), workflow)["GPU memory"] == ("ok", told)
    small = a_machine(accelerators=(Accelerator("small card", GIB // 2, (9, 0)),))
    state, detail = states(minimal_preset, small, workflow)["GPU memory"]
    assert state == "missing"
    assert detail.startswith("hwh/tiny/hwh_std_s0: this training needs about 0.1 GiB")
    assert "hwh.scales.tiny.training.micro_batch_tokens" in detail
    minimal_preset["hwh"]["scales"][0]["shape"]["attention_head_dim"] = 7
    with pytest.raises(ConfigError, match="attention_head_dim = 7"):
        states(minimal_preset, a_machine(), workflow)


def test_a_training_that_fits_no_known_card_is_told_without_any(workflow, minimal_preset):
    scale = minimal_preset["hwh"]["scales"][0]
    scale["shape"] |= {"hidden_size": 512, "intermediate_size": 1024, "num_layers": 32}
    scale["training"] |= {"tokens_per_step": 2**24, "steps": 100, "precision": "bfloat16"}
    state, detail = states(minimal_preset, a_machine(accelerators=()), workflow)["GPU memory"]
    assert state == "missing"
    assert "the largest card known here" in detail


def test_hybrids_on_a_gpu_need_fla(workflow, minimal_preset):
    minimal_preset["hwh"]["scales"][0]["training"]["precision"] = "bfloat16"
    without = a_machine(versions=dict.fromkeys(NEEDED, "1"))
    assert states(minimal_preset, without, workflow)["GDN kernels"][0] == "missing"
    minimal_preset["hwh"]["scales"][0]["models"][0]["architecture"] = "transformer"
    assert "GDN kernels" not in states(minimal_preset, without, workflow)


def test_downloads_are_named_until_they_are_there(workflow, minimal_preset):
    minimal_preset["evaluation"]["rows"] = {
        "kind": "pypi", "package": "rows", "version": "1", "filename": "rows.whl", "sha256": "a" * 64, "license": "MIT",
    }  # fmt: skip
    state, detail = states(minimal_preset, a_machine(), workflow)["package index"]
    assert state == "fetch"
    assert "evaluation rows" in detail
    done = workflow / "resources" / "evaluation" / f"rows-{'a' * 12}" / "rows.json"
    done.parent.mkdir(parents=True)
    done.write_text("{}", encoding="utf-8")
    assert states(minimal_preset, a_machine(), workflow)["downloads"] == ("ok", "all there")


@pytest.mark.parametrize("name", ["config", "single_gpu", "paper"])
def test_all_that_snakemake_fetches_is_named_and_nothing_once_it_lies_where_the_rules_put_it(name, tmp_path):
    """The rules are asked, so that a file that they name otherwise is not told as absent for ever."""
    told = ["--configfile", str(ROOT / "config" / f"{name}.yaml")]
    command = [sys.executable, "-m", "snakemake", "fetch", "--summary", "--nolock", *told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {line.split("\t")[0] for line in done.stdout.splitlines()}
    preset = load_preset(ROOT / "config" / f"{name}.yaml")
    wanted = [file for file in files if file.startswith("resources/") or file.endswith("tokenizer/tokenizer.json")]
    assert len(wanted) > len(preset.data.sources)
    needs = {need.what: need for need in preset_needs(preset, a_machine(), tmp_path)}
    assert "downloads" not in needs
    for file in wanted:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("", encoding="utf-8")
    needs = {need.what: need for need in preset_needs(preset, a_machine(), tmp_path)}
    assert needs["downloads"].state == "ok"


def test_hub_is_fetched_ahead_or_missing_when_switched_off(workflow, minimal_preset):
    minimal_preset["evaluation"]["rows"] = {"kind": "hub"}
    assert states(minimal_preset, a_machine(), workflow)["model hub"][0] == "fetch"
    state, detail = states(minimal_preset, a_machine(), workflow, offline=True)["model hub"]
    assert state == "missing"
    assert "HF_HUB_OFFLINE" in detail


def test_small_memory_and_disk_are_missing(workflow, minimal_preset):
    rules = workflow / "workflow" / "rules"
    rules.mkdir(parents=True)
    (rules / "a.smk").write_text("mem_mb=2000,\nmem_mb = 8000,\n", encoding="utf-8")
    found = states(minimal_preset, a_machine(memory=4 * GIB, disk_free=10), workflow)
    assert found["memory"][0] == "missing"
    assert "asks for 7.5 GiB" in found["memory"][1]
    assert found["disk"][0] == "missing"


def test_disk_grows_with_text_models_and_checkpoints(minimal_preset):
    least = disk_bytes(validate_preset(minimal_preset, "test"))
    minimal_preset["hwh"]["scales"][0]["training"]["keep_checkpoints"] = 5
    more = disk_bytes(validate_preset(minimal_preset, "test"))
    minimal_preset["data"]["minimum_bytes"] = 10**9
    assert least < more < disk_bytes(validate_preset(minimal_preset, "test")) - 10**9


# --------------------------------------------------------------------------- the machine


def test_control_group_limits_cores_and_memory(monkeypatch):
    texts = {
        "/proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n",
        "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "/sys/fs/cgroup/cpu.max": "100000 100000\n",
    }
    monkeypatch.setattr(machine.Path, "is_file", lambda path: str(path) in texts)
    monkeypatch.setattr(machine.Path, "read_text", lambda path, encoding=None: texts[str(path)])
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.usable_cores() == 1
    assert machine.memory_bytes() == (4 * GIB, 4 * GIB)
    texts["/sys/fs/cgroup/memory.max"] = "max\n"
    texts["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
    assert machine.usable_cores() == 8
    assert machine.memory_bytes() == (32 * GIB, 16 * GIB)


def test_compiler_of_the_environment_comes_first(monkeypatch, tmp_path):
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "my-c++")
    assert machine.find_compiler() == str(compiler)
    monkeypatch.setenv("CXX", "absent-c++")
    assert machine.find_compiler() is None


# --------------------------------------------------------------------------- report


@pytest.fixture
def claims(tmp_path):
    rows = [
        {
            "id": "N1",
            "statement": "r* of the formula",
            "paper": 21.27,
            "ours": 21.2711,
            "ci": None,
            "verdict": "reproduced",
        },
        {
            "id": "C5",
            "statement": "shift [QK-norm]",
            "paper": "> 0",
            "ours": -0.25,
            "ci": [-1, 1],
            "verdict": "inconclusive",
        },
    ]
    (tmp_path / "claims.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "claims.md").write_text("# Claims", encoding="utf-8")
    return tmp_path


def test_report_prints_claims_counts_and_paths(claims, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, output, _ = hwh(capsys, "report", str(claims))
    assert code == 0
    for text in ("N1", "21.27", "shift [QK-norm]", "-0.25", "1 reproduced, 1 inconclusive"):
        assert text in output
    assert f"Claims: {claims / 'claims.md'}\n" in output
    assert "Report:" not in output
    (claims / "report.html").write_text("", encoding="utf-8")
    assert hwh(capsys, "report", str(claims))[1].endswith(f"Report: {claims / 'report.html'}\n")


def test_report_shows_one_verdict_when_asked(claims, capsys):
    output = hwh(capsys, "report", str(claims), "--verdict", "inconclusive")[1]
    assert "C5" in output
    assert "N1" not in output


@pytest.mark.parametrize("content", [None, "{", "[1]", '[{"id": "N1"}]', '{"id": "N1"}'])
def test_report_without_a_ledger_is_refused(tmp_path, content):
    path = tmp_path / "claims.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"claims\.json"):
        report.read_claims(path)
