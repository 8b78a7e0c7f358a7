"""Fixtures of all tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Without a GPU, Triton kernels run in Triton's interpreter. Triton reads this where it and its kernels are first
# imported, so it holds for the whole process and for those that tests start; torch is not imported to find out.
if importlib.util.find_spec("triton") is not None and not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workflows first: whole files go to a process, and the longest must not begin last."""
    items.sort(key=lambda item: "workflow" not in item.path.parts)


@pytest.fixture(scope="session")
def mount_disk() -> Iterator[Callable[[Path, str], bool]]:
    """Mounts a file system in memory with options (size=1m) on a folder; False where mounting is not permitted."""
    mounted: list[Path] = []

    def mount(folder: Path, options: str) -> bool:
        if os.geteuid() or shutil.which("mount") is None:
            return False
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        mounted.append(folder)
        return True

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def _shape() -> dict[str, Any]:
    return {
        "num_layers": 4,
        "hidden_size": 32,
        "intermediate_size": 80,
        "attention_head_dim": 4,
        "gate": False,
    }


def _training() -> dict[str, Any]:
    return {
        "steps": 4,
        "tokens_per_step": 128,
        "warmup_steps": 1,
        "optimizer": {"kind": "adamw", "learning_rate": 0.001},
        "precision": "float32",
        "checkpoint_every_steps": 2,
    }


@pytest.fixture
def minimal_preset() -> dict[str, Any]:
    """The least complete preset, as plain data that a test may change."""
    return {
        "preset": "minimal",
        "description": "Least preset of the tests.",
        "seed": 0,
        "data": {
            "sources": [{"kind": "files", "name": "prose", "paths": ["text/*.txt"], "license": "CC0-1.0"}],
            "minimum_bytes": 1000,
            "held_out_fraction": 0.1,
            "held_out_prose_source": "prose",
        },
        "tokenizers": [{"kind": "bpe", "name": "bpe512", "vocab_size": 512, "training_bytes": 1000}],
        "controlled": {
            "tokenizer": "bpe512",
            "shape": _shape(),
            "training": _training(),
            "models": [{"name": "base", "rope_theta": 10000.0, "length": 32, "qk_norm": True, "seed": 0}],
            "probe": {"num_samples": 2, "num_queries": 4, "eval_length_factors": [0.5, 1.0, 2.0]},
        },
        "band": {},
        "synthetic": {"num_seeds": 1, "rope_thetas": [10000.0]},
        "pretrained": {
            "models": [],
            "probe": {"length": 32, "num_samples": 2, "num_queries": 4},
            "behavior": {
                "length": 32,
                "num_samples": 2,
                "num_queries": 4,
                "windows": [8],
                "sinks": [1],
                "default_window": 8,
                "default_sinks": 1,
                "samples": "synthetic",
            },
        },
        "hwh": {
            "scales": [
                {
                    "name": "tiny",
                    "claim_scale": "none",
                    "tokenizer": "bpe512",
                    "length": 32,
                    "qk_norm": True,
                    "shape": {**_shape(), "gate": True, "gdn_head_dim": 4},
                    "training": _training(),
                    "models": [{"name": "hwh_std_s0", "architecture": "hwh_std", "seed": 0}],
                }
            ]
        },
        "evaluation": {
            "rows": {"kind": "files", "path": "rows"},
            "tasks": [{"name": "piqa"}],
            "held_out_perplexity": {"max_documents": 2, "max_bytes": 1000, "window": 32},
            "niah": {
                "variant": "single_2",
                "haystack": "held_out_prose",
                "lengths": [64],
                "depths": [0, 100],
                "samples_per_cell": 1,
                "max_new_tokens": 8,
                "metric": "teacher_forced_exact",
            },
            "batch_tokens": 128,
        },
        "targets": {"figures": [3], "tables": [3, 4]},
    }
