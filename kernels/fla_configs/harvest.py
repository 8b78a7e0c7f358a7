"""Find the fastest launch configurations on the card at hand and write them as files that are shipped.

Every kernel is tuned by Triton in the usual way, at the sizes of a training and of evaluation with a cache; the
winners are read from the tuners. Nearly all of the time goes into compiling the candidates, so side processes compile
them first, into Triton's cache on disk, and what is measured afterwards has the card to itself. The results of the
tuned kernels are compared with the reference before anything is written, since a compilation that is wrong may well be
the fastest.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import _DIRECTORY_VARIABLE, _MODE_VARIABLE, FOLDER, KERNELS, shipped_folder
from .entries import fallback_key, key_hash, read, render

# (heads, head_dim) of Gated DeltaNet groups in the presets: 35M, 380M and 1.4B parameters.
SHAPES = ((8, 64), (7, 64), (6, 64), (8, 128), (7, 128), (6, 128), (16, 128), (14, 128), (12, 128))
# Portions of a kernel's candidates, which has up to 25, that are compiled side by side.
PARTS = 8
_FIELDS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def configuration(config: Any) -> dict[str, Any]:
    """A ``triton.Config`` as a file holds it."""
    return {"kwargs": dict(config.kwargs), **{name: getattr(config, name, None) for name in _FIELDS}}


def tuner_of(kernel: Any) -> Any:
    """The autotuner inside the decorators of a kernel. Raises ValueError if there is none."""
    while kernel is not None and not (hasattr(kernel, "cache") and hasattr(kernel, "configs")):
        kernel = getattr(kernel, "fn", None)
    if kernel is None:
        raise ValueError("the kernel is not tuned: flash-linear-attention has changed; mend KERNELS")
    return kernel


def winners(kernels: Mapping[str, str]) -> dict[str, list[tuple[list[Any], dict[str, Any]]]]:
    """(key, configuration) of what has been tuned so far in this process, by kernel."""
    found = {}
    for name, module in kernels.items():
        tuner = tuner_of(getattr(importlib.import_module(module), name))
        found[name] = [(list(key), configuration(config)) for key, config in tuner.cache.items()]
    return found


def write(found: Mapping[str, Iterable[tuple[list[Any], dict[str, Any]]]], output: Path, shipped: Path | None) -> None:
    """One file a kernel into ``output``; fallbacks from the folder ``shipped`` where it has them.

    What ``output`` holds of other sizes stays, unless another Triton found it: the work can be done in parts. Raises
    ValueError, before anything is written, for a kernel without a configuration.
    """
    missing = [name for name, entries in found.items() if not entries]
    if missing:
        raise ValueError(f"nothing was tuned for {', '.join(missing)}; FLA_CACHE_MODE must not be set")
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    output.mkdir(parents=True, exist_ok=True)
    for name, entries in found.items():
        path = output / f"{name}.json"
        merged = {key_hash(key): (key, config) for key, config in [*_measured(path, triton), *entries]}
        text = render(name, triton, merged.values(), None if shipped is None else shipped / path.name)
        path.write_text(text, encoding="utf-8")


def _measured(path: Path, triton: str | None) -> list[tuple[list[Any], dict[str, Any]]]:
    """Entries but for fallbacks of a file that this version of Triton has led to; none of any other."""
    if not path.is_file() or json.loads(path.read_text(encoding="utf-8"))["triton_version"] != triton:
        return []
    return [(key, config) for key, config in read(path) if key != fallback_key(key)]


def _tune(heads: int, head_dim: int, batch: int, length: int, device: torch.device) -> None:
    from ..gated_delta_rule_check import check_inputs
    from ..gated_delta_rule_fla import gated_delta_rule, gated_delta_rule_with_state

    inputs, grad = check_inputs(device, heads, head_dim, batch, length)
    scale = head_dim**-0.5
    leaves = [x.requires_grad_() for x in inputs]
    torch.autograd.grad(gated_delta_rule(*leaves, scale), leaves, grad)
    with torch.no_grad():
        _, state = gated_delta_rule_with_state(*inputs, scale, None, recurrent=False)
        gated_delta_rule_with_state(*inputs, scale, state, recurrent=False)


def _start(device: torch.device) -> Any:
    """Import fla with tuning switched on and its refusal on Hopper lifted; returns the refusal, to be restored.

    Raises RuntimeError if fla is imported already.
    """
    if "fla" in sys.modules:
        raise RuntimeError("fla is imported already, with launch configurations fixed; start a new process")
    os.environ.pop(_DIRECTORY_VARIABLE, None)
    os.environ[_MODE_VARIABLE] = "disabled"
    from ..gated_delta_rule_check import hopper_guard

    guard = hopper_guard(device)
    guard.lift()
    return guard


def _compile_part(
    heads: int, head_dim: int, batch: int, length: int, device: torch.device, part: int, parts: int
) -> None:
    """In a process of its own: tune among every ``parts``-th candidate from ``part`` on, for Triton's cache alone."""
    _start(device)
    for name, module in KERNELS.items():
        tuner = tuner_of(getattr(importlib.import_module(module), name))
        candidates = tuner.configs
        tuner.configs = candidates[part::parts] or [candidates[part % len(candidates)]]
    _tune(heads, head_dim, batch, length, device)


def compile_candidates(
    shapes: Sequence[tuple[int, int]], batch: int, length: int, device: torch.device, workers: int
) -> None:
    """Fill Triton's cache with all candidates of all ``shapes``, ``workers`` processes at a time."""
    from hwh_core.progress import progress

    context = multiprocessing.get_context("spawn")
    # A process takes one part and ends: fla's tuners keep their candidates for the life of a process.
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        jobs = [
            pool.submit(_compile_part, heads, head_dim, batch, length, device, part, PARTS)
            for heads, head_dim in shapes
            for part in range(PARTS)
        ]
        for job in progress(as_completed(jobs), "compiling", total=len(jobs), unit="part"):
            job.result()


def harvest(
    shapes: Sequence[tuple[int, int]], batch: int, length: int, output: Path, device: torch.device, workers: int = 1
) -> None:
    """Tune for each (heads, head_dim) at ``batch`` sequences of ``length`` tokens, check, and write ``output``.

    With several ``workers`` that many processes compile beforehand. Raises RuntimeError on a machine without a GPU or
    with fla imported already, and KernelsDisagree when tuned kernels are wrong.
    """
    if device.type != "cuda":
        raise RuntimeError("launch configurations are found on a GPU; there is none here")
    if workers > 1:
        compile_candidates(shapes, batch, length, device, workers)
    guard = _start(device)
    from ..gated_delta_rule_check import check_gated_delta_rule

    for heads, head_dim in shapes:
        print(f"{heads} heads of {head_dim}", flush=True)
        _tune(heads, head_dim, batch, length, device)
    guard.restore()
    found = winners(KERNELS)
    check = check_gated_delta_rule(device, shapes, batch=batch)
    for shape, errors in check.errors.items():
        print(shape, " ".join(f"{name} {error:.2%}" for name, error in errors.items()), flush=True)
    shipped = shipped_folder("", torch.cuda.get_device_capability(device), FOLDER)
    write(found, output, shipped)
    print(f"wrote {output}: {sum(map(len, found.values()))} configurations of {len(found)} kernels", flush=True)
