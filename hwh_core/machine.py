"""What the machine offers: processor, memory, disk, accelerators, compiler, versions and optional parts.

Everything is read from the system; nothing is fetched and no model library but torch is imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sysconfig
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

GIB = 2**30
# Distribution name -> what it is for. The first group is needed by every preset.
NEEDED = {
    "torch": "models, training, probes",
    "transformers": "model classes, pretrained models",
    "tokenizers": "byte-level BPE",
    "safetensors": "weights on disk",
    "gguf": "packaged pretrained model",
    "accelerate": "packaged pretrained model",
    "numpy": "arrays",
    "scipy": "band extraction, statistics",
    "pandas": "tables",
    "pyarrow": "tables in Parquet",
    "matplotlib": "figures",
    "lm-eval": "evaluation",
    "datasets": "evaluation rows, hub sources",
    "snakemake": "workflow",
}
OPTIONAL = {
    "triton": "GPU kernels",
    "flash-linear-attention": "Gated DeltaNet on a GPU",
    "fla-core": "Gated DeltaNet on a GPU",
    "snakemake-executor-plugin-slurm": "jobs on a SLURM cluster",
    "pytest": "make test",
}


@dataclass(frozen=True)
class Accelerator:
    """One GPU as torch sees it; memory in bytes."""

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def bfloat16(self) -> bool:
        """Whether matrix products in bfloat16 run on tensor cores (compute capability 8.0 and up)."""
        return self.capability >= (8, 0)


@dataclass(frozen=True)
class Machine:
    """The facts that decide what can run here; sizes in bytes, None where the system does not tell."""

    system: str
    processor: str
    cores: int
    memory: int | None
    memory_available: int | None
    disk_free: int
    python: str
    compiler: str | None
    python_header: str | None
    accelerators: tuple[Accelerator, ...]
    cuda_build: str | None
    versions: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str | None] = field(default_factory=dict)

    @property
    def compile_usable(self) -> bool:
        """Whether torch.compile can build CPU code: it needs a C++ compiler and Python.h."""
        return self.compiler is not None and self.python_header is not None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "compile_usable": self.compile_usable}


def usable_cores() -> int:
    """Cores that this process may use: its affinity, limited by the processor quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, period = quota.read_text(encoding="ascii").split()
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    return cores


def memory_bytes() -> tuple[int | None, int | None]:
    """Memory in all and available now, limited by the control group; (None, None) where neither is told."""
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None, None
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", info.read_text(encoding="ascii"), flags=re.MULTILINE))
    total, available = int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text(encoding="ascii").strip()) != "max":
        total = min(total, int(text))
        available = min(available, total)
    return total, available


def find_compiler() -> str | None:
    """The C++ compiler that torch.compile would take: $CXX, else g++, else clang++ or c++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def find_python_header() -> str | None:
    """Path of Python.h, which torch.compile includes on a CPU."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return str(header) if header.is_file() else None


def installed_versions() -> dict[str, str]:
    """Versions of the packages named in NEEDED and OPTIONAL, as far as they are installed."""
    versions = {}
    for name in (*NEEDED, *OPTIONAL):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def accelerators() -> tuple[tuple[Accelerator, ...], str | None]:
    """GPUs that torch can use, and the CUDA version that torch was built for (None: a CPU build, or no torch)."""
    if importlib.util.find_spec("torch") is None:
        return (), None
    import torch

    if not torch.cuda.is_available():
        return (), torch.version.cuda
    found = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        found.append(Accelerator(card.name, card.total_memory, (card.major, card.minor)))
    return tuple(found), torch.version.cuda


def processor_name() -> str:
    """Model name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if match:
            return match.group(1).strip()
    return platform.processor() or platform.machine()


def inspect_machine(folder: Path) -> Machine:
    """Look at the machine; ``folder`` is where results would go (its free disk is told)."""
    total, available = memory_bytes()
    cards, cuda = accelerators()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor_name(),
        cores=usable_cores(),
        memory=total,
        memory_available=available,
        disk_free=shutil.disk_usage(folder).free,
        python=platform.python_version(),
        compiler=find_compiler(),
        python_header=find_python_header(),
        accelerators=cards,
        cuda_build=cuda,
        versions=installed_versions(),
        programs={name: shutil.which(name) for name in ("git", "make", "sbatch", "nvidia-smi", "conda")},
    )
