"""Parts of benchmarks that a CPU can run, at their least size."""

from __future__ import annotations

import pytest
import torch

from benchmarks import data, probe
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


def test_tokenizing_is_measured_beside_datasets_on_any_folder(tmp_path):
    """Both make as many tokens; documents are pieces of the files, none longer than a paragraph needs."""
    (tmp_path / "deep").mkdir()
    paragraph = "A sentence about rivers and bridges, with a number: {}. " * 8
    for name in ("one.txt", "deep/two.md"):
        text = "\n\n".join(paragraph.replace("{}", str(number)) for number in range(120))
        (tmp_path / name).write_text(text, encoding="utf-8")
    pieces = list(data.documents(tmp_path, 60_000))
    assert 60_000 <= sum(len(piece["text"]) for piece in pieces) < 66_000
    assert max(len(piece["text"]) for piece in pieces) < 5200
    assert sum(len(piece["text"]) >= 4600 for piece in pieces) >= len(pieces) - 2, "but the last one of a file"
    found = {figure["id"]: figure for figure in data.measure(tmp_path, None, 60_000, 1, 280)}
    assert set(found) == {"data.tokenize_tokens_per_second_core", "data.tokenize_over_datasets"}
    assert all(figure["value"] > 0 for figure in found.values())
    with pytest.raises(ValueError, match=r"no \.txt or \.md file"):
        data.measure(tmp_path / "absent", None, 60_000, 1, 280)
