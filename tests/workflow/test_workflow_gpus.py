"""Snakemake on a machine with two GPUs, which a made-up nvidia-smi lists; torch is told that it may use them."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from hwh_core import devices

pytestmark = pytest.mark.workflow


@pytest.fixture
def two_gpus(checkout, tmp_path, monkeypatch):
    """UUIDs of two GPUs, and a function that sets the MiB of each; their lock files are removed afterwards."""
    names = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"

    def of(mebibytes: int) -> None:
        listing = "".join(f"GPU {n}: NVIDIA H200 (UUID: {name})\\n" for n, name in enumerate(names))
        query = "".join(f"{name}, {mebibytes}, NVIDIA H200\\n" for name in names)
        program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && printf '{listing}' || printf '{query}'\n")
        program.chmod(0o755)

    of(143771)
    source = checkout.code / "hwh_core" / "devices.py"
    text = source.read_text()
    assert text.count("or not torch_is_for_cuda()") == 1
    source.write_text(text.replace("or not torch_is_for_cuda()", ""))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield names, of
    for path in [path for name in names for path in devices.lock_folder().glob(f"{name}.*")]:
        path.unlink()


def test_two_gpus_get_a_training_each(checkout, two_gpus):
    """The second device is taken only while the first one is busy."""
    names, _ = two_gpus
    models = ("theta1e4_L64_s0", "theta1e4_L64_noqknorm_s0")
    done = checkout.run(*(f"results/smoke/controlled/{model}/metrics.json" for model in models))
    assert done.returncode == 0, done.stderr[-4000:]
    assert 'gpu=Resource("gpu", 2)' in done.stderr
    owners = [json.loads((devices.lock_folder() / f"{name}.lock").read_text())["pid"] for name in names]
    assert len(set(owners)) == 2


def test_gpus_that_are_too_small_are_refused_before_the_first_job(checkout, two_gpus):
    _, of = two_gpus
    of(800)
    done = checkout.run()
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "hwh/tiny/gdn_s0: this training needs about 0.1 GiB of GPU memory, and NVIDIA H200 has 0.8 GiB" in output
    assert "no value of hwh.scales.tiny.training.micro_batch_tokens fits" in output
    assert "(5 more do not fit)" in output
    assert "Traceback" not in output
    assert not list((checkout.folder / "results").rglob("*.log"))
    planned = checkout.run("-n")
    assert planned.returncode == 0, planned.stderr[-3000:]
