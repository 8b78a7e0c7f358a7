"""The probe of our own models on a GPU: the numbers of the CPU, and its cost at the sizes of single_gpu."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import yaml
from probe_helpers import HYBRID_SHAPE, controlled_model

from hwh_core.modeling import build_model
from hwh_core.probes.hybrid_capture import GroupWeights, stream_weights
from hwh_core.probes.influence import HeadProfiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SINGLE_GPU = Path(__file__).resolve().parents[2] / "config" / "single_gpu.yaml"


@pytest.mark.parametrize("architecture", ["hwh_std", "hwh_swa", "hwh_std_r"])
def test_weights_are_those_of_the_cpu(architecture):
    model = controlled_model(architecture=architecture, **HYBRID_SHAPE, sliding_window=48)
    ids = torch.randint(5, 90, (2, 200), generator=torch.Generator().manual_seed(0))
    found: dict[str, list[GroupWeights]] = {"cpu": [], "cuda": []}
    for device, collected in found.items():
        stream_weights(model.to(device), ids, 40, collected.append)
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        assert there.error < 1e-4
        assert (there.weights.cpu() - here.weights).abs().max() < 1e-3 * here.weights.abs().max()


@pytest.mark.parametrize("architecture", ["hwh_std", "gdn", "transformer"])
def test_windows_of_single_gpu_take_seconds_and_little_memory(architecture):
    preset = yaml.safe_load(SINGLE_GPU.read_text(encoding="utf-8"))
    scale, probe = preset["hwh"]["scales"][0], preset["hwh"]["probe"]
    model = build_model(scale["shape"], architecture, 10000.0, True, scale["length"], 16384, 0).cuda().eval()
    ids = torch.randint(0, 16384, (8, scale["length"]))
    profiles: dict[tuple[int, int], HeadProfiles] = {}

    def add(found: GroupWeights) -> None:
        own = profiles.setdefault((found.layer, found.place), HeadProfiles(found.group.heads, scale["length"]))
        for weights in found.weights:
            own.add(weights, found.query_positions)

    stream_weights(model, ids, probe["num_queries"], add)
    torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    stream_weights(model, ids, probe["num_queries"], add)
    seconds = (time.monotonic() - started) * probe["num_samples"] / len(ids)
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"{architecture}: {seconds:.2f} s for {probe['num_samples']} windows, {memory:.2f} GiB")
    assert seconds < 10
    assert memory < 8
