"""Launch configurations of flash-linear-attention's kernels, shipped by card, so that nothing is tuned at a first run.

flash-linear-attention 0.6.0 tunes every kernel for every number of heads, which takes minutes from an empty Triton
cache. Its ``fla_cache_autotune`` reads ``<FLA_CONFIG_DIR>/<kernel>.json`` instead, as FLA_CACHE_MODE says; both
variables count only when they are set before ``fla`` is imported. :func:`prepare_fla` sets them, and every import of
``fla`` in this project comes after it. Variables that the user has set are left alone.

All kernels of the chunked Gated DeltaNet path (bfloat16 q, k, v; float32 g, beta; one head_dim for q, k and v up to
512) are tuned through ``fla_cache_autotune``, none through plain ``triton.autotune``; they are :data:`KERNELS`. Its
recurrent path, for single tokens, tunes nothing.

A file holds one entry a tuning key. The first one has zeros for all numbers and is the fallback: in mode ``fuzzy`` an
exact key wins, else the first entry that agrees in everything but numbers, dtypes included. So other head numbers,
head sizes and batch sizes take the fallback, and float32 inputs, for which nothing is shipped, are tuned as ever.

``NVIDIA_H200`` was found by ``python -m hwh_kernels.fla_configs harvest`` with Triton 3.6.0 for the heads of the 35M
and 380M models. ``hopper`` holds fallbacks alone, chosen among the library's candidates without measuring speed.
Compiled for compute capability 9.0 by Triton 3.6.0 and 3.9.0 they need at most 189 KiB of the 227 KiB of shared memory,
at head_dim 256.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
MODE = "fuzzy"
_DIRECTORY_VARIABLE, _MODE_VARIABLE = "FLA_CONFIG_DIR", "FLA_CACHE_MODE"
# Card architectures by compute capability, for cards that have no folder of their own.
_ARCHITECTURES = {(9, 0): "hopper"}
# What a forward and backward pass launches, with the module that holds it.
KERNELS = {
    "l2norm_fwd_kernel": "fla.modules.norm.l2norm",
    "l2norm_bwd_kernel": "fla.modules.norm.l2norm",
    "chunk_local_cumsum_scalar_kernel": "fla.ops.utils.cumsum",
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": "fla.ops.gated_delta_rule.chunk_fwd",
    "recompute_w_u_fwd_kernel": "fla.ops.gated_delta_rule.wy_fast",
    "prepare_wy_repr_bwd_kernel": "fla.ops.gated_delta_rule.wy_fast",
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": "fla.ops.common.chunk_delta_h",
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64": "fla.ops.common.chunk_delta_h",
    "chunk_fwd_kernel_o": "fla.ops.common.chunk_o",
    "chunk_bwd_kernel_dv_local": "fla.ops.common.chunk_o",
    "chunk_bwd_kernel_dqkwg": "fla.ops.common.chunk_o",
}


@dataclass(frozen=True)
class LaunchConfigurations:
    """Where the launch configurations come from: ``shipped``, the ``user``'s variables, or ``autotuning``."""

    source: str
    folder: str | None


def folder_name(card: str) -> str:
    """A card's name as flash-linear-attention writes it in paths: ``NVIDIA H200`` -> ``NVIDIA_H200``."""
    return re.sub(r"[^0-9A-Za-z]+", "_", card).strip("_")


def shipped_folder(card: str, capability: tuple[int, int], root: Path = FOLDER) -> Path | None:
    """Folder for a card of this name and compute capability: its own, else its architecture's, else None."""
    for name in (folder_name(card), _ARCHITECTURES.get(capability)):
        if name and (root / name).is_dir():
            return root / name
    return None


def prepare_fla(device: torch.device) -> LaunchConfigurations:
    """Choose launch configurations for ``device``; call it before ``fla`` is imported. Idempotent.

    On cards without shipped configurations, and on other devices, kernels are tuned at their first launch.
    """
    directory, mode = os.environ.get(_DIRECTORY_VARIABLE), os.environ.get(_MODE_VARIABLE)
    if directory is not None or mode is not None:
        if directory is not None and Path(directory).parent == FOLDER and mode == MODE:
            return LaunchConfigurations("shipped", Path(directory).name)
        return LaunchConfigurations("user", directory)
    if device.type != "cuda":
        return LaunchConfigurations("autotuning", None)
    folder = shipped_folder(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
    if folder is None:
        return LaunchConfigurations("autotuning", None)
    os.environ[_DIRECTORY_VARIABLE], os.environ[_MODE_VARIABLE] = str(folder), MODE
    # Whoever imported fla before has fixed its mode then; its folder is read at each look-up.
    cache = sys.modules.get("fla.ops.utils.cache")
    if cache is not None:
        cache.FLA_CACHE_MODE = cache.FlaCacheMode(MODE)
    return LaunchConfigurations("shipped", folder.name)
