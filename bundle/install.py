"""A virtual environment from the wheels of a bundle, without an index; standard library only."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import BundleError

SUPPORTED_TORCH = ((2, 11), (2, 15))
_PATHS = "import json, sys; print(json.dumps(sys.path))"
_CHECK = """
import hwh_core.config, transformers, snakemake.cli, torch
where = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
print("VERSIONS", torch.__version__, transformers.__version__, where)
"""


def check_machine(
    manifest: Mapping[str, Any], version: tuple[int, int] | None = None, machine: str | None = None
) -> None:
    """Raise :class:`BundleError` unless this Python and processor are those that the wheels were packed for."""
    version = version or sys.version_info[:2]
    machine = machine or platform.machine()
    if ".".join(map(str, version)) != manifest["python"]:
        raise BundleError(
            f"this is Python {'.'.join(map(str, version))}, but the bundle was packed for Python {manifest['python']}; "
            f"name that one with --python python{manifest['python']}, or pack again with this --python-version"
        )
    if not manifest["platform"].endswith(f"_{machine}"):
        raise BundleError(
            f"this machine is {machine}, but the bundle was packed for {manifest['platform']}; "
            f"pack again with its --platform"
        )


def clean_environment() -> dict[str, str]:
    """The environment without what would make pip or Python look elsewhere than into the bundle."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        kept.pop(name, None)
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONNOUSERSITE": "1"}


def _run(what: str, *command: str) -> str:
    result = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BundleError(f"{what} failed: {(result.stderr or result.stdout).strip()[-2000:]}")
    return result.stdout


def _borrow_torch(python: Path) -> None:
    """Let the environment see this Python's packages after its own, wherever torch lies.

    A virtual environment made with system packages sees those of the base installation only, not those of a virtual
    environment or of PYTHONPATH, from which clusters often offer torch.
    """
    result = subprocess.run(
        [sys.executable, "-c", f"import torch\n{_PATHS}"], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise BundleError(
            f"{sys.executable} has no torch of its own ({reason}), but it is to be used; "
            f"load the site's module, name another --python, or pack torch too (make bundle WITHOUT=)"
        )
    own = json.loads(_run("reading the paths of the new environment", str(python), "-c", _PATHS))
    theirs = json.loads(result.stdout.strip().splitlines()[-1])
    more = [path for path in theirs if path and path not in own and os.path.isdir(path)]
    site = _run(
        "finding the new environment", str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    )
    Path(site.strip(), "torch_of_this_machine.pth").write_text("".join(f"{path}\n" for path in more), encoding="utf-8")


def check_torch(version: str) -> None:
    """Raise :class:`BundleError` for a version of torch that the project does not support."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    low, high = SUPPORTED_TORCH
    if not low <= numbers < high:
        raise BundleError(
            f"torch here is {version}, expected 2.11 to 2.14; load another, or pack torch into the bundle"
        )


def install(root: Path, manifest: Mapping[str, Any], *, system_torch: bool, identity: str) -> Path:
    """Install the bundle that is unpacked in ``root`` into ``root/.venv``; returns the folder of its programs.

    With ``system_torch`` torch is that of the running Python, else the bundle's. Does nothing when the same bundle was
    installed there before. Raises :class:`BundleError` with pip's message.
    """
    venv = root / ".venv"
    python, stamp = venv / "bin" / "python", venv / ".installed-bundle"
    wanted = f"{identity} {'system' if system_torch else 'bundled'} torch"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return venv / "bin"
    own = ["--system-site-packages"] if system_torch else []
    # Debian's Python comes without ensurepip, by which an environment gets a pip of its own.
    own_pip = importlib.util.find_spec("ensurepip") is not None
    own += [] if own_pip else ["--without-pip"]
    _run("making the virtual environment", sys.executable, "-m", "venv", "--clear", *own, str(venv))
    if system_torch:
        _borrow_torch(python)
    wheels = root / "wheels"
    pip = [str(python), "-m", "pip"] if own_pip else [sys.executable, "-m", "pip", "--python", str(python)]
    pip += ["install", "--quiet", "--no-input", "--no-index", "--find-links", str(wheels)]
    if not system_torch:
        constraints = root / "wheels" / "constraints.txt"
        constraints.write_text("\n".join([*manifest["torch"], *manifest["requirements"]]) + "\n", encoding="utf-8")
        torch = [pin for pin in manifest["torch"] if pin.startswith("torch==")]
        _run("installing torch", *pip, "--no-compile", "--constraint", str(constraints), *torch)
    # The list is complete, so nothing is resolved: the versions of torch and its companions stay the machine's.
    _run("installing the packages", *pip, "--no-compile", "--no-deps", *manifest["requirements"])
    _run("installing the project", *pip, "--no-deps", "--no-build-isolation", "--editable", str(root))
    answer = _run("loading the installed packages", str(python), "-c", _CHECK)
    versions = next(line for line in answer.splitlines() if line.startswith("VERSIONS ")).split(maxsplit=3)
    check_torch(versions[1])
    print(f"installed: torch {versions[1]}, transformers {versions[2]}, {versions[3]}", flush=True)
    stamp.write_text(wanted, encoding="utf-8")
    return venv / "bin"
