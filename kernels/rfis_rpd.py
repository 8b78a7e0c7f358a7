"""RFIS and RPD of one sample and one attention layer, averaged over its queries; chooses the fastest path.

Backends: ``triton`` (float32 on a CUDA device), ``cpu-native`` (float32 on a CPU) needs a C or C++ compiler,
``torch-eager`` runs anywhere, ``reference`` is the exact form of :mod:`hwh_kernels.rfis_rpd_reference`. ``auto`` takes
the first that works; ``torch`` means ``torch-eager``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .launching import TRITON_IS_INSTALLED
from .rfis_rpd_eager import TILE_ELEMENTS, eager_tile
from .rfis_rpd_native import native_tiles, native_works
from .rfis_rpd_reference import (
    Pairing,
    angles,
    check_arguments,
    js_of_removed,
    num_groups,
    rfis_rpd_per_query,
    rotate_pairs,
    softcapped_difference,
    split_pairs,
    visible_keys,
)

BACKENDS = ("triton", "cpu-native", "torch-eager", "reference")

COMPILE_PAYS_ELEMENTS = 5e7
"""Heads x queries x keys x groups x 2 metrics above which compiling (half a second) is sooner done than eager torch."""

CUDA_TILE_ELEMENTS = 32_000_000


def work_elements(heads: int, queries: int, keys: int, groups: int) -> int:
    """Number of (head, query, key, group, metric) that one call measures."""
    return 2 * heads * queries * keys * groups


def triton_works(device: torch.device | str) -> bool:
    """Whether Triton is installed and ``device`` is a CUDA device of compute capability 8.0 or higher."""
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available() or not TRITON_IS_INSTALLED:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def choose_backend(
    backend: str, device: torch.device | str, elements: float, dtype: torch.dtype = torch.float32
) -> str:
    """The backend that ``auto`` or ``torch`` stands for, given the whole work ahead (see :func:`work_elements`).

    Raises ValueError for an unknown name, and for ``triton`` or ``cpu-native`` where they cannot run.
    """
    on_cpu = torch.device(device).type == "cpu" and dtype == torch.float32
    if backend == "torch":
        return "torch-eager"
    if backend == "auto":
        if dtype == torch.float32 and triton_works(device):
            return "triton"
        return "cpu-native" if on_cpu and elements >= COMPILE_PAYS_ELEMENTS and native_works() else "torch-eager"
    if backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r} is unknown; expected 'auto', 'torch' or one of {BACKENDS}")
    if backend == "cpu-native" and not (on_cpu and native_works()):
        raise ValueError(f"backend: cpu-native needs float32 on a CPU and a compiler, got {dtype} on {device}")
    if backend == "triton" and not (dtype == torch.float32 and triton_works(device)):
        raise ValueError(
            f"backend: triton needs float32 on a CUDA device of compute capability 8.0 or higher and the package "
            f"triton, got {dtype} on {device}"
        )
    return backend


def _factors(
    q: Tensor, k: Tensor, frequencies: int, pairing: Pairing, query_angle: Tensor, key_angle: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Depth-4 factors of c: a [H, 2F, 4, Q] and b [G, 2F, 4, T]; the first F groups are RFIS, the others RPD."""
    q0, q1 = split_pairs(q, frequencies, pairing)
    k0, k1 = split_pairs(k, frequencies, pairing)
    r0, r1 = rotate_pairs(q0, q1, query_angle)
    s0, s1 = rotate_pairs(k0, k1, key_angle)
    nothing, nothing_k = torch.zeros_like(q0), torch.zeros_like(k0)
    a = torch.stack(
        [torch.cat(pair, dim=-1) for pair in ((r0, r0), (r1, r1), (nothing, -q0), (nothing, -q1))], dim=-2
    )  # [H, Q, 4, 2F]
    b = torch.stack(
        [torch.cat(pair, dim=-1) for pair in ((s0, s0), (s1, s1), (nothing_k, k0), (nothing_k, k1))], dim=-2
    )
    return (a * scale).permute(0, 3, 2, 1).contiguous(), b.permute(0, 3, 2, 1).contiguous()


def rfis_rpd(
    q: Tensor,
    k: Tensor,
    inv_freq: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scaling: float,
    attention_scaling: float = 1.0,
    pairing: Pairing = "half",
    window: int | None = None,
    key_mask: Tensor | None = None,
    softcap: float | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """RFIS and RPD (equations 8 to 13), mean over queries, each [H, groups]; groups = F, or F + 1 with partial rotary.

    Arguments as in :func:`hwh_kernels.rfis_rpd_reference.rfis_rpd_per_query`; several samples that share positions and
    mask may lie one after another along the head dimension of ``q`` and of ``k``. Angles are float32 products of
    integer positions and frequencies, as models form them (float64 with float64 inputs). Peak memory: some 10 tiles of
    4 MB on a CPU, besides H x Q x T logits and 8 numbers for each frequency of each query and key.
    """
    check_arguments(q, k, inv_freq, query_positions, key_positions, pairing)
    heads, queries, head_dim = q.shape
    frequencies, keys = inv_freq.numel(), k.shape[1]
    groups = num_groups(head_dim, frequencies)
    name = choose_backend(backend, q.device, work_elements(heads, queries, keys, groups), q.dtype)
    if name == "reference":
        per_query = rfis_rpd_per_query(
            q, k, inv_freq, query_positions, key_positions, scaling=scaling, attention_scaling=attention_scaling,
            pairing=pairing, window=window, key_mask=key_mask, softcap=softcap,
        )  # fmt: skip
        return per_query[0].mean(dim=1), per_query[1].mean(dim=1)
    if name == "triton":
        from .rfis_rpd_triton import rfis_rpd_triton

        rfis, rpd, rest = rfis_rpd_triton(
            q, k, inv_freq, query_positions, key_positions, scaling=scaling, attention_scaling=attention_scaling,
            pairing=pairing, window=window, key_mask=key_mask, softcap=softcap,
        )  # fmt: skip
        return _with_unrotated(rfis.mean(dim=-1), rpd.mean(dim=-1), inv_freq, None if rest is None else rest.mean(-1))

    visible = visible_keys(query_positions, key_positions, window, key_mask)
    a, b = _factors(
        q, k, frequencies, pairing,
        angles(query_positions, inv_freq, q.dtype), angles(key_positions, inv_freq, q.dtype),
        scaling * attention_scaling**2,
    )  # fmt: skip
    native = name == "cpu-native" and softcap is None
    tile_elements = CUDA_TILE_ELEMENTS if q.device.type == "cuda" else TILE_ELEMENTS
    rows = queries if native else max(1, min(queries, tile_elements // (2 * frequencies * keys)))
    result = q.new_zeros(heads, 2 * frequencies)
    rest_result = q.new_zeros(heads)
    waiting: list[tuple[Tensor, Tensor, Tensor]] = []
    blocks = [(part, _keys_seen(visible[part])) for part in (slice(s, s + rows) for s in range(0, queries, rows))]
    for head in range(heads):
        key_head = head // (heads // k.shape[0])
        # The first two factors of the first F groups are the rotated pairs: their products add up to the logits.
        rotated_q, rotated_k = a[head, :frequencies, :2].flatten(0, 1), b[key_head, :frequencies, :2].flatten(0, 1)
        logits = rotated_q.T @ rotated_k
        rest = None
        if groups > frequencies:
            rest = scaling * (q[head, :, 2 * frequencies :] @ k[key_head, :, 2 * frequencies :].T)
            logits = logits + rest
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        capped = capped.masked_fill(~visible, -math.inf)
        log_p = torch.log_softmax(capped, dim=-1)
        if rest is not None:
            removed = rest if softcap is None else softcapped_difference(logits, rest, softcap)
            rest_result[head] = js_of_removed(log_p, removed, visible).sum()
        if native:
            waiting.append((a[head], b[key_head], log_p))
            continue
        for part, last in blocks:
            tile = (a[head, :, :, part], b[key_head, :, :, :last], log_p[part, :last])
            result[head] += eager_tile(*tile, logits[part, :last], softcap).sum(dim=-1)
    if native:
        result = torch.stack(native_tiles(waiting))
    result /= queries
    rfis, rpd = result.split(frequencies, dim=1)
    return _with_unrotated(rfis, rpd, inv_freq, rest_result / queries if groups > frequencies else None)


def _with_unrotated(rfis: Tensor, rpd: Tensor, inv_freq: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maps [H, groups] from those of the frequencies [H, F] and RFIS [H] of the unrotated dimensions."""
    # A frequency of 0 rotates nothing: exactly 0, where the products above leave their rounding.
    rpd = rpd.masked_fill(inv_freq == 0, 0.0)
    if rest is not None:
        # Unrotated dimensions: removing them matters, removing their rotation changes nothing.
        rfis = torch.cat([rfis, rest[:, None]], dim=1)
        rpd = torch.cat([rpd, torch.zeros_like(rest)[:, None]], dim=1)
    return rfis.contiguous(), rpd.contiguous()


def _keys_seen(visible: Tensor) -> int:
    """Keys up to the last one that any of these queries [R, T] sees, where leaving the others out is worth a copy."""
    keys = visible.shape[1]
    last = int(visible.any(dim=0).nonzero().max()) + 1
    return last if last < 0.9 * keys else keys
