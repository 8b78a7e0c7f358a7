"""Gated delta rule in plain torch: recurrent form (one token at a time) and chunked form.

For one head with state S [d_k, d_v], at token t (equation 3 of the paper; Gated DeltaNet, arXiv 2412.06464)::

    S <- exp(g_t) S
    S <- S + beta_t k_t (v_t - S^T k_t)^T
    o_t = scale * S^T q_t

The decay comes before the delta correction. Shapes: q, k [B, T, H, d_k], v [B, T, H, d_v], g (log decay, <= 0) and
beta [B, T, H], state [B, H, d_k, d_v]. q and k are L2-normalised by the caller. Everything is computed in float32, or
in float64 where the inputs are float64; outputs have the dtype of v, the state is never less than float32.
"""

from __future__ import annotations

import torch

DEFAULT_CHUNK_SIZE = 32


def _compute_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _initial_state(
    q: torch.Tensor, v: torch.Tensor, initial_state: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    batch, _, heads, key_dim = q.shape
    shape = (batch, heads, key_dim, v.shape[-1])
    if initial_state is None:
        return q.new_zeros(shape, dtype=dtype)
    if tuple(initial_state.shape) != shape:
        raise ValueError(f"gated delta rule: initial_state has shape {tuple(initial_state.shape)}, expected {shape}")
    return initial_state.to(dtype)


def recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token by token: the definition, and the fast path for decoding. Returns (o [B, T, H, d_v], state or None)."""
    dtype = _compute_dtype(q)
    state = _initial_state(q, v, initial_state, dtype)
    out_dtype = v.dtype
    q, k, v, beta = (x.to(dtype) for x in (q * scale, k, v, beta))
    decay = g.to(dtype).exp()
    outputs = []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, None, None]
        predicted = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        update = beta[:, t, :, None] * (v[:, t] - predicted)
        state = state + k[:, t, :, :, None] * update[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, dim=1).to(out_dtype), state if output_final_state else None


def _chunks(x: torch.Tensor, padding: int, chunk_size: int) -> torch.Tensor:
    """[B, T, H, ...] -> contiguous [B, H, N, C, ...], zeros appended to T."""
    if padding:
        x = torch.cat((x, x.new_zeros((x.shape[0], padding, *x.shape[2:]))), dim=1)
    x = x.unflatten(1, (-1, chunk_size))
    return x.movedim(3, 1).contiguous()


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Chunk by chunk: matrix products inside a chunk, a recurrence over chunks. Same result and arguments as the
    recurrent form; T need not be a multiple of ``chunk_size``.

    Inside a chunk, with G the cumulative log decay and D_ij = exp(G_i - G_j) for j <= i, the corrected values solve the
    unit lower triangular system (I + tril(diag(beta) (K K^T * D), -1)) X = diag(beta) [V, exp(G) K].
    """
    if chunk_size < 1:
        raise ValueError(f"gated delta rule: chunk_size = {chunk_size} must be positive")
    dtype = _compute_dtype(q)
    batch, length, heads, _ = q.shape
    value_dim = v.shape[-1]
    out_dtype = v.dtype
    state = _initial_state(q, v, initial_state, dtype)
    # Zeros at the end change nothing: beta = 0 adds nothing to the state and g = 0 does not decay it.
    padding = -length % chunk_size
    q, k, v, g, beta = (_chunks(x.to(dtype), padding, chunk_size) for x in (q * scale, k, v, g, beta))

    cumulative = g.cumsum(-1)
    growth = cumulative.exp()[..., None]
    difference = cumulative[..., :, None] - cumulative[..., None, :]
    above = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).triu(1)
    # Masked before exp: above the diagonal the difference is positive and may overflow.
    decay = difference.masked_fill(above, float("-inf")).exp()
    k_beta = k * beta[..., None]
    # solve_triangular with unitriangular=True takes the diagonal as 1 and reads nothing above it.
    system = (k_beta @ k.transpose(-1, -2)) * decay
    right = torch.cat((v * beta[..., None], k_beta * growth), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split((value_dim, k.shape[-1]), dim=-1)
    within = (q @ k.transpose(-1, -2)) * decay
    q_growth = q * growth
    k_tail = (k * (cumulative[..., -1:] - cumulative).exp()[..., None]).transpose(-1, -2)
    chunk_decay = growth[..., -1:, :]

    outputs = []
    for index in range(q.shape[2]):
        corrected = values[:, :, index] - keys[:, :, index] @ state
        outputs.append(q_growth[:, :, index] @ state + within[:, :, index] @ corrected)
        state = state * chunk_decay[:, :, index] + k_tail[:, :, index] @ corrected
    output = torch.stack(outputs, dim=2)
    output = output.movedim(1, 3).reshape(batch, length + padding, heads, value_dim)[:, :length]
    return output.to(out_dtype), state if output_final_state else None
