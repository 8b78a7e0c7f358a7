"""The CPU part of the probe's benchmark, at its least size."""

from __future__ import annotations

from benchmarks import probe


def test_both_paths_of_a_cpu_are_measured():
    figures = {figure["id"]: figure for figure in probe.cpu_figures(quick=True)}
    assert set(figures) == {"probe.cpu_smollm2_sample_s", "probe.cpu_eager_sample_s"}
    assert all(figure["value"] > 0 for figure in figures.values())
    assert figures["probe.cpu_eager_sample_s"]["detail"]["backend"] == "torch-eager"
    assert figures["probe.cpu_smollm2_sample_s"]["detail"]["backend"] in ("torch-eager", "cpu-native")
