"""Side processes that compile Gated DeltaNet's kernels beforehand: which are started, with what, and which are not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata

import pytest

from hwh_core.architectures import layers_of_shape
from hwh_core.training import kernel_warm_up

SHAPE = {
    "num_layers": 8, "hidden_size": 64, "intermediate_size": 128, "attention_head_dim": 8, "gdn_head_dim": 8,
    "conv_size": 4, "gate": True,
}  # fmt: skip


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Commands that would have been started, with fla and Triton taken for installed and an empty cache of Triton."""
    commands = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    return commands


def test_one_process_a_shape_of_heads(started):
    layers = layers_of_shape(SHAPE, "hwh_std")
    shapes = kernel_warm_up.head_shapes(layers)
    assert len(shapes) > 1
    kernel_warm_up.start_warm_up(layers, 4, 128, "bfloat16")
    assert [command[3] for command in started] == [f"{heads}x{head_dim}" for heads, head_dim in shapes]
    assert started[0][:3] == [sys.executable, "-m", "hwh_kernels.gated_delta_rule_check"]
    assert started[0][4:10] == ["--batch", "4", "--length", "128", "--dtype", "bfloat16"]


def test_what_was_compiled_before_is_not_compiled_again(started):
    layers = layers_of_shape(SHAPE, "gdn")
    kernel_warm_up.start_warm_up(layers, 4, 128, "bfloat16")
    (command,) = started
    marker = kernel_warm_up.cache_folder() / command[command.index("--marker") + 1]
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert kernel_warm_up.start_warm_up(layers, 4, 128, "bfloat16") == []
    assert len(started) == 1
    kernel_warm_up.start_warm_up(layers, 4, 256, "bfloat16")
    assert len(started) == 2


def test_nothing_is_started_without_gated_deltanet_or_the_packages(started, monkeypatch):
    assert kernel_warm_up.start_warm_up(layers_of_shape(SHAPE, "transformer"), 4, 128, "bfloat16") == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernel_warm_up.start_warm_up(layers_of_shape(SHAPE, "gdn"), 4, 128, "bfloat16") == []
    assert started == []


def test_the_command_says_what_it_lacks():
    command = [sys.executable, "-m", "hwh_kernels.gated_delta_rule_check"]
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": ""}
    done = subprocess.run([*command, "7x8"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the kernels run on a GPU; torch sees none here\n"
    wrong = subprocess.run([*command, "seven"], capture_output=True, text=True, env=environment, check=False)
    assert "expected <heads>x<head_dim>" in wrong.stderr
