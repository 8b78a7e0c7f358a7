"""Launch configurations of flash-linear-attention's kernels: choice by card, files, harvesting."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hwh_kernels import fla_configs
from hwh_kernels.fla_configs import FOLDER, KERNELS, prepare_fla, shipped_folder
from hwh_kernels.fla_configs.entries import fallback_key, key_hash, read, render
from hwh_kernels.fla_configs.harvest import configuration, tuner_of, winners, write

CUDA = torch.device("cuda", 0)
FOLDERS = sorted(path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__")
# Values that the library's candidates for Hopper cards have (version 0.6.0).
CANDIDATES = {
    "l2norm_fwd_kernel": ({"BT": {8, 16, 32, 64, 128}}, {1, 2, 4, 8, 16}, {3}),
    "l2norm_bwd_kernel": ({"BT": {8, 16, 32, 64, 128}}, {1, 2, 4, 8, 16}, {3}),
    "chunk_local_cumsum_scalar_kernel": ({}, {1, 2, 4, 8}, {3}),
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": ({"BK": {32, 64}}, {1, 2, 4}, {3}),
    "recompute_w_u_fwd_kernel": ({}, {2, 4, 8}, {2, 3, 4}),
    "prepare_wy_repr_bwd_kernel": ({}, {2, 4}, {2, 3, 4}),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": ({"BV": {32, 64}}, {2, 4}, {2, 3, 4}),
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64": ({"BV": {32, 64}}, {2, 4}, {2, 3, 4}),
    "chunk_fwd_kernel_o": ({"BK": {32, 64, 128}, "BV": {32, 64, 128}}, {2, 4, 8}, {3}),
    "chunk_bwd_kernel_dv_local": ({}, {2, 4}, {2, 3, 4}),
    "chunk_bwd_kernel_dqkwg": ({}, {2, 4}, {2, 3, 4}),
}


@pytest.fixture
def environment(monkeypatch):
    """Neither variable set, whatever a test sets is undone."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if "FLA_" not in name})
    return os.environ


@pytest.fixture
def card(monkeypatch):
    def use(name, capability):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    return use


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_shipped_folder_holds_every_kernel_with_a_fallback_first(folder, kernel):
    data = json.loads((folder / f"{kernel}.json").read_text(encoding="utf-8"))
    assert data["kernel_name"] == kernel
    blocks, warps, stages = CANDIDATES[kernel]
    entries = read(folder / f"{kernel}.json")
    assert list(data["autotune_entries"]) == [key_hash(key) for key, _ in entries]
    general = [list(key) == fallback_key(key) for key, _ in entries]
    assert general == sorted(general, reverse=True), "a measured entry precedes a fallback and would win fuzzy matches"
    covered = {key_hash(key) for (key, _), fallback in zip(entries, general, strict=True) if fallback}
    assert {key_hash(fallback_key(key)) for key, _ in entries} == covered
    for _, config in entries:
        assert {name: {value} for name, value in config["kwargs"].items()}.keys() == blocks.keys()
        assert all(value in blocks[name] for name, value in config["kwargs"].items())
        assert config["num_warps"] in warps
        assert config["num_stages"] in stages
        assert config["num_ctas"] == 1


def test_every_folder_of_a_card_has_no_other_files():
    for folder in FOLDERS:
        assert {path.stem for path in folder.iterdir()} == set(KERNELS), folder


def test_the_forward_kernel_has_fallbacks_with_and_without_states():
    keys = [key for key, _ in read(FOLDER / "hopper" / "chunk_gated_delta_rule_fwd_kernel_h_blockdim64.json")]
    assert sorted(sum(entry == "torch.float32" for entry in key) for key in keys) == [1, 2, 3]


def test_a_folder_is_chosen_by_name_then_by_architecture(tmp_path):
    for name in ("NVIDIA_H200", "hopper"):
        (tmp_path / name).mkdir()
    assert shipped_folder("NVIDIA H200", (9, 0), tmp_path) == tmp_path / "NVIDIA_H200"
    assert shipped_folder("NVIDIA H100 80GB HBM3", (9, 0), tmp_path) == tmp_path / "hopper"
    assert shipped_folder("NVIDIA A100-SXM4-80GB", (8, 0), tmp_path) is None


def test_variables_are_set_before_fla_is_imported(environment, card):
    card("NVIDIA H100 PCIe", (9, 0))
    first = prepare_fla(CUDA)
    assert first.source == "shipped"
    assert environment["FLA_CONFIG_DIR"] == str(FOLDER / first.folder)
    assert environment["FLA_CACHE_MODE"] == "fuzzy"
    assert prepare_fla(CUDA) == first


@pytest.mark.parametrize("variable", ["FLA_CONFIG_DIR", "FLA_CACHE_MODE"])
def test_variables_of_the_user_stay(environment, card, variable):
    card("NVIDIA H200", (9, 0))
    environment[variable] = "disabled"
    before = dict(environment)
    assert prepare_fla(CUDA).source == "user"
    assert environment == before


@pytest.mark.parametrize("device", [torch.device("cpu"), CUDA])
def test_other_devices_tune_as_ever(environment, card, device):
    card("NVIDIA A100-SXM4-80GB", (8, 0))
    before = dict(environment)
    assert prepare_fla(device).source == "autotuning"
    assert environment == before


def test_an_fla_that_is_imported_already_is_switched_over(environment, card, monkeypatch):
    card("NVIDIA H200", (9, 0))
    cache = SimpleNamespace(FLA_CACHE_MODE="disabled", FlaCacheMode=lambda mode: f"mode {mode}")
    monkeypatch.setitem(sys.modules, "fla.ops.utils.cache", cache)
    prepare_fla(CUDA)
    assert cache.FLA_CACHE_MODE == "mode fuzzy"


def test_hash_and_fallback_of_a_key():
    key = [7, 64, True, "torch.bfloat16", 0.5]
    assert fallback_key(key) == [0, 0, True, "torch.bfloat16", 0]
    assert key_hash((1, False, "torch.float32")) == hashlib.md5(b'[1,false,"torch.float32"]').hexdigest()


def launch(warps, **blocks):
    return {
        "kwargs": blocks,
        "num_warps": warps,
        "num_stages": 2,
        "num_ctas": 1,
        "maxnreg": None,
        "ir_override": None,
    }


def test_measured_entries_follow_shipped_fallbacks(tmp_path):
    shipped = tmp_path / "shipped.json"
    shipped.write_text(render("kernel", None, [([0, "a"], launch(8))], None), encoding="utf-8")
    measured = [
        ([7, "a"], launch(1)),
        ([6, "a"], launch(2)),
        ([5, "b"], launch(4)),
        ([4, "b"], launch(4)),
        ([3, "b"], launch(1)),
    ]
    path = tmp_path / "kernel.json"
    path.write_text(render("kernel", "3.6.0", measured, shipped), encoding="utf-8")
    assert read(path) == [
        ([0, "a"], launch(8)),  # the shipped one
        ([0, "b"], launch(4)),  # what won most often
        ([3, "b"], launch(1)),
        ([4, "b"], launch(4)),
        ([5, "b"], launch(4)),
        ([6, "a"], launch(2)),
        ([7, "a"], launch(1)),
    ]


class Config:
    def __init__(self, warps, **blocks):
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = blocks, warps, 2, 1, None


def test_winners_are_read_through_the_decorators(monkeypatch):
    tuner = SimpleNamespace(cache={(7, "torch.bfloat16"): Config(4, BK=64)}, configs=[], fn=None)
    monkeypatch.setitem(sys.modules, "some.kernels", SimpleNamespace(kernel=SimpleNamespace(fn=tuner)))
    assert winners({"kernel": "some.kernels"}) == {"kernel": [([7, "torch.bfloat16"], launch(4, BK=64))]}
    assert configuration(Config(4, BK=64)) == launch(4, BK=64)
    with pytest.raises(ValueError, match="not tuned"):
        tuner_of(SimpleNamespace(fn=SimpleNamespace(fn=None)))


def test_nothing_is_written_when_a_kernel_was_not_tuned(tmp_path):
    output = tmp_path / "card"
    with pytest.raises(ValueError, match="nothing was tuned for other"):
        write({"kernel": [([1], launch(1))], "other": []}, output, None)
    assert not output.exists()
    write({"kernel": [([1], launch(1))]}, output, None)
    assert [key for key, _ in read(output / "kernel.json")] == [[0], [1]]


def test_the_work_can_be_done_in_parts(tmp_path):
    write({"kernel": [([6], launch(1)), ([7], launch(1))]}, tmp_path, None)
    write({"kernel": [([7], launch(4)), ([8], launch(4))]}, tmp_path, None)
    path = tmp_path / "kernel.json"
    assert read(path) == [([0], launch(4)), ([6], launch(1)), ([7], launch(4)), ([8], launch(4))]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"triton_version": "0.1"}), encoding="utf-8")
    write({"kernel": [([9], launch(2))]}, tmp_path, None)
    assert [key for key, _ in read(path)] == [[0], [9]]


def test_the_command_line_refuses_a_machine_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "hwh_kernels.fla_configs", "harvest", "--shapes", "7x64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 1
    assert "found on a GPU" in done.stderr
    done = subprocess.run([*command, "7by64"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert "expected <heads>x<head_dim>" in done.stderr


def test_the_files_are_part_of_the_package():
    assert fla_configs.__name__ == "hwh_kernels.fla_configs"
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"hwh_kernels.fla_configs"' in text
    assert 'hwh_kernels = ["fla_configs/*/*.json"]' in text
