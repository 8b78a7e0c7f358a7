"""The cold-start benchmark end to end at its smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.cold_start", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_quick_form_runs_on_a_cpu(tmp_path):
    finished = run("--quick", "--output", str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    written = json.loads((tmp_path / "cold_start.json").read_text(encoding="utf-8"))
    assert written["command"] == "python -m benchmarks.cold_start --quick"
    figures = {figure["id"]: figure for figure in written["figures"]}
    total = figures["gdn.cold_start_s"]
    parts = [figures[f"gdn.cold_start_s.{name}"]["value"] for name in ("settings", "import", "model", "first_step")]
    assert sum(parts) == pytest.approx(total["value"], abs=0.01), "the parts do not make up the whole"
    first, second = total["detail"]["losses"]
    assert first != second
    assert total["detail"]["delta_net_check"] is None
    assert "gdn.cold_start_s.import_fla" not in figures


def test_without_a_gpu_it_says_what_it_needs(tmp_path):
    finished = run("--output", str(tmp_path))
    assert finished.returncode == 1
    assert "needs a CUDA device" in finished.stderr
    assert not list(tmp_path.iterdir())


def test_a_process_that_fails_leaves_no_result(tmp_path):
    broken = tmp_path / "sitecustomize.py"
    broken.write_text("import sys\nif '--fresh' in sys.orig_argv: sys.exit(3)\n", encoding="utf-8")
    finished = run("--quick", "--output", str(tmp_path / "results"), PYTHONPATH=str(tmp_path))
    assert finished.returncode == 1
    assert "ended with code" in finished.stderr
    assert not (tmp_path / "results").exists()
