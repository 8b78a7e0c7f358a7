"""Check of flash-linear-attention's Gated DeltaNet kernels on the card at hand, in the process that will train.

flash-linear-attention 0.6.0 refuses the gated backward pass (``chunk_bwd_dqkwg``) on Hopper cards with Triton 3.4.0 to
3.7.0, because some compilations there gave a wrong gradient of k (its issue 640). Whether the compilations at hand do
is decided here by measuring: outputs and all gradients, in the dtype of the training, against the float32 torch form.
The refusal is lifted for the measurement, and stays lifted only when everything agrees.

``python -m hwh_kernels.gated_delta_rule_check 7x64 --batch 8 --length 2048`` makes the check alone.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import gated_delta_rule_fla as fla
from .fla_configs import prepare_fla
from .fla_configs.__main__ import shape
from .gated_delta_rule import chunk_gated_delta_rule

# Norm of the difference over norm of the reference. bfloat16 rounds by up to 2^-8 = 0.4%, and a gradient passes about
# four roundings (normalised q and k, the inverse of the system, the states, its own output): right kernels are off by
# about 0.5%, four times less than allowed. A wrong tile or a missing term is off by tens of percent.
TOLERANCE = 0.02
TENSORS = ("output", "q", "k", "v", "g", "beta")
# Tokens: four chunks; and two chunks with a partly filled third, where the kernels mask.
LENGTHS = (256, 165)

Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


class KernelsDisagree(RuntimeError):
    """The kernels' results differ from the reference; the message says which, by how much, and what to install."""


class HopperGuard:
    """flash-linear-attention's refusal in its module ``chunk_o``; ``refuses`` tells how it stood at first."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._newer = module.TRITON_ABOVE_3_7_1
        self.refuses = bool(module.IS_NVIDIA_HOPPER and module.TRITON_ABOVE_3_4_0 and not self._newer)

    def lift(self) -> None:
        """Let the backward pass run."""
        if self.refuses:
            self._module.TRITON_ABOVE_3_7_1 = True

    def restore(self) -> None:
        """Refuse again if it was refused at first."""
        self._module.TRITON_ABOVE_3_7_1 = self._newer


@functools.cache
def hopper_guard(device: torch.device) -> HopperGuard:
    """The one guard of this process. Imports fla."""
    return HopperGuard(fla.import_fla("fla.ops.common.chunk_o", device))


@dataclass(frozen=True)
class GdnCheck:
    """Result of :func:`check_gated_delta_rule`.

    ``errors``: for each "<heads>x<head_dim>" the largest relative error of each of :data:`TENSORS`, gradients under the
    name of their input. ``configurations``: launch configurations, ``shipped``, ``user`` or ``autotuning``, and their
    folder. Versions are None where the package is missing.
    """

    passed: bool
    errors: dict[str, dict[str, float]]
    tolerance: float
    guard_was_bypassed: bool
    configurations: str
    fla: str | None
    triton: str | None
    card: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return asdict(self)


def check_inputs(
    device: torch.device, heads: int, head_dim: int, batch: int, length: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """([q, k, v, g, beta], gradient of the output), of ``dtype`` but for g and beta; the same numbers at every call.

    Decay rates go from 0.001 a token, a memory beyond a thousand tokens, to 4, one of a few tokens.
    """
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, length, heads, head_dim)
    q, k, v, grad = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    rates = torch.logspace(-3, 0.6, heads, device=device)
    g = -rates * (0.5 + torch.rand(shape[:-1], generator=generator, device=device))
    beta = torch.randn(shape[:-1], generator=generator, device=device).sigmoid()
    return [q, k, v, g, beta], grad


def _reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float
) -> torch.Tensor:
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    return chunk_gated_delta_rule(q, k, v, g, beta, scale)[0]


def _results(rule: Rule, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients, in the order of :data:`TENSORS`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad(), torch.autocast(grad.device.type, enabled=False):
        output = rule(*leaves, grad.shape[-1] ** -0.5)
        return [output.detach(), *torch.autograd.grad(output, leaves, grad.to(output.dtype))]


def relative_errors(
    rule: Rule,
    device: torch.device,
    heads: int,
    head_dim: int,
    batch: int,
    length: int,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, float]:
    """Norm of the difference from the float32 reference over the reference's norm, for each of :data:`TENSORS`."""
    inputs, grad = check_inputs(device, heads, head_dim, batch, length, dtype)
    found = _results(rule, inputs, grad)
    expected = _results(_reference, [x.float() for x in inputs], grad.float())
    differences = [(one.float() - other).norm() / other.norm() for one, other in zip(found, expected, strict=True)]
    return dict(zip(TENSORS, torch.stack(differences).tolist(), strict=True))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_gated_delta_rule(
    device: torch.device,
    head_shapes: Sequence[tuple[int, int]],
    *,
    batch: int = 1,
    length: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    rule: Rule | None = None,
    guard: HopperGuard | None = None,
) -> GdnCheck:
    """Compare ``rule`` (None: fla's kernels) with the reference for each (heads, head_dim), at lengths 256 and 165.

    ``dtype``: of q, k and v in the training. With its ``batch`` and ``length`` nothing is left to be compiled later:
    the check ends with a pass of that size, not compared. Raises :class:`KernelsDisagree` when an error is above
    :data:`TOLERANCE` or not a number; then, and when anything else is raised, fla refuses again as it did at first.
    """
    started = time.perf_counter()
    configurations = prepare_fla(device)
    if rule is None:
        rule, guard = fla.gated_delta_rule, guard or hopper_guard(device)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = {"fla": _version("fla-core"), "triton": _version("triton")}
    errors: dict[str, dict[str, float]] = {}
    passed = False
    if guard is not None:
        guard.lift()
    try:
        for heads, head_dim in head_shapes:
            worst = errors.setdefault(f"{heads}x{head_dim}", {})
            for tokens in LENGTHS:
                found = relative_errors(rule, device, heads, head_dim, batch, tokens, dtype)
                _refuse(found, heads, head_dim, tokens, card, versions)
                worst.update({name: max(error, worst.get(name, 0.0)) for name, error in found.items()})
            if length is not None:
                _results(rule, *check_inputs(device, heads, head_dim, batch, length, dtype))
        passed = True
    finally:
        if guard is not None and not passed:
            guard.restore()
    source = configurations.source if configurations.folder is None else ":".join(vars(configurations).values())
    return GdnCheck(
        passed=passed,
        errors=errors,
        tolerance=TOLERANCE,
        guard_was_bypassed=guard is not None and guard.refuses,
        configurations=source,
        card=card,
        seconds=round(time.perf_counter() - started, 3),
        **versions,
    )


def _refuse(
    errors: dict[str, float], heads: int, head_dim: int, tokens: int, card: str, versions: dict[str, str | None]
) -> None:
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    if not wrong:
        return
    listed = ", ".join(
        f"{name if name == 'output' else f'gradient of {name}'} by {error:.1%}" for name, error in wrong.items()
    )
    raise KernelsDisagree(
        f"Gated DeltaNet kernels of flash-linear-attention {versions['fla']}, Triton {versions['triton']}, on {card} "
        f"differ from the float32 reference: {listed}, expected at most {TOLERANCE:.0%} ({heads} heads of {head_dim}, "
        f"{tokens} tokens). Install Triton 3.7.1 or later, or tilelang (pip install tilelang)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: check one shape on the first device and print the errors."""
    parser = argparse.ArgumentParser(prog="python -m hwh_kernels.gated_delta_rule_check", description=main.__doc__)
    parser.add_argument("shape", type=shape, metavar="HEADSxHEAD_DIM")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a micro-batch (default 1)")
    parser.add_argument("--length", type=int, help="tokens of a sequence, to compile for these as well")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: bfloat16")
    parser.add_argument("--marker", type=Path, help="file to make once the check has passed")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("error: the kernels run on a GPU; torch sees none here")
    try:
        check = check_gated_delta_rule(
            torch.device("cuda", torch.cuda.current_device()),
            [given.shape],
            batch=given.batch,
            length=given.length,
            dtype=getattr(torch, given.dtype),
        )
    except (KernelsDisagree, ImportError) as error:
        raise SystemExit(f"error: {error}") from error
    if given.marker is not None:
        given.marker.parent.mkdir(parents=True, exist_ok=True)
        given.marker.touch()
    for name, errors in check.errors.items():
        print(name, " ".join(f"{tensor} {error:.2%}" for tensor, error in errors.items()))


if __name__ == "__main__":
    main()
