"""RFIS and RPD in one Triton kernel: nothing of size query x key x frequency ever reaches memory.

One program takes a block of queries of one head and a few frequencies, and goes over the keys twice: first for the
partition sums of the changed distributions, then for the divergences. With u = log(p'/p) the divergence of one key is
sqrt(p p') S(u) / 2, where S(u) = u sinh(u/2) - 2 cosh(u/2) log cosh(u/2) is even, never negative and free of
cancellation as a polynomial in u^2: u^2 (1/4 + u^4 Q(u^2)). So one exponential (of log p + u/2) and some
multiplications give one term, and a divergence of 1e-9 keeps its digits. Beyond the polynomial's range, with
E = e^-|u|, the term is max(p, p') [(1 + E) (log 2 - log(1 + E)) - |u| E] / 2.

Which of the three forms a program takes follows from the Cauchy-Schwarz bound on |c| and from its own partition sums;
where the bound is so large that an exponential could overflow, a third pass finds the largest exponent first.

:mod:`hwh_kernels.rfis_rpd_triton` prepares the inputs and launches the kernel.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


def _coefficients(*natural: float) -> tuple[float, ...]:
    """Coefficients of S/(2 ln 2) = w (c0 + w^2 (c1 + c2 w + ...)) in w = (u log2 e)^2, from those in u^2."""
    scale = 0.5 / LN2
    return (0.25 * LN2**2 * scale, *(value * LN2 ** (2 * (power + 3)) * scale for power, value in enumerate(natural)))


# Minimax fits of S(u)/u^2 with S/u^2 = 1/4 at 0, relative error below 4.2e-7 for |u| <= 2 and |u| <= 4 (nats).
_SMALL = _coefficients(0.000216471342, -1.01567337e-05, 4.2104157e-07)
_MEDIUM = _coefficients(
    0.000216732755, -1.05745041e-05, 6.09182773e-07, -2.81997114e-08, 8.44464409e-10, -1.15186249e-11
)
S0, S1, S2, S3 = (tl.constexpr(value) for value in _SMALL)
M0, M1, M2, M3, M4, M5, M6 = (tl.constexpr(value) for value in _MEDIUM)
SMALL_LIMIT = tl.constexpr(2.0 * LOG2E)
MEDIUM_LIMIT = tl.constexpr(4.0 * LOG2E)
# 2^100 times 2^20 keys still fits float32.
SHIFT_LIMIT = tl.constexpr(100.0)
_TWICE_LOG2E = tl.constexpr(2.0 * LOG2E)
_MINUS_LOG2E = tl.constexpr(-LOG2E)
_MINUS_LN2 = tl.constexpr(-LN2)


@triton.jit
def _exp2(x, FAST: tl.constexpr):
    # tl.exp2 keeps subnormal results, which costs three more instructions; below 2^-126 nothing here matters.
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@triton.jit
def _tanh(y, FAST: tl.constexpr):
    s = y * y
    near = y * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869489))))
    far = 1.0 - 2.0 / (_exp2(tl.abs(y) * _TWICE_LOG2E, FAST) + 1.0)
    return tl.where(s < 0.0625, near, tl.where(y < 0, -far, far))


@triton.jit
def _capped(minus_c, logits, softcap, FAST: tl.constexpr):
    """Minus the fall of the capped logit, log2 units, when c (``minus_c`` = -c log2 e) is taken off the logit."""
    removed = minus_c * _MINUS_LN2
    before = _tanh(logits / softcap, FAST)
    after = _tanh((logits - removed) / softcap, FAST)
    return _tanh(removed / softcap, FAST) * (1.0 - before * after) * _MINUS_LOG2E * softcap


@triton.jit
def _terms(u, log2_p, TIER: tl.constexpr, FAST: tl.constexpr):
    """JS/ln 2 of single keys from u = log2(p'/p) and log2 p."""
    w = u * u
    if TIER == 1:
        value = w * (M0 + w * w * (M1 + w * (M2 + w * (M3 + w * (M4 + w * (M5 + w * M6))))))
        return _exp2(log2_p + 0.5 * u, FAST) * value
    value = w * (S0 + w * w * (S1 + w * (S2 + w * S3)))
    if TIER == 0:
        return _exp2(log2_p + 0.5 * u, FAST) * value
    size = tl.abs(u)
    near = size <= SMALL_LIMIT
    small = _exp2(-size, FAST)
    far_value = 0.5 * ((1.0 + small) * (1.0 - _log2(1.0 + small, FAST)) - size * small)
    mass = _exp2(log2_p + tl.where(near, 0.5 * u, tl.maximum(u, 0.0)), FAST)
    return mass * tl.where(near, value, far_value)


@triton.jit
def _changes(
    a0, a1, a2, a3, keys, log2_p, logits, place, k, start_rfis, between, softcap,
    key_step, START: tl.constexpr, CAPPED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """One tile: log2 p, and ``start`` - c (log2 units) of RFIS and RPD, each [BLOCK_F, BLOCK_Q, BLOCK_K].

    ``start`` is log2 p with START 0, log2 p - start_rfis with 1 and start_rfis with 2; for RPD ``between`` is added.
    """
    columns = k[None, None, :]
    b0 = tl.load(keys + columns)
    b1 = tl.load(keys + key_step + columns)
    b2 = tl.load(keys + 2 * key_step + columns)
    b3 = tl.load(keys + 3 * key_step + columns)
    chance = tl.load(log2_p + place + columns)
    if START == 0:
        start = chance
    elif START == 1:
        start = chance - start_rfis
    else:
        start = start_rfis
    if CAPPED:
        z = tl.load(logits + place + columns)
        rotated = a0 * b0 + a1 * b1
        full = a2 * b2 + a3 * b3 + rotated
        rfis = start + _capped(rotated, z, softcap, FAST)
        rpd = start + _capped(full, z, softcap, FAST)
    else:
        rfis = a1 * b1 + (a0 * b0 + start)
        rpd = a3 * b3 + (a2 * b2 + rfis)
    if START != 0:
        rpd += between
    return chance, rfis, rpd


@triton.jit
def _partition_sums(
    a0, a1, a2, a3, keys, log2_p, logits, place, first, last, shift_rfis, shift_rpd, softcap, key_step,
    START: tl.constexpr, CAPPED: tl.constexpr, FAST: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum p e^-c over the keys, each [BLOCK_F, BLOCK_Q]; divided by 2^shift with START 1, plain with START 0."""
    sum_rfis = tl.zeros([BLOCK_F, BLOCK_Q, BLOCK_K], tl.float32)
    sum_rpd = tl.zeros([BLOCK_F, BLOCK_Q, BLOCK_K], tl.float32)
    between = shift_rfis - shift_rpd
    for start in tl.range(first, last, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        _, rfis, rpd = _changes(
            a0, a1, a2, a3, keys, log2_p, logits, place, k, shift_rfis, between, softcap, key_step,
            START, CAPPED, FAST,
        )  # fmt: skip
        sum_rfis += _exp2(rfis, FAST)
        sum_rpd += _exp2(rpd, FAST)
    return tl.sum(sum_rfis, axis=2), tl.sum(sum_rpd, axis=2)


@triton.jit
def _divergences(
    a0, a1, a2, a3, keys, log2_p, logits, place, first, last, norm_rfis, between, softcap, key_step,
    TIER: tl.constexpr, CAPPED: tl.constexpr, FAST: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """JS/ln 2 of RFIS and of RPD, each [BLOCK_F, BLOCK_Q]."""
    js_rfis = tl.zeros([BLOCK_F, BLOCK_Q, BLOCK_K], tl.float32)
    js_rpd = tl.zeros([BLOCK_F, BLOCK_Q, BLOCK_K], tl.float32)
    for start in tl.range(first, last, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        chance, rfis, rpd = _changes(
            a0, a1, a2, a3, keys, log2_p, logits, place, k, -norm_rfis, between, softcap, key_step,
            2, CAPPED, FAST,
        )  # fmt: skip
        js_rfis += _terms(rfis, chance, TIER, FAST)
        js_rpd += _terms(rpd, chance, TIER, FAST)
    return tl.sum(js_rfis, axis=2), tl.sum(js_rpd, axis=2)


@triton.jit(do_not_specialize=["head_start", "heads_per_group", "num_heads"])
def divergence_kernel(
    query_factors,
    key_factors,
    key_lengths,
    turns,
    log2_p,
    logits,
    seen,
    out,
    head_start,
    heads_per_group,
    num_heads,
    num_queries,
    num_keys,
    num_frequencies,
    softcap,
    CAPPED: tl.constexpr,
    FAST: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    q = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    row_head = tl.program_id(2)
    head = head_start + row_head
    group = head // heads_per_group
    # In tiles, so that the compiler knows how loads are aligned.
    first = tl.load(seen + 2 * tl.program_id(1)) * BLOCK_K
    last = tl.load(seen + 2 * tl.program_id(1) + 1) * BLOCK_K

    # Places beyond the last frequency or query repeat it, and are not stored: no load needs a mask.
    own_f = tl.minimum(f, num_frequencies - 1)[:, None, None]
    own_q = tl.minimum(q, num_queries - 1)[None, :, None]
    own = query_factors + head.to(tl.int64) * num_frequencies * 4 * num_queries + own_f * 4 * num_queries + own_q
    a0 = tl.load(own)
    a1 = tl.load(own + num_queries)
    a2 = tl.load(own + 2 * num_queries)
    a3 = tl.load(own + 3 * num_queries)
    key_step = num_frequencies * num_keys
    keys = key_factors + group.to(tl.int64) * 4 * num_frequencies * num_keys + own_f * num_keys
    place = (row_head * num_queries + own_q).to(tl.int64) * num_keys

    # |c| of RFIS is at most |q_f| |k_f|, that of RPD at most this times the largest |e^(i angle) - 1|.
    longest = tl.load(key_lengths + group * num_frequencies + own_f)
    turn = tl.load(turns + own_f)
    reach = tl.sqrt(a0 * a0 + a1 * a1) * longest
    bound_rfis, bound_rpd = tl.max(reach), tl.max(reach * turn)

    shift_rfis = tl.zeros([BLOCK_F, BLOCK_Q, 1], tl.float32)
    shift_rpd = tl.zeros([BLOCK_F, BLOCK_Q, 1], tl.float32)
    if tl.maximum(bound_rfis, bound_rpd) > SHIFT_LIMIT:
        top_rfis = tl.full([BLOCK_F, BLOCK_Q, BLOCK_K], -1e30, tl.float32)
        top_rpd = tl.full([BLOCK_F, BLOCK_Q, BLOCK_K], -1e30, tl.float32)
        for start in tl.range(first, last, BLOCK_K, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK_K)
            _, rfis, rpd = _changes(
                a0, a1, a2, a3, keys, log2_p, logits, place, k, shift_rfis, shift_rfis, softcap, key_step,
                0, CAPPED, FAST,
            )  # fmt: skip
            top_rfis, top_rpd = tl.maximum(top_rfis, rfis), tl.maximum(top_rpd, rpd)
        shift_rfis = tl.max(top_rfis, axis=2)[:, :, None]
        shift_rpd = tl.max(top_rpd, axis=2)[:, :, None]
        sum_rfis, sum_rpd = _partition_sums(
            a0, a1, a2, a3, keys, log2_p, logits, place, first, last, shift_rfis, shift_rpd, softcap,
            key_step, 1, CAPPED, FAST, BLOCK_F, BLOCK_Q, BLOCK_K, STAGES,
        )  # fmt: skip
    else:
        sum_rfis, sum_rpd = _partition_sums(
            a0, a1, a2, a3, keys, log2_p, logits, place, first, last, shift_rfis, shift_rpd, softcap,
            key_step, 0, CAPPED, FAST, BLOCK_F, BLOCK_Q, BLOCK_K, STAGES,
        )  # fmt: skip
    norm_rfis = tl.log2(sum_rfis)[:, :, None] + shift_rfis
    norm_rpd = tl.log2(sum_rpd)[:, :, None] + shift_rpd

    largest = tl.maximum(bound_rfis + tl.max(tl.abs(norm_rfis)), bound_rpd + tl.max(tl.abs(norm_rpd)))
    between = norm_rfis - norm_rpd
    if largest <= SMALL_LIMIT:
        js_rfis, js_rpd = _divergences(
            a0, a1, a2, a3, keys, log2_p, logits, place, first, last, norm_rfis, between, softcap,
            key_step, 0, CAPPED, FAST, BLOCK_F, BLOCK_Q, BLOCK_K, STAGES,
        )  # fmt: skip
    elif largest <= MEDIUM_LIMIT:
        js_rfis, js_rpd = _divergences(
            a0, a1, a2, a3, keys, log2_p, logits, place, first, last, norm_rfis, between, softcap,
            key_step, 1, CAPPED, FAST, BLOCK_F, BLOCK_Q, BLOCK_K, STAGES,
        )  # fmt: skip
    else:
        js_rfis, js_rpd = _divergences(
            a0, a1, a2, a3, keys, log2_p, logits, place, first, last, norm_rfis, between, softcap,
            key_step, 2, CAPPED, FAST, BLOCK_F, BLOCK_Q, BLOCK_K, STAGES,
        )  # fmt: skip

    result = out + head.to(tl.int64) * num_frequencies * num_queries + f[:, None] * num_queries + q[None, :]
    stored = (f < num_frequencies)[:, None] & (q < num_queries)[None, :]
    tl.store(result, js_rfis, mask=stored)
    tl.store(result + num_heads * num_frequencies * num_queries, js_rpd, mask=stored)
