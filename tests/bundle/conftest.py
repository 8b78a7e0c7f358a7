"""Fixtures of the bundle's tests: the repository's root on the path, and a tiny tree to pack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a program, compressible data, data that are compressed already, and an empty file."""
    folder = tmp_path / "tree"
    (folder / "results/tiny/data").mkdir(parents=True)
    (folder / "config").mkdir()
    (folder / "config/tiny.yaml").write_text("preset: tiny\n")
    (folder / "results/tiny/data/tokens.bin").write_bytes(bytes(range(256)) * 400)
    (folder / "results/tiny/data/documents.jsonl.zst").write_bytes(b"pretend" * 300)
    (folder / "empty").touch()
    program = folder / "program.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return folder
