"""Runs of Snakemake itself on the smoke preset, in a copy of the repository and a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COPIED = ("hwh_core", "kernels", "scripts", "workflow", "config", "tests/fixtures", "pyproject.toml")


@dataclass
class Checkout:
    """A copy of the code (`code`) and the working folder (`folder`) in which Snakemake runs."""

    code: Path
    folder: Path

    def command(self, *arguments: str, preset: str | None = "smoke", cores: int = 2) -> list[str]:
        chosen = ["--configfile", str(self.code / "config" / f"{preset}.yaml")] if preset else []
        return [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            str(self.code / "workflow" / "Snakefile"),
            "--directory",
            str(self.folder),
            "--cores",
            str(cores),
            *arguments,
            *chosen,
        ]

    def environment(self) -> dict[str, str]:
        # The copy stands before the installed project on the path; hwh_kernels is a link to kernels/ there.
        # HWH_ROOT-relative inputs of the smoke preset are read from the copy.
        return {**os.environ, "PYTHONPATH": str(self.code), "PYTHONDONTWRITEBYTECODE": "1"}

    def program(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program of the copy (a path below it, or -m and a module) in the working folder."""
        environment = self.environment()
        return subprocess.run(
            [sys.executable, *command], env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )

    def run(self, *arguments: str, preset: str | None = "smoke", cores: int = 2, timeout: float = 900):
        return subprocess.run(
            self.command(*arguments, preset=preset, cores=cores),
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def copy_repository(target: Path) -> Path:
    """Copy the code to `target`, so that a test may edit it."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        source, goal = REPOSITORY / name, target / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, goal, ignore=ignore)
        else:
            shutil.copy2(source, goal)
    (target / "hwh_kernels").symlink_to("kernels")
    return target


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The smoke preset, run to its end once; tests that edit the code put it back."""
    base = tmp_path_factory.mktemp("smoke")
    code = copy_repository(base / "code")
    folder = base / "run"
    folder.mkdir()
    checkout = Checkout(code, folder)
    result = checkout.run()
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return checkout


@pytest.fixture(scope="module")
def shared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy and an empty folder for all tests of a module, nothing run yet."""
    base = tmp_path_factory.mktemp("shared")
    (base / "run").mkdir()
    return Checkout(copy_repository(base / "code"), base / "run")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh copy and an empty folder, nothing run yet."""
    folder = tmp_path / "run"
    folder.mkdir()
    return Checkout(copy_repository(tmp_path / "code"), folder)


@pytest.fixture
def clone_without_weights(tmp_path: Path) -> Callable[..., Checkout]:
    """Makes a checkout whose smoke preset keeps no weights, with a run's files but weights and what else is left."""

    def make(name: str, records: Path, *left: str) -> Checkout:
        code = copy_repository(tmp_path / name / "code")
        path = code / "config" / "smoke.yaml"
        path.write_text(path.read_text().replace("seed: 0\n", "seed: 0\nkeep_weights: false\n", 1))
        folder = tmp_path / name / "run"
        # copytree keeps times, by which Snakemake decides.
        shutil.copytree(records, folder, ignore=shutil.ignore_patterns("*.safetensors", "checkpoints", *left))
        return Checkout(code, folder)

    return make
