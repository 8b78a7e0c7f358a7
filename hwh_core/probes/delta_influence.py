"""How much each token weighs in the output of a Gated DeltaNet head: the counterpart of its attention weights.

With the recurrence of :mod:`hwh_kernels.gated_delta_rule` (equation 3 of the paper; arXiv 2412.06464), written with
a_t = exp(g_t), the state that a query reads is a product of maps, so the output is linear in the values::

    o_t = sum_s w_ts v_s
    w_ts = scale * beta_s k_s^T [a_{s+1} (I - beta_{s+1} k_{s+1} k_{s+1}^T) ... a_t (I - beta_t k_t k_t^T)] q_t

w_ts stands where softmax attention has its weight. It is exact for the value path of the recurrence, needs no gradient,
and may be negative. It does not hold the influence of a token through q, k, the gates and the short convolutions: with
4 taps, v_s also carries the three tokens before s.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_SIZE = 64
# exp(-200) is 0 in float32; without a floor a head that forgets all (g = -inf) would give inf - inf.
LOWEST_LOG_DECAY = -200.0


def delta_rule_weights(
    q: Tensor, k: Tensor, g: Tensor, beta: Tensor, query_positions: Tensor, scale: float, chunk_size: int = CHUNK_SIZE
) -> Tensor:
    """w_ts of the given queries, [B, H, Q, T]; 0 for tokens behind the query.

    ``q`` [B, Q, H, d] at ``query_positions`` (int [Q], rising) and ``k`` [B, T, H, d], both L2-normalised; ``g`` (log
    decay, <= 0) and ``beta`` [B, T, H]. Computed in float32, or float64 where q is float64, and in O(Q T d) with
    nothing larger than the result held: each query's vector goes backwards through the chunks, the transpose of the
    chunked form. Raises ValueError for positions that do not rise or lie outside of the keys.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, length, heads, _ = k.shape
    places = query_positions.tolist()
    if places != sorted(set(places)) or not places or places[0] < 0 or places[-1] >= length:
        raise ValueError(f"query_positions: expected rising positions in 0..{length - 1}, got {places[:3]}...")
    vectors = (q.to(dtype) * scale).transpose(1, 2).clone()
    keys = k.to(dtype).transpose(1, 2)
    strength = beta.to(dtype).transpose(1, 2)
    # Sums of logarithms in float64: their differences decide weights of tokens that lie close together.
    log_decay = g.double().clamp_min(LOWEST_LOG_DECAY).transpose(1, 2)
    weights = torch.zeros(batch, heads, len(places), length, dtype=dtype, device=k.device)
    for start in range((length - 1) // chunk_size * chunk_size, -1, -chunk_size):
        stop = min(start + chunk_size, length)
        first = sum(place < start for place in places)
        if first == len(places):
            continue
        # The last row of the chunk that a query has seen: its own, or for later queries the last of all.
        rows = query_positions[first:].clamp_max(stop - 1) - start
        chunk, b, cumulative = keys[:, :, start:stop], strength[:, :, start:stop], log_decay[:, :, start:stop].cumsum(2)
        difference = cumulative[..., :, None] - cumulative[..., None, :]
        above = torch.ones(stop - start, stop - start, dtype=torch.bool, device=k.device).triu(1)
        decay = difference.masked_fill(above, float("-inf")).exp().to(dtype)
        growth = cumulative.exp().to(dtype)
        transposed = chunk.transpose(2, 3)
        system = (chunk * b[..., None]) @ transposed * decay
        seen = (vectors[:, :, first:] @ transposed) * decay[:, :, rows]
        # Row vectors x with x (I + tril(system, -1)) = seen; the solver takes the diagonal as 1 and nothing above it.
        solved = torch.linalg.solve_triangular(system, seen, upper=False, left=False, unitriangular=True)
        part = solved * b[:, :, None, :]
        weights[:, :, first:, start:stop] = part
        vectors[:, :, first:] = (
            growth[:, :, rows, None] * vectors[:, :, first:] - (part * growth[:, :, None, :]) @ chunk
        )
    return weights
