"""Pinned packages: complete, exact, layered, the same for pip and conda, and enough for what the code imports."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hwh_core.provenance import import_closure

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "requirements"
LAYERS = ("run", "dev", "gpu", "slurm")
CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
ENVIRONMENTS = sorted((ROOT / "workflow" / "envs").glob("*.yaml"))
# Imported only where they are usable: requirements/gpu.txt brings them.
GPU_MODULES = {"fla", "triton"}
OWN = {"hwh_core", "hwh_kernels", "benchmarks", "bundle"}
# Comes with pip, and torch brings its own.
UNPINNED = {"pip"}


def load_update():
    specification = importlib.util.spec_from_file_location("requirements_update", FOLDER / "update.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


UPDATE = load_update()


def pins(layer: str) -> dict[str, str]:
    return UPDATE.read_pins(FOLDER / f"{layer}.txt")


def wanted(layer: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (FOLDER / f"{layer}.in").read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


@cache
def distributions() -> dict[str, set[str]]:
    found = metadata.packages_distributions()
    return {module: {canonicalize_name(name) for name in names} for module, names in found.items()}


def third_party(files: list[Path]) -> dict[str, Path]:
    """Top-level modules of other projects that the files import anywhere, with one file that does."""
    found: dict[str, Path] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top not in OWN:
                    found.setdefault(top, file.relative_to(ROOT))
    return found


def unmet(files: list[Path], available: set[str]) -> dict[str, Path]:
    """Imports that no distribution in ``available`` brings."""
    imports = third_party(files)
    return {
        module: file
        for module, file in imports.items()
        if module not in GPU_MODULES and not distributions().get(module, set()) & available
    }


@pytest.mark.parametrize("layer", LAYERS)
def test_every_line_is_an_exact_version(layer):
    for line in (FOLDER / f"{layer}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "-r run.txt", "-c cuda-constraints.txt")):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


@pytest.mark.parametrize("layer", LAYERS)
def test_every_direct_requirement_is_pinned_within_its_range(layer):
    available = {**pins("run"), **pins(layer)}
    for requirement in wanted(layer):
        version = available[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: {version}"


def test_layers_over_run_pin_nothing_of_it_anew():
    for layer in ("dev", "gpu", "slurm"):
        assert not set(pins(layer)) & set(pins("run"))
        assert "-r run.txt" in (FOLDER / f"{layer}.txt").read_text(encoding="utf-8").splitlines()


def test_cpu_pins_ask_for_no_cuda_package():
    cuda = UPDATE.read_pins(FOLDER / "cuda-constraints.txt")
    assert "triton" in cuda
    for layer in ("run", "gpu", "slurm"):
        assert not set(cuda) & set(pins(layer))
    # The tests run kernels in Triton's interpreter; another version than that of torch's CUDA build would break torch.
    assert set(cuda) & set(pins("dev")) == {"triton"}
    assert pins("dev")["triton"] == cuda["triton"]


def test_pins_satisfy_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    available = {**pins("run"), **pins("gpu")}
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, lines):
        version = available[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version}"


def test_installed_packages_are_the_pinned_ones():
    installed = {canonicalize_name(d.metadata["Name"]): d.version.split("+")[0] for d in metadata.distributions()}
    expected = {**pins("run"), **pins("dev")}
    assert {name: installed.get(name) for name in expected} == expected


def test_pinned_set_is_closed():
    """Whatever a pinned package needs on this machine is pinned too, in a range that it accepts."""
    available = {**pins("run"), **pins("dev")}
    for name in available:
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            need = canonicalize_name(requirement.name)
            if UPDATE.CUDA.match(need):
                continue
            assert need in available, f"{name} needs {need}, which is not pinned"
            assert requirement.specifier.contains(available[need], prereleases=True), f"{name} needs {requirement}"


def test_everything_that_the_code_imports_is_a_direct_requirement():
    files = [*(ROOT / "hwh_core").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    direct = {canonicalize_name(requirement.name) for requirement in wanted("run")}
    assert unmet(files, direct) == {}


def test_everything_that_the_tests_import_is_installed():
    files = list((ROOT / "tests").rglob("*.py"))
    own = {file.stem for file in files}
    missing = unmet(files, {*pins("run"), *pins("dev")})
    assert {module: file for module, file in missing.items() if module not in own} == {}


def environment_pins(path: Path) -> dict[str, str]:
    """Python package names and versions of a conda environment, its pip section included."""
    found = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]:
        lines = entry["pip"] if isinstance(entry, dict) else [entry]
        for line in lines:
            name, _, version = line.partition("==")
            found[canonicalize_name(CONDA_NAMES.get(name, name))] = version
    return found


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_conda_environment_has_the_versions_of_pip(path):
    found = environment_pins(path)
    python = found.pop("python")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert Requirement(f"python{requires}").specifier.contains(python.replace("*", "0"))
    for name in UNPINNED:
        assert found.pop(name) == ""
    assert len(found) > 5
    assert found == {name: pins("run").get(name) for name in found}


def rule_programs() -> dict[str, set[str]]:
    """Environment of each conda file -> programs of scripts/ that its rules run, and modules that they load by name."""
    found: dict[str, set[str]] = {path.stem: set() for path in ENVIRONMENTS}
    for rules in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = rules.read_text(encoding="utf-8")
        for block in re.split(r"^\s*(?:rule \w+|rule):", text, flags=re.MULTILINE)[1:]:
            environment = re.search(r'"\.\./envs/(\w+)\.yaml"', block)
            program = re.search(r'\bprogram\("(\w+)"\)', block)
            if environment and program:
                found[environment.group(1)].add(program.group(1))
    return found


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_conda_environment_has_all_that_its_programs_import(path):
    programs = rule_programs()[path.stem]
    assert programs
    files: set[Path] = set()
    for program in programs:
        files.update(import_closure(ROOT / "scripts" / f"{program}.py"))
    if path.stem == "analysis":
        for module in (ROOT / "hwh_core" / "reporting").glob("*.py"):
            files.update(import_closure(module))
    assert unmet(sorted(files), set(environment_pins(path))) == {}


def test_every_rule_names_an_environment_that_exists():
    named = set()
    for rules in (ROOT / "workflow" / "rules").glob("*.smk"):
        named |= set(re.findall(r'"\.\./envs/(\w+)\.yaml"', rules.read_text(encoding="utf-8")))
    assert named == {path.stem for path in ENVIRONMENTS}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy==2.4.6\n", {"numpy": "2.4.6"}),
        ("# note\n-r run.txt\nPyYAML==6.0.4  # why\n", {"pyyaml": "6.0.4"}),
        ('typing_extensions==4.1 ; python_version < "3.12"\n', {"typing-extensions": "4.1"}),
        ("ruamel.yaml==0.1\nname[extra]==1\n", {"ruamel-yaml": "0.1", "name": "1"}),
    ],
)
def test_reading_pins(tmp_path, text, expected):
    path = tmp_path / "pins.txt"
    path.write_text(text, encoding="utf-8")
    assert UPDATE.read_pins(path) == expected
