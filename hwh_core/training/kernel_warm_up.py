"""Compile the Gated DeltaNet kernels of a training in side processes, while this one imports its libraries.

A cold start spends about as long on importing torch and transformers as on compiling these kernels, one shape of heads
after the other. Side processes, one a shape, run the check of :mod:`hwh_kernels.gated_delta_rule_check` for no other
end than to fill Triton's cache on disk; the training makes its own check afterwards and finds everything compiled.
Nothing depends on them: they may be slow, fail or not be started at all. Needs no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ..heads import LayerSpec


def head_shapes(layers: Sequence[LayerSpec]) -> list[tuple[int, int]]:
    """(heads, head_dim) of the Gated DeltaNet groups, each once."""
    return sorted({(group.heads, group.head_dim) for layer in layers for group in layer if group.is_recurrent})


def cache_folder() -> Path:
    """Where Triton keeps what it has compiled."""
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    return Path(os.environ.get("TRITON_CACHE_DIR", home / ".triton" / "cache"))


def _version(package: str) -> str | None:
    # A package can be there under another name than its distribution's, as in some images.
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _marker(arguments: Sequence[str]) -> Path:
    """A file in Triton's cache that tells that kernels for ``arguments`` were compiled into it with these versions."""
    versions = [_version(name) for name in ("triton", "fla-core")]
    text = json.dumps([*arguments, *versions, os.environ.get("CUDA_VISIBLE_DEVICES")])
    return cache_folder() / f"hwh-gated-delta-rule-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def start_warm_up(layers: Sequence[LayerSpec], rows: int, length: int, dtype: str) -> list[subprocess.Popen[bytes]]:
    """Start one process a shape that no earlier one has compiled, for micro-batches of ``rows`` x ``length`` tokens.

    ``dtype``: float32 or bfloat16. Nothing is started where flash-linear-attention or Triton are not installed; whether
    there is a device to compile for is the caller's to know. The processes end by themselves.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fla", "triton")):
        return []
    started = []
    for heads, head_dim in head_shapes(layers):
        arguments = [f"{heads}x{head_dim}", "--batch", str(rows), "--length", str(length), "--dtype", dtype]
        marker = _marker(arguments)
        if marker.exists():
            continue
        command = [sys.executable, "-m", "hwh_kernels.gated_delta_rule_check", *arguments, "--marker", str(marker)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, **quiet))
    return started
