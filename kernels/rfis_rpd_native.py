"""RFIS and RPD in one small C function, compiled at first use by the machine's own compiler (under a second).

With x = p'/p and t = (p' - p)/(p' + p) = (x - 1)/(x + 1), JS(p, p') = sum_j (p_j + p'_j)/2 * G(t_j)/2 where
G(t) = (1 + t) log(1 + t) + (1 - t) log(1 - t) is even and non-negative. The sum runs over G itself, by its power series
t^2 + t^4/6 + t^6/15 + ... where |t| < 1/4, and by log 4 - |u| (1 - |t|) - 2 log(1 + e^-|u|), u = log x, elsewhere: no
term cancels, so a divergence of 1e-9 keeps its digits. exp and log1p are polynomials, so that compilers turn the loops
into vector instructions; a row of c and of e^-c stays in the first-level cache between the two passes.

The source is a string of this module, and not a file beside it, so that code hashes of jobs cover it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .rfis_rpd_eager import eager_tile
from .rfis_rpd_reference import LN2

EXPONENT_LIMIT = 32.0
"""Largest |c| that the C function may meet: e^(2 * 32) times a probability that underflows float32 is below 1e-9."""

COMPILERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")

# No -ffast-math: libraries linked with it flush subnormal numbers to zero in the whole process.
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")

SOURCE = r"""
#include <math.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* e^x for |x| <= 87, relative error 1e-7: x = n log 2 + f, e^f by its Taylor polynomial, 2^n by the exponent bits. */
static inline float exponential(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float shifted = x * 1.44269504f + magic;
    int n, one;
    memcpy(&n, &shifted, 4);
    memcpy(&one, &magic, 4);
    float whole = shifted - magic;
    float f = x - whole * 0.693359375f;
    f = f + whole * 2.12194440e-4f;
    float poly = 1.0f / 5040.0f;
    poly = poly * f + 1.0f / 720.0f;
    poly = poly * f + 1.0f / 120.0f;
    poly = poly * f + 1.0f / 24.0f;
    poly = poly * f + 1.0f / 6.0f;
    poly = poly * f + 0.5f;
    poly = poly * f + 1.0f;
    poly = poly * f + 1.0f;
    int bits = (n - one + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return poly * scale;
}

/* log(1 + v) for v in [0, 1], relative error 5e-9 (least-squares Chebyshev fit of log(1 + v)/v, degree 9). */
static inline float log_one_plus(float v) {
    float poly = -0.0032561171f;
    poly = poly * v + 0.0199059744f;
    poly = poly * v - 0.0570619374f;
    poly = poly * v + 0.1061402914f;
    poly = poly * v - 0.1531171780f;
    poly = poly * v + 0.1967806324f;
    poly = poly * v - 0.2495454711f;
    poly = poly * v + 0.3333000265f;
    poly = poly * v - 0.4999990392f;
    poly = poly * v + 0.9999999954f;
    return poly * v;
}

/* (1 + t) log(1 + t) + (1 - t) log(1 - t) by its series in t^2 < 1/16, relative error 1e-8. */
static inline float series(float s) {
    float poly = 1.0f / 66.0f;
    poly = poly * s + 1.0f / 45.0f;
    poly = poly * s + 1.0f / 28.0f;
    poly = poly * s + 1.0f / 15.0f;
    poly = poly * s + 1.0f / 6.0f;
    poly = poly * s + 1.0f;
    return poly * s;
}

/* a [groups][4][rows], b [groups][4][keys], p [rows][keys], seen [rows]: keys that may have p > 0; scratch [2][keys].
   result [groups]: sum over rows of JS in nats; largest [groups]: largest |c|. */
void divergences(const float *a, const float *b, const float *p, const long long *seen, long groups, long rows,
                 long keys, float *scratch, double *result, float *largest) {
    float *__restrict__ removed = scratch;
    float *__restrict__ weight = scratch + keys;
    for (long group = 0; group < groups; group++) {
        const float *b0 = b + group * 4 * keys, *b1 = b0 + keys, *b2 = b1 + keys, *b3 = b2 + keys;
        double total = 0.0;
        float biggest = 0.0f;
        for (long row = 0; row < rows; row++) {
            const float *own = a + group * 4 * rows + row;
            const float a0 = own[0], a1 = own[rows], a2 = own[2 * rows], a3 = own[3 * rows];
            const float *chance = p + row * keys;
            const long last = (long)seen[row];
            float norm = 0.0f, top = 0.0f;
#pragma omp simd reduction(+ : norm) reduction(max : top)
            for (long key = 0; key < last; key++) {
                float c = a0 * b0[key] + a1 * b1[key] + a2 * b2[key] + a3 * b3[key];
                float size = fabsf(c);
                top = size > top ? size : top;
                c = c > 87.0f ? 87.0f : c;
                c = c < -87.0f ? -87.0f : c;
                float w = exponential(-c);
                removed[key] = c;
                weight[key] = w;
                norm += chance[key] * w;
            }
            biggest = top > biggest ? top : biggest;
            const float log_norm = logf(norm), inverse = 1.0f / norm;
            float sum = 0.0f;
            if (top < 0.25f) { /* then |u| <= 2 |c| keeps |t| below 1/4 for all keys */
#pragma omp simd reduction(+ : sum)
                for (long key = 0; key < last; key++) {
                    float x = weight[key] * inverse;
                    float t = (x - 1.0f) / (x + 1.0f);
                    sum += (chance[key] + chance[key] * x) * series(t * t);
                }
                total += (double)sum;
                continue;
            }
#pragma omp simd reduction(+ : sum)
            for (long key = 0; key < last; key++) {
                float x = weight[key] * inverse;
                float size = fabsf(removed[key] + log_norm);
                float other = 1.0f / x;
                float v = x < other ? x : other;
                float t = (1.0f - v) / (1.0f + v);
                float s = t * t;
                float large = 1.38629436f - size * (1.0f - t) - 2.0f * log_one_plus(v);
                float g = s < 0.0625f ? series(s) : large;
                sum += (chance[key] + chance[key] * x) * g;
            }
            total += (double)sum;
        }
        result[group] = 0.25 * total;
        largest[group] = biggest;
    }
}

#ifdef __cplusplus
}
#endif
"""


def _compiler() -> str | None:
    wanted = [os.environ[name] for name in ("CXX", "CC") if os.environ.get(name)]
    return next((path for name in (*wanted, *COMPILERS) if (path := shutil.which(name)) is not None), None)


@cache
def _function() -> ctypes._CFuncPtr | str:
    """The compiled function, or in a few words why there is none."""
    compiler = _compiler()
    if compiler is None:
        return "no C or C++ compiler on the PATH"
    with tempfile.TemporaryDirectory(prefix="hwh-probe-") as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        language = "c++" if "++" in Path(compiler).name else "c"
        source.write_text(SOURCE, encoding="utf-8")
        command = [compiler, *FLAGS, "-x", language, str(source), "-o", str(library), "-lm"]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode != 0:
            return f"{compiler} failed: {(built.stderr.strip().splitlines() or ['no message'])[0]}"
        function = ctypes.CDLL(str(library)).divergences
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_void_p] * 3
    return function


@cache
def native_works() -> bool:
    """Compile the function and try it against :func:`eager_tile`; a warning says why where that fails."""
    problem = _function() if isinstance(_function(), str) else None
    if problem is None:
        generator = torch.Generator().manual_seed(0)
        a, b = torch.randn(3, 4, 2, generator=generator), torch.randn(3, 4, 37, generator=generator)
        log_p = torch.log_softmax(torch.randn(2, 37, generator=generator), dim=-1)
        error = float((native_tile(a, b, log_p) - eager_tile(a, b, log_p).sum(dim=-1)).abs().max())
        problem = None if error < 1e-6 else f"the compiled function is off by {error:.1e}"
    if problem is not None:
        warnings.warn(f"probing without a compiled function, several times slower: {problem}", stacklevel=2)
    return problem is None


def native_tile(a: Tensor, b: Tensor, log_p: Tensor) -> Tensor:
    """Sum over rows of JS/ln 2, float32 [groups]: a [groups, 4, rows], b [groups, 4, keys], log_p [rows, keys].

    Groups with |c| above :data:`EXPONENT_LIMIT` go to :func:`eager_tile`, whose softmax cannot overflow. Runs on one
    core and lets other Python threads run meanwhile. Needs float32 on a CPU and a compiler (:func:`native_works`).
    """
    function = _function()
    if isinstance(function, str):
        raise RuntimeError(f"native_tile: {function}")
    a, b, p = a.contiguous(), b.contiguous(), log_p.exp().contiguous()
    groups, _, rows = a.shape
    keys = b.shape[-1]
    # Number of keys up to the last visible one of each row; the others hold no probability.
    places = torch.arange(1, keys + 1)
    seen = torch.where(log_p > float("-inf"), places, 0).amax(dim=-1)
    result, largest = torch.empty(groups, dtype=torch.float64), torch.empty(groups)
    scratch = torch.empty(2, keys)
    function(
        a.data_ptr(), b.data_ptr(), p.data_ptr(), seen.data_ptr(), groups, rows, keys,
        scratch.data_ptr(), result.data_ptr(), largest.data_ptr(),
    )  # fmt: skip
    values = (result / LN2).float()
    beyond = ~(largest <= EXPONENT_LIMIT)
    if bool(beyond.any()):
        values[beyond] = eager_tile(a[beyond], b[beyond], log_p).sum(dim=-1)
    return values


def native_tiles(tiles: list[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
    """:func:`native_tile` of many tiles, on as many cores as torch may use."""
    threads = min(torch.get_num_threads(), len(tiles))
    if threads <= 1:
        return [native_tile(*tile) for tile in tiles]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda tile: native_tile(*tile), tiles))
