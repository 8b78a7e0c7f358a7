"""RFIS and RPD of one attention layer, exactly: the torch reference for every other path (float64 or float32).

Removing a frequency (RFIS, equations 8 and 10) or its rotation (RPD, equations 11 to 13) takes an amount c off the
logits of a row. With u = log(p'/p), where p' is the changed distribution, the Jensen-Shannon divergence is
sum_j p_j h(u_j) / 2 with h(u) = u e^u - (1 + e^u)(softplus(u) - ln 2). Near u = 0 the terms of h cancel, so there the
series u^2/4 + u^3/8 + u^4/32 + ... takes its place: the RPD below the band is claimed to vanish and must
not be rounding.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Pairing = Literal["half", "interleaved"]

LN2 = math.log(2.0)
SERIES_LIMIT = 0.02
TILE_ELEMENTS = 4_000_000
"""Elements of one tile [heads, frequencies, queries, keys]; about ten temporaries of that size live at once."""


def check_arguments(
    q: Tensor, k: Tensor, inv_freq: Tensor, query_positions: Tensor, key_positions: Tensor, pairing: str
) -> None:
    """Raise ValueError, naming the argument, when shapes, types or names do not fit together."""
    if q.ndim != 3 or k.ndim != 3 or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)}: expected [H, Q, d] and [G, T, d] with equal d")
    if q.dtype not in (torch.float32, torch.float64) or k.dtype != q.dtype:
        raise ValueError(f"q {q.dtype} and k {k.dtype}: expected both float32 or both float64; cast them first")
    if q.shape[0] % k.shape[0]:
        raise ValueError(f"q has {q.shape[0]} heads, not a multiple of the {k.shape[0]} heads of k")
    if 2 * inv_freq.numel() > q.shape[-1]:
        raise ValueError(f"inv_freq: {inv_freq.numel()} frequencies need more than head_dim {q.shape[-1]} dimensions")
    if query_positions.shape != q.shape[1:2] or key_positions.shape != k.shape[1:2]:
        raise ValueError(
            f"positions of shape {tuple(query_positions.shape)} and {tuple(key_positions.shape)}: expected "
            f"{tuple(q.shape[1:2])} for queries and {tuple(k.shape[1:2])} for keys"
        )
    if query_positions.is_floating_point() or key_positions.is_floating_point():
        raise ValueError("positions must be integers, so that angles are formed in float32 or float64 from them")
    if pairing not in ("half", "interleaved"):
        raise ValueError(f"pairing: {pairing!r} is unknown; expected 'half' or 'interleaved'")


def num_groups(head_dim: int, num_frequencies: int) -> int:
    """Frequency groups of a head: one a frequency, and one more for unrotated dimensions where there are any."""
    return num_frequencies + (1 if head_dim > 2 * num_frequencies else 0)


def split_pairs(x: Tensor, num_frequencies: int, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """First and second coordinate of every rotated pair, each [..., F], of vectors [..., d]."""
    rotated = x[..., : 2 * num_frequencies]
    if pairing == "half":
        return rotated[..., :num_frequencies], rotated[..., num_frequencies:]
    return rotated[..., 0::2], rotated[..., 1::2]


def angles(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> Tensor:
    """Angles in radians [N, F] from integer positions, in float32 as models form them, or in float64."""
    return positions.to(dtype)[:, None] * inv_freq.to(dtype)[None, :]


def rotate_pairs(first: Tensor, second: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the pairs [..., N, F] by angles [N, F] (equation 4)."""
    cos, sin = angle.cos().to(first.dtype), angle.sin().to(first.dtype)
    return first * cos - second * sin, second * cos + first * sin


def visible_keys(
    query_positions: Tensor, key_positions: Tensor, window: int | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """V(i) as bool [Q, T]: keys at or before the query, inside the window, not padding (``key_mask`` bool [T]).

    A window of W holds the W newest positions, the query's own included. Raises ValueError where a query sees no key.
    """
    distance = query_positions[:, None] - key_positions[None, :]
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    if key_mask is not None:
        visible &= key_mask.bool()[None, :]
    if not bool(visible.any(dim=1).all()):
        raise ValueError("key_mask, window: a query sees no key at all; leave padded positions out of the queries")
    return visible


def contributions(
    q: Tensor,
    k: Tensor,
    inv_freq: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    scaling: float,
    attention_scaling: float = 1.0,
    pairing: Pairing = "half",
    angle_dtype: torch.dtype | None = None,
    rotate: bool = True,
) -> Tensor:
    """Logit contributions c of every frequency [H, groups, Q, T] (equation 5); their sum over groups is the logits.

    With ``rotate=False`` the rotation is the identity (equation 11). The last group holds unrotated dimensions.
    """
    frequencies = inv_freq.numel()
    k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    angle_dtype = angle_dtype or q.dtype
    query = split_pairs(q, frequencies, pairing)
    key = split_pairs(k, frequencies, pairing)
    if rotate:
        query = rotate_pairs(*query, angles(query_positions, inv_freq, angle_dtype))
        key = rotate_pairs(*key, angles(key_positions, inv_freq, angle_dtype))
    scale = scaling * attention_scaling**2
    first = torch.einsum("hqf,htf->hfqt", query[0], key[0])
    parts = [scale * (first + torch.einsum("hqf,htf->hfqt", query[1], key[1]))]
    if q.shape[-1] > 2 * frequencies:
        # Unrotated dimensions never pass through cos and sin, so YaRN's factor is not on them.
        rest = torch.einsum("hqd,htd->hqt", q[..., 2 * frequencies :], k[..., 2 * frequencies :])
        parts.append(scaling * rest[:, None])
    return torch.cat(parts, dim=1)


def js_of_removed(log_p: Tensor, removed: Tensor, visible: Tensor) -> Tensor:
    """JS(p, p')/ln 2 along the last dimension, where p' is proportional to p e^(-removed); values in [0, 1).

    ``log_p`` holds -inf and ``removed`` anything at invisible keys; all broadcast against one another.
    """
    removed = removed.masked_fill(~visible, 0.0)  # before exp, so that no invisible key makes inf or NaN
    log_q = log_p - removed
    # The same sum over log_p is 0 up to rounding; taking it off makes c = 0 give exactly 0.
    log_norm = torch.logsumexp(log_q, dim=-1, keepdim=True) - torch.logsumexp(log_p, dim=-1, keepdim=True)
    u = -removed - log_norm
    p, changed = log_p.exp(), (log_q - log_norm).exp()
    # p h(u) written with p e^u = changed, which stays finite where e^u alone would overflow.
    general = changed * u - (p + changed) * (torch.nn.functional.softplus(u) - LN2)
    series = p * (u * u) * (0.25 + u * (0.125 + u * (1 / 32 + u * (1 / 192 + u / 1152))))
    js = 0.5 * torch.where(u.abs() < SERIES_LIMIT, series, general).masked_fill(~visible, 0.0).sum(dim=-1)
    return js.clamp_min(0.0) / LN2


def softcapped_difference(logits: Tensor, removed: Tensor, softcap: float) -> Tensor:
    """How much a capped logit falls when ``removed`` is taken off the logit before the cap.

    cap (tanh a - tanh b) = cap tanh(a - b) (1 - tanh a tanh b), which does not cancel for small changes.
    """
    before, after = torch.tanh(logits / softcap), torch.tanh((logits - removed) / softcap)
    return softcap * torch.tanh(removed / softcap) * (1 - before * after)


def rfis_rpd_per_query(
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
    angle_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """RFIS and RPD of every query, each [H, Q, groups], in the type of ``q`` (float64 or float32).

    Args:
        q: queries after QK-norm and before rotation, [H, Q, d].
        k: keys likewise, [G, T, d]; head h reads key head h // (H/G).
        inv_freq: the model's own frequencies in radians a token, [F]; dimensions beyond 2F form one more group.
        query_positions, key_positions: integer positions [Q] and [T].
        scaling: factor on the dot product; ``attention_scaling`` the factor that YaRN multiplies into cos and sin.
        pairing: ``half`` pairs dimensions (r, r+F), ``interleaved`` pairs (2r, 2r+1).
        window: newest positions that a query sees, itself included; ``key_mask`` bool [T], False at padding.
        softcap: cap tanh(z/cap) on the logits; the intervention acts before it.
        angle_dtype: type in which angles are formed, by default that of ``q``.

    Memory stays under 1 GB at 2048 keys and 128 queries: heads, frequencies and queries go in tiles.
    """
    check_arguments(q, k, inv_freq, query_positions, key_positions, pairing)
    heads, queries, head_dim = q.shape
    groups = num_groups(head_dim, inv_freq.numel())
    per_key_head = heads // k.shape[0]
    rows = max(1, min(queries, TILE_ELEMENTS // (groups * k.shape[1])))
    rfis, rpd = q.new_zeros(heads, queries, groups), q.new_zeros(heads, queries, groups)
    options = {"scaling": scaling, "attention_scaling": attention_scaling, "pairing": pairing}
    for start in range(0, queries, rows):
        part = slice(start, min(start + rows, queries))
        visible = visible_keys(query_positions[part], key_positions, window, key_mask)
        for head in range(heads):
            arguments = (
                q[head : head + 1, part],
                k[head // per_key_head : head // per_key_head + 1],
                inv_freq,
                query_positions[part],
                key_positions,
            )
            rotated = contributions(*arguments, **options, angle_dtype=angle_dtype)[0]
            plain = contributions(*arguments, **options, rotate=False)[0]
            logits = rotated.sum(dim=0)
            capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            log_p = torch.log_softmax(capped.masked_fill(~visible, -math.inf), dim=-1)
            for result, removed in ((rfis, rotated), (rpd, rotated - plain)):
                if softcap is not None:
                    removed = softcapped_difference(logits, removed, softcap)
                result[head, part] = js_of_removed(log_p, removed, visible).T
    return rfis, rpd
