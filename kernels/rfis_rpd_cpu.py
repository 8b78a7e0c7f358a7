"""Tiles of RFIS and RPD in plain torch operations, and the same compiled by torch.compile for large work on a CPU.

Both take c as a product of depth 4: (q~, -q) with (k~, k) for RPD, (q~, 0) with (k~, 0) for RFIS, so that removing
a frequency and removing its rotation are two kinds of group in one tile.

With x = p'/p and t = (p' - p)/(p' + p) = (x - 1)/(x + 1), JS(p, p') = sum_j (p_j + p'_j)/2 * G(t_j)/2 where
G(t) = (1 + t) log(1 + t) + (1 - t) log(1 - t) is even and non-negative. The compiled tile sums G itself, by its power
series t^2 + t^4/6 + t^6/15 + ... where |t| < 1/4 and by log 4 - |u| (1 - |t|) - 2 log(1 + e^-|u|), u = log x,
elsewhere: no term cancels, so a divergence of 1e-9 keeps its digits.
"""

from __future__ import annotations

import math
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .rfis_rpd_reference import LN2, softcapped_difference

SERIES_COEFFICIENTS = tuple(1.0 / (n * (2 * n - 1)) for n in range(1, 7))
SERIES_LIMIT_SQUARED = 0.0625

# log(1 + v)/v on [0, 1], least-squares Chebyshev fit of degree 9; relative error 5e-9.
LOG1P_COEFFICIENTS = (
    0.9999999953734462, -0.49999903919300975, 0.3333000265384528, -0.24954547112659853, 0.19678063237789684,
    -0.15311717797731877, 0.10614029137756961, -0.057061937418686884, 0.019905974380535457, -0.0032561171214737523,
)  # fmt: skip

EXPONENT_LIMIT = 32.0
"""Largest |c| for the compiled tile: e^(2 * 32) times a probability that underflows float32 is still below 1e-9."""

TILE_ELEMENTS = 1_000_000


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """x (c0 + c1 x + c2 x^2 + ...) by Horner's rule."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + coefficient
    return result * x


def _tile(a: Tensor, b: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """JS/ln 2 [groups, rows] and the largest |c| [groups]: a [groups, 4, rows], b [groups, 4, keys], p [rows, keys]."""
    c = a[:, 0, :, None] * b[:, 0, None, :]
    for i in range(1, a.shape[1]):
        c = c + a[:, i, :, None] * b[:, i, None, :]
    largest = c.abs().amax(dim=(1, 2))
    w = torch.exp(-c)
    norm = (p * w).sum(dim=-1, keepdim=True)
    x = w * (1.0 / norm)
    t = torch.abs((x - 1.0) / (x + 1.0))
    size = torch.abs(c + torch.log(norm))
    smaller = torch.minimum(x, 1.0 / x)
    large = math.log(4.0) - size * (1.0 - t) - 2.0 * _polynomial(smaller, LOG1P_COEFFICIENTS)
    squared = t * t
    g = torch.where(squared < SERIES_LIMIT_SQUARED, _polynomial(squared, SERIES_COEFFICIENTS), large)
    return (0.25 / LN2) * ((p + p * x) * g).sum(dim=-1), largest


def eager_tile(
    a: Tensor, b: Tensor, log_p: Tensor, logits: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """JS/ln 2 [groups, rows] by the softmax form with log1p(t): any float type, any device, any size of c.

    ``a`` [groups, 4, rows], ``b`` [groups, 4, keys], ``log_p`` [rows, keys] (-inf at invisible keys): a key whose
    probability underflows may still win once c is removed. With ``softcap`` also ``logits`` before the cap.
    """
    c = torch.bmm(a.transpose(1, 2), b)
    if softcap is not None:
        c = softcapped_difference(logits, c, softcap)
    p = log_p.exp()
    changed = torch.softmax(torch.sub(log_p, c, out=c), dim=-1)
    info = torch.finfo(p.dtype)
    total = torch.add(changed, p, out=c).clamp_min_(info.tiny)
    t = torch.sub(changed, p).div_(total).clamp_(-1.0 + info.eps, 1.0 - info.eps)
    upper = torch.log1p(t, out=total).mul_(changed).sum(dim=-1)
    lower = t.neg_().log1p_().mul_(p).sum(dim=-1)
    return (upper + lower).mul_(0.5 / LN2).clamp_min_(0.0)


def compile_problem() -> str | None:
    """Why torch.compile cannot work on this machine's CPU, in a few words, or None."""
    compiler = os.environ.get("CXX") or next((c for c in ("g++", "clang++") if shutil.which(c)), None)
    if compiler is None or shutil.which(compiler) is None:
        return "no C++ compiler (g++ or clang++) on the PATH"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "the headers of Python (Python.h) are not installed"
    return None


@cache
def _compiled_tile() -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    return torch.compile(_tile)


def compiled_tile(a: Tensor, b: Tensor, log_p: Tensor) -> Tensor:
    """The same as :func:`eager_tile` in float32 on a CPU, compiled once for all numbers of rows and keys.

    Groups with |c| above :data:`EXPONENT_LIMIT` go to :func:`eager_tile`, whose softmax cannot overflow.
    """
    if a.shape[-1] < 2 or b.shape[-1] < 2:
        return eager_tile(a, b, log_p)  # sizes of 1 would be compiled apart
    a, b, p = a.contiguous(), b.contiguous(), log_p.exp()
    for tensor, dimensions in ((a, (2,)), (b, (2,)), (p, (0, 1))):
        torch._dynamo.mark_dynamic(tensor, dimensions)
    with torch.no_grad():  # one mode, since a change of mode would compile anew
        result, largest = _compiled_tile()(a, b, p)
    beyond = ~(largest <= EXPONENT_LIMIT)
    if bool(beyond.any()):
        result[beyond] = eager_tile(a[beyond], b[beyond], log_p)
    return result


@cache
def compiled_tile_works(groups: int) -> bool:
    """Compile the tile for a number of groups and try it; a warning says why where that fails."""
    problem = compile_problem()
    if problem is None:
        a, b = torch.full((groups, 4, 3), 0.1), torch.full((groups, 4, 5), 0.2)
        b[:, :, 2:] = 0.7
        log_p = torch.full((3, 5), 0.2).log()
        try:
            error = float((compiled_tile(a, b, log_p) - eager_tile(a, b, log_p)).abs().max())
            problem = None if error < 1e-6 else f"the compiled tile is off by {error:.1e}"
        except Exception as failure:  # torch.compile wraps the errors of compilers in many classes
            problem = f"torch.compile failed: {str(failure).strip().splitlines()[0]}"
    if problem is not None:
        warnings.warn(f"probing without torch.compile, several times slower: {problem}", stacklevel=2)
    return problem is None
