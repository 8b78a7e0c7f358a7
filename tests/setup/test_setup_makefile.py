"""The Makefile, CI and package list: what they promise without installing anything."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "setup",
    "setup-dev",
    "reproduce",
    "report",
    "test",
    "chromium",
    "slurm-wlm",
    "test-slurm",
    "test-slurm-short",
    "lint",
    "dry-runs",
    "doctor",
    "pins",
    "clean-venv",
    "help",
}


@pytest.fixture
def checkout(tmp_path):
    """A folder with all that `make setup` reads, and no virtual environment."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    # Variables of a make above this one must not reach the one under test.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    environment["PATH"] = path or environment["PATH"]
    return subprocess.run(
        ["make", "-C", str(folder), "--no-print-directory", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fake_python(folder: Path, name: str, version: str) -> Path:
    """A program that answers as a Python of an old version does."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "Python {version}"\nexit 1\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_help_lists_every_target(checkout):
    listed = set(re.findall(r"^  make ([a-z-]+)", make(checkout, "help").stdout, flags=re.MULTILINE))
    assert listed >= TARGETS
    assert make(checkout).stdout == make(checkout, "help").stdout


def test_reproduce_installs_then_runs_then_reports(checkout):
    plan = make(checkout, "-n", "reproduce").stdout
    order = ["-m venv", "--requirement requirements/run.txt", "--editable .", "snakemake --cores all", "hwh report"]
    places = [plan.index(step) for step in order]
    assert places == sorted(places)
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in plan
    assert "--configfile" not in plan
    assert "results/laptop" in plan


def test_other_preset_cores_and_layers(checkout):
    plan = make(checkout, "-n", "reproduce", "PRESET=single_gpu", "CORES=8", "EXTRAS=gpu slurm").stdout
    assert "snakemake --cores 8 --configfile config/single_gpu.yaml" in plan
    assert "requirements/gpu.txt" in plan
    assert "requirements/slurm.txt" in plan
    assert "results/single_gpu" in plan


def test_missing_preset_is_named_before_anything_is_installed(checkout):
    done = make(checkout, "reproduce", "PRESET=none")
    assert done.returncode != 0
    assert "PRESET=none: config/none.yaml does not exist; expected laptop or one of" in done.stderr
    assert not (checkout / ".venv").exists()


def test_second_call_installs_nothing_and_a_new_list_installs_again(checkout):
    bin_folder = checkout / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").touch()
    for layer in ("run", "dev"):
        (checkout / ".venv" / f".installed-{layer}").touch()
    assert "pip install" not in make(checkout, "-n", "test").stdout
    later = (checkout / ".venv" / ".installed-run").stat().st_mtime + 10
    os.utime(checkout / "requirements" / "run.txt", (later, later))
    assert "--requirement requirements/run.txt" in make(checkout, "-n", "test").stdout


def test_tests_run_on_two_workers_with_one_thread_each(checkout):
    plan = make(checkout, "-n", "test").stdout
    assert "requirements/dev.txt" in plan
    assert re.search(r"OMP_NUM_THREADS=1 .*pytest -n 2", plan, flags=re.DOTALL)


def test_old_python_is_refused_in_one_sentence(checkout, tmp_path):
    old = fake_python(tmp_path / "old", "python3.9", "3.9.2")
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert f"error: {old} is Python 3.9.2, but Python 3.11 or newer is needed" in done.stderr
    assert not (checkout / ".venv").exists()


def test_absent_python_is_named(checkout):
    done = make(checkout, "setup", "PYTHON=python-that-is-not-there")
    assert done.returncode != 0
    assert "error: PYTHON=python-that-is-not-there is no program on this machine" in done.stderr


def test_no_fit_python_is_refused_and_a_fit_one_is_found(checkout, tmp_path):
    tools = tmp_path / "tools"
    fake_python(tools, "python3", "3.9.2")
    for tool in ("make", "bash", "sh", "head", "awk"):
        (tools / tool).symlink_to(shutil.which(tool))
    done = make(checkout, "setup", path=str(tools))
    assert done.returncode != 0
    assert "error: Python 3.11 or newer is needed, and python3 here is Python 3.9.2" in done.stderr
    (tools / "python3.12").symlink_to(sys.executable)
    assert '"python3.12" -m venv' in make(checkout, "-n", "setup", path=str(tools)).stdout


def test_ci_is_executable_and_runs_what_the_readme_says():
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in text
    steps = re.findall(r"^make ([a-z-]+)$", text, flags=re.MULTILINE)
    assert steps == ["setup-dev", "chromium", "lint", "dry-runs", "test-slurm-short", "test"]
    for name in ("HWH_REQUIRE_BROWSER", "HWH_REQUIRE_DOWNLOADS"):
        assert text.index(f"export {name}=1") < text.index("make test")


def test_chromium_is_installed_where_it_is_missing_and_may_be(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("make", "bash", "sh", "head", "awk"):
        (tools / tool).symlink_to(shutil.which(tool))

    def program(name: str, text: str) -> None:
        (tools / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tools / name).chmod(0o755)

    program("apt-get", f'echo "$@" >> {tmp_path}/asked')
    program("id", "echo 1000")
    done = make(checkout, "chromium", path=str(tools))
    assert done.returncode != 0
    assert "name a program of another place in HWH_CHROMIUM" in done.stderr
    program("id", "echo 0")
    assert make(checkout, "chromium", path=str(tools)).returncode == 0
    asked = (tmp_path / "asked").read_text()
    assert asked == "update -q\ninstall -q -y --no-install-recommends chromium\n"
    program("google-chrome", "exit 1")
    program("id", "echo 1000")
    assert make(checkout, "chromium", path=str(tools)).returncode == 0
    assert (tmp_path / "asked").read_text() == asked


def test_slurm_is_installed_where_it_is_missing_and_may_be(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    makefile = checkout / "Makefile"
    # A machine with SLURM has it in folders that are no part of this PATH.
    makefile.write_text(makefile.read_text(encoding="utf-8").replace(":/usr/sbin:/sbin", ""), encoding="utf-8")
    for tool in ("make", "bash", "sh", "head", "awk"):
        (tools / tool).symlink_to(shutil.which(tool))
    for name, text in (("apt-get", f'echo "$@" >> {tmp_path}/asked'), ("id", "echo 1000")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    done = make(checkout, "test-slurm-short", path=str(tools))
    assert done.returncode != 0
    assert "not here: munged slurmctld slurmd sbatch" in done.stderr
    assert "packages slurm-wlm and munge" in done.stderr
    (tools / "id").write_text("#!/bin/sh\necho 0\n", encoding="utf-8")
    assert make(checkout, "slurm-wlm", path=str(tools)).returncode == 0
    asked = (tmp_path / "asked").read_text()
    assert asked == "update -q\ninstall -q -y --no-install-recommends slurm-wlm munge\n"


def test_lint_runs_every_checker(checkout):
    plan = make(checkout, "-n", "lint").stdout
    for command in ("ruff check .", "ruff format --check .", "snakefmt --check workflow", "snakemake --lint"):
        assert command in plan


def test_dry_runs_cover_every_preset():
    plan = make(ROOT, "-n", "-o", ".venv/.installed-run", "dry-runs").stdout
    for path in sorted((ROOT / "config").glob("*.yaml")):
        assert f"config/{path.name}" in plan


def test_every_package_is_installed_by_the_project_file():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {"hwh_core": "hwh_core", "kernels": "hwh_kernels"}
    found = set()
    for folder, package in folders.items():
        for marker in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join((package, *marker.parent.relative_to(ROOT / folder).parts)))
    assert found == set(settings["packages"])


def test_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
