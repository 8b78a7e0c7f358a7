"""Attention head groups: full attention with or without RoPE, and sliding-window attention, on torch's SDPA.

What a probe needs, on every :class:`AttentionGroup`:

- ``group`` (the :class:`~hwh_core.heads.HeadGroup`), ``head_dim``, ``num_heads``, ``num_key_value_heads``;
- ``inv_freq``: float32 [head_dim / 2] frequencies as used in the forward pass, or None without position encoding;
- ``scaling``: the softmax scale; ``window``: number of visible keys, the query's own included, or None;
- q and k after QK-norm and before rotation go through ``rotary.apply_rotary_pos_emb`` in passes without gradients (on
  a GPU, training passes do both at once); rotated (or, without position
  encoding, plain) q, k, v go through :func:`attend`, looked up in this module at each call. Both may be replaced.
  The mask that :func:`attend` gets is None, a boolean tensor or a :class:`~.sliding_window.SlidingWindow`; rows of the
  last two are read alike, as ``mask[..., rows, columns]``.

``HwHForCausalLM.rope_groups()`` lists (layer index, group index, module) of the groups that rotate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from hwh_kernels.normalised_rotation import normalised_rotation, uses_triton

from ..heads import HeadGroup
from . import rotary
from .cache import AttentionState
from .norm import HwHRMSNorm
from .sdpa import scaled_dot_product_attention
from .sliding_window import SlidingWindow, visible_pairs, windowed_attention


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scaling: float,
    mask: torch.Tensor | SlidingWindow | None,
) -> torch.Tensor:
    """Scaled dot-product attention: q [B, H, Tq, d], k and v [B, G, Tk, d] -> [B, H, Tq, d].

    ``mask`` is boolean [1 or B, 1, Tq, Tk], True where a key is visible, or a :class:`SlidingWindow`; None means plain
    causal attention with Tq = Tk, or a single query that sees every key. Query head h reads key head ``h // (H / G)``.
    """
    if isinstance(mask, SlidingWindow):
        return windowed_attention(q, k, v, scaling=scaling, mask=mask)
    # torch aligns its causal mask to the first key, so for a single query behind others it would hide all but that.
    causal = mask is None and q.shape[2] > 1
    return scaled_dot_product_attention(q, k, v, scaling=scaling, mask=mask, causal=causal)


class AttentionGroup(nn.Module):
    """One attention head group: hidden states [B, T, hidden_size] -> [B, T, group.width]; the mixer projects."""

    def __init__(self, hidden_size: int, group: HeadGroup, eps: float) -> None:
        super().__init__()
        self.group = group
        self.head_dim = group.head_dim
        self.num_heads = group.heads
        self.num_key_value_heads = group.key_value_heads
        self.scaling = group.head_dim**-0.5
        self.window = group.window
        key_value_width = self.num_key_value_heads * group.head_dim
        self.q_proj = nn.Linear(hidden_size, group.width, bias=False)
        self.k_proj = nn.Linear(hidden_size, key_value_width, bias=False)
        self.v_proj = nn.Linear(hidden_size, key_value_width, bias=False)
        self.g_proj = nn.Linear(hidden_size, group.width, bias=False) if group.gate else None
        self.q_norm = HwHRMSNorm(group.head_dim, eps) if group.qk_norm else None
        self.k_norm = HwHRMSNorm(group.head_dim, eps) if group.qk_norm else None
        self.o_norm = HwHRMSNorm(group.head_dim, eps) if group.output_norm else None

    def input_projections(self) -> tuple[nn.Linear, ...]:
        """Projections of the hidden states in the order of ``projected`` in :meth:`forward`: q, k, v, then the gate."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return projections if self.g_proj is None else (*projections, self.g_proj)

    @property
    def inv_freq(self) -> torch.Tensor | None:
        """float32 [head_dim / 2], from the group's own rope_theta; None without position encoding."""
        if self.group.rope_theta is None:
            return None
        return rotary.inverse_frequencies(self.head_dim, self.group.rope_theta, self.q_proj.weight.device)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        cos_sin: tuple[torch.Tensor, torch.Tensor] | None,
        mask: torch.Tensor | SlidingWindow | None,
        state: AttentionState | None,
        projected: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """``cos_sin`` float32 [B or 1, T, head_dim] for groups that rotate; ``mask`` as in :func:`attend`.

        ``projected``: the outputs [B, T, out_features] of :meth:`input_projections`, where the mixer has computed them
        already, as parts of one product for all its groups; None to compute them here.
        """
        batch, length, _ = hidden_states.shape
        projections = self.input_projections()
        if projected is None:
            projected = [projection(hidden_states) for projection in projections]
        elif len(projected) != len(projections):
            raise ValueError(
                f"projected: got {len(projected)} tensors, expected {len(projections)}, one a member of "
                "input_projections()"
            )
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in projected[:3])
        q, k = self._encoded(q, k, cos_sin)
        v = v.transpose(1, 2)
        if state is not None:
            k, v = state.update(k, v)
        output = attend(q, k, v, scaling=self.scaling, mask=mask).transpose(1, 2)
        if self.o_norm is not None:
            output = self.o_norm(output)
        output = output.reshape(batch, length, self.group.width)
        if self.g_proj is not None:
            output = output * F.silu(projected[3])
        return output

    def _encoded(
        self, q: torch.Tensor, k: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k [B, T, heads, head_dim] after QK-norm and rotation, where the group has them, heads first."""
        if self.q_norm is not None and self.k_norm is not None:
            # Only where gradients are kept: probes, which have none, look in between.
            if cos_sin is not None and torch.is_grad_enabled() and uses_triton(q):
                q = normalised_rotation(q, self.q_norm.weight, *cos_sin, self.q_norm.eps)
                k = normalised_rotation(k, self.k_norm.weight, *cos_sin, self.k_norm.eps)
                return q.transpose(1, 2), k.transpose(1, 2)
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return (q, k) if cos_sin is None else rotary.apply_rotary_pos_emb(q, k, *cos_sin)


def visible_keys(
    query_length: int,
    key_length: int,
    window: int | None,
    key_mask: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor | SlidingWindow | None:
    """Mask for :func:`attend`: None where none is needed, blocks for a window in a long sequence, else boolean.

    The boolean mask has shape [1 or B, 1, query_length, key_length]. The last query sees the last key. ``key_mask``
    [B, key_length] is False at padding. A padded query sees itself alone.
    """
    if window is not None and window >= key_length:
        window = None
    if key_mask is None and window is None and query_length in (1, key_length):
        return None
    # Up to two blocks of queries one boolean mask is smaller than what cutting into blocks copies.
    if window is not None and query_length > 2 * window:
        return SlidingWindow(query_length, key_length, window, key_mask, device)
    keys = torch.arange(key_length, device=device)
    return visible_pairs(keys[key_length - query_length :], keys, window, key_mask)
