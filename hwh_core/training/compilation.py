"""Whether torch.compile can be used, and whether it pays for one run."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ..heads import GATED_DELTANET, LayerSpec

# Tokens from which compiling pays. On 2 CPU cores it costs about 15 s for a small Transformer and 100 s for a hybrid.
CPU_MINIMUM_TOKENS = {"attention": 500_000, "delta_net": 2_000_000}
CUDA_MINIMUM_TOKENS = 20_000_000


def cpp_compiler_is_usable() -> bool:
    """Whether a C++ compiler and Python.h exist, which torch.compile needs on a CPU."""
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return header.is_file() and any(shutil.which(compiler) for compiler in compilers)


def should_compile(mode: str, layers: Sequence[LayerSpec], total_tokens: int, device_type: str) -> bool:
    """Decide for a run of ``total_tokens`` (of the whole run, so that a resumed run decides alike).

    ``mode`` is ``training.compile`` (auto or never). On CUDA, models with Gated DeltaNet stay eager: their kernels are
    not traced.
    """
    if mode == "never":
        return False
    delta_net = any(group.kind == GATED_DELTANET for layer in layers for group in layer)
    if device_type == "cuda":
        return not delta_net and total_tokens >= CUDA_MINIMUM_TOKENS
    enough = total_tokens >= CPU_MINIMUM_TOKENS["delta_net" if delta_net else "attention"]
    return enough and cpp_compiler_is_usable()
