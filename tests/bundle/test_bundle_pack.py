"""What is packed: pinned wheels for another platform, the code of a commit, the data behind Snakemake's outputs."""

from __future__ import annotations

import os
import subprocess
from itertools import chain
from types import SimpleNamespace

import pytest

from bundle import code, pack, wheels
from bundle.errors import BundleError
from hwh_core.config import load_preset


def test_a_newer_manylinux_tag_stands_for_older_ones():
    tags = wheels.platform_tags("manylinux_2_28_x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert not any("2_29" in tag or "aarch64" in tag for tag in tags)
    assert "manylinux2014_aarch64" not in wheels.platform_tags("manylinux_2_12_aarch64")
    assert wheels.platform_tags("macosx_14_0_arm64") == ["macosx_14_0_arm64"]


def test_pins_are_those_of_the_repository_and_torch_can_be_set_apart():
    pins = wheels.read_pins(pack.ROOT / "requirements", ["run", "gpu"])
    assert len(pins) == len(set(pins)) > 100
    others, torch = wheels.split_torch(pins)
    assert [pin.split("==")[0] for pin in torch] == ["torch"]
    assert "fla-core==0.6.0" in others
    assert not any(pin.startswith("torch==") for pin in others)
    assert wheels.split_torch(["nvidia-nccl-cu13==1", "triton==3", "torchmetrics==1"])[0] == ["torchmetrics==1"]


def test_unknown_layers_and_loose_versions_are_refused(tmp_path):
    (tmp_path / "run.txt").write_text("numpy>=2\n")
    with pytest.raises(BundleError, match="'numpy>=2' is no exact version"):
        wheels.read_pins(tmp_path, ["run"])
    with pytest.raises(BundleError, match="extra 'gpus' has no list"):
        wheels.read_pins(tmp_path, ["gpus"])


def fake_pip(monkeypatch, missing, built):
    """A pip whose index lacks `missing` as a wheel and which builds `built` from source; returns the calls."""
    calls = []

    def run(*arguments):
        calls.append(arguments)
        if arguments[0] == "download" and missing in arguments:
            error = f"ERROR: Could not find a version\nERROR: No matching distribution found for {missing}\n"
            return SimpleNamespace(returncode=1, stdout="", stderr=error)
        if arguments[0] == "wheel":
            (wheels.Path(arguments[arguments.index("--wheel-dir") + 1]) / built).touch()
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(wheels, "_pip", run)
    return calls


def test_a_package_without_a_wheel_is_built_when_it_is_pure_python(tmp_path, monkeypatch):
    calls = fake_pip(monkeypatch, "b==2", "b-2-py3-none-any.whl")
    wheels.download_wheels(["a==1", "b==2"], tmp_path, "3.12", "manylinux_2_28_x86_64")
    assert [call[0] for call in calls] == ["download", "wheel", "download"]
    assert calls[-1][-1] == "a==1"
    assert "b==2" not in calls[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["b-2-py3-none-any.whl"]


def test_a_wheel_that_fits_this_machine_only_is_refused(tmp_path, monkeypatch):
    fake_pip(monkeypatch, "b==2", "b-2-cp311-cp311-linux_x86_64.whl")
    with pytest.raises(BundleError, match="fits this machine only"):
        wheels.download_wheels(["b==2"], tmp_path, "3.12", "manylinux_2_28_x86_64")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (root / "script.sh").write_text("#!/bin/sh\n")
    (root / "script.sh").chmod(0o755)
    (root / "text").write_text("committed\n")
    git("add", ".")
    git("commit", "-m", "first")
    return root


def test_code_is_that_of_the_commit_with_the_times_of_the_working_tree(repository, tmp_path):
    os.utime(repository / "text", ns=(1, 1_500_000_000_000_000_007))
    assert code.uncommitted(repository) == []
    entries = code.export_code(repository, tmp_path)
    assert set(entries) == {"script.sh", "text"}
    assert entries["text"].mtime_ns == 1_500_000_000_000_000_007
    assert os.access(entries["script.sh"].source, os.X_OK)
    (repository / "text").write_text("edited\n")
    (repository / "untracked").touch()
    assert code.uncommitted(repository) == ["text"]
    assert entries["text"].source.read_text() == "committed\n"


def test_data_are_the_folders_and_files_behind_the_outputs(repository, tmp_path):
    outputs = {
        "resources/sources/books.jsonl.zst": ["resources/sources/books.jsonl.zst.manifest.json"],
        "resources/pretrained/m/source.json": ["resources/pretrained/m/model.safetensors"],
        "results/p/data/t/train/index.json": ["results/p/data/t/train/tokens.bin"],
    }
    outputs["results/p/data/documents/held_out.jsonl.zst"] = []
    outputs["resources/samples/nq-1.parquet"] = ["resources/samples/nq-1.parquet.manifest.json"]
    others = ["resources/sources/other.jsonl.zst", "resources/downloads/big.whl", "resources/pretrained/m/.x.tmp"]
    others.append("resources/samples/longmemeval-1.json")
    others.append("results/p/data/documents/train.jsonl.zst")
    for name in [*outputs, *chain(*outputs.values()), *others, "my.txt", "questions.json"]:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).touch()
    sources = [
        SimpleNamespace(kind="files", patterns=lambda: ["*.txt", "text", str(tmp_path / "else*")]),
        SimpleNamespace(kind="git"),
    ]
    behavior = SimpleNamespace(sample_source=lambda: ("squad", ("questions.json", str(tmp_path / "elsewhere.json"))))
    preset = SimpleNamespace(data=SimpleNamespace(sources=sources), pretrained=SimpleNamespace(behavior=behavior))
    found = pack.data_files(repository, preset, list(outputs))
    own = {"my.txt", "questions.json"}
    assert found == sorted([*outputs, *chain(*outputs.values()), *own])
    assert pack.data_files(repository, preset, list(outputs), with_sources=False) == sorted({*found} - own)
    with pytest.raises(BundleError, match=r"resources/evaluation/rows\.json is missing"):
        pack.data_files(repository, preset, ["resources/evaluation/rows.json"])


def test_targets_cover_every_tokenizer_and_model_of_every_preset():
    for name in ("smoke", "laptop", "variants", "single_gpu", "paper"):
        preset = load_preset(pack.ROOT / pack.preset_file(name))
        targets = pack.data_targets(preset)
        assert targets[0] == "fetch"
        for tokenizer in preset.tokenizers:
            for split in ("train", "held_out"):
                assert f"results/{name}/data/{tokenizer.name}/{split}/index.json" in targets
        assert f"results/{name}/data/{preset.hwh.scales[0].tokenizer}/niah_prompts/niah.parquet" in targets
    with pytest.raises(BundleError, match="'big' is unknown; expected one of laptop, paper"):
        pack.preset_file("big")


def test_summary_of_snakemake_is_read():
    text = "Building DAG of jobs...\noutput_file\tdate\trule\na/b\t-\tfetch\nc\tThu\tbuild\n"
    assert pack.made_files(text) == ["a/b", "c"]
    with pytest.raises(BundleError, match="no table"):
        pack.made_files("error\n")


def test_what_a_plan_reads_is_found():
    plan = "rule y:\n    input: a/b, c\n    output: d\n\n    rule x:\n        input: c, e f\n    reason: input: no\n"
    assert pack.needed_files(plan) == ["a/b", "c", "e f"]


def test_changes_that_are_not_committed_are_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pack, "uncommitted", lambda root: ["hwh_core/rope.py"])
    assert pack.main(["--preset", "smoke", "--output", str(tmp_path / "out")]) == 1
    assert "1 files differ from HEAD (hwh_core/rope.py)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--python-version", "312"], "--python-version '312'"),
    (["--without", "numpy"], "only torch can be left out"),
])  # fmt: skip
def test_wrong_values_are_told(arguments, message, capsys, tmp_path):
    assert pack.main(["--preset", "smoke", "--output", str(tmp_path / "out"), *arguments]) == 1
    assert message in capsys.readouterr().err
