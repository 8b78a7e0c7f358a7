"""Parts of benchmarks that a CPU can run, at their least size."""

from __future__ import annotations

import torch

from benchmarks import probe
from benchmarks.train_profile import kernel_times


def test_both_paths_of_a_cpu_are_measured():
    figures = {figure["id"]: figure for figure in probe.cpu_figures(quick=True)}
    assert set(figures) == {"probe.cpu_smollm2_sample_s", "probe.cpu_eager_sample_s"}
    assert all(figure["value"] > 0 for figure in figures.values())
    assert figures["probe.cpu_eager_sample_s"]["detail"]["backend"] == "torch-eager"
    assert figures["probe.cpu_smollm2_sample_s"]["detail"]["backend"] in ("torch-eager", "cpu-native")


def test_time_of_a_training_step_by_kernel():
    """The longest first, in milliseconds a step; launches are counted a step too."""
    product = torch.randn(200, 200)
    rows = kernel_times(lambda number: product @ product, first=0, steps=4)
    products = next(row for row in rows if row["kernel"] == "aten::mm")
    assert products["launches"] == 1
    assert [row["ms"] for row in rows] == sorted((row["ms"] for row in rows), reverse=True)
