"""Sliding-window attention in blocks: memory grows with the length of a sequence, not with its square.

Queries are cut into blocks of ``window`` rows. A block sees its own keys and those of the block before, so one pattern
[window, 2 window] serves all blocks. The first block may see fewer keys (those that a cache kept) and goes by itself.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .sdpa import scaled_dot_product_attention


def visible_pairs(
    queries: torch.Tensor, keys: torch.Tensor, window: int | None, key_mask: torch.Tensor | None
) -> torch.Tensor:
    """Boolean mask [1 or B, 1, Q, K], causal within ``window``, for integer positions ``queries`` [Q], ``keys`` [K].

    ``key_mask`` [B, K] is False at padding. A query at a padded position still sees itself: a row without any visible
    key would turn into NaN.
    """
    queries, keys = queries[:, None], keys[None, :]
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    visible = visible[None, None]
    if key_mask is not None:
        visible = (visible & key_mask[:, None, None, :]) | (keys == queries)[None, None]
    return visible


class SlidingWindow:
    """Mask of :func:`windowed_attention`: which keys each query sees, without a length x length tensor.

    The last of ``query_length`` queries sees the last of ``key_length`` keys, and each query ``window`` keys including
    its own; ``key_mask`` bool [B, key_length] is False at padding. Rows of the full mask can be read as from a boolean
    tensor [1 or B, 1, query_length, key_length]: ``mask[..., rows, columns]`` with slices.
    """

    dtype = torch.bool

    def __init__(
        self,
        query_length: int,
        key_length: int,
        window: int,
        key_mask: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        if query_length <= window:
            raise ValueError(
                f"SlidingWindow: {query_length} queries fit into one block of window = {window}; use a boolean mask"
            )
        self.query_length, self.key_length, self.window = query_length, key_length, window
        self.key_mask = key_mask
        self.device = device
        # Keys before the first that the first query sees are left out.
        self.past = min(key_length - query_length, window - 1)
        self.num_blocks = -(-(query_length - window) // window)
        self.first = self._first_block()
        self.blocks = self._blocks()

    def _first_block(self) -> torch.Tensor | None:
        """Mask [1 or B, 1, window, past + window] of the first block; None if it is plain causal."""
        if self.past == 0 and self.key_mask is None:
            return None
        keys = torch.arange(self.past + self.window, device=self.device)
        key_mask = None
        if self.key_mask is not None:
            start = self.key_length - self.query_length - self.past
            key_mask = self.key_mask[:, start : start + self.past + self.window]
        return visible_pairs(keys[self.past :], keys, self.window, key_mask)

    def _blocks(self) -> torch.Tensor:
        """Mask of the other blocks: [1, 1, window, 2 window], or with padding [B num_blocks, 1, window, 2 window]."""
        keys = torch.arange(2 * self.window, device=self.device)
        queries = keys[self.window :]
        if self.key_mask is None:
            return visible_pairs(queries, keys, self.window, None)
        key_mask = self.key_mask[:, self.key_length - self.query_length :, None]
        key_mask = with_previous_block(blocks_of(key_mask, self.window, self.num_blocks + 1))
        return visible_pairs(queries, keys, self.window, key_mask.flatten(0, 1).squeeze(-1))

    def __getitem__(self, index: tuple[object, slice, slice]) -> torch.Tensor:
        _, rows, columns = index
        keys = torch.arange(self.key_length, device=self.device)
        queries = keys[self.key_length - self.query_length :]
        key_mask = None if self.key_mask is None else self.key_mask[:, columns]
        return visible_pairs(queries[rows], keys[columns], self.window, key_mask)


def blocks_of(x: torch.Tensor, size: int, count: int) -> torch.Tensor:
    """[B, T, ...] -> [B, count, size, ...], filled up with zeros."""
    missing = count * size - x.shape[1]
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (count, size))


def with_previous_block(x: torch.Tensor) -> torch.Tensor:
    """Blocks [B, N + 1, size, ...] -> [B, N, 2 size, ...]: each but the first, behind the one before it."""
    return torch.cat((x[:, :-1], x[:, 1:]), dim=2)


def windowed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scaling: float, mask: SlidingWindow
) -> torch.Tensor:
    """Softmax attention within a window: q [B, H, Tq, d], k and v [B, G, Tk, d] -> [B, H, Tq, d].

    Query head h reads key head ``h // (H / G)``. At most two blocks of keys a block of queries are held at once.
    """
    window, past, count = mask.window, mask.past, mask.num_blocks
    batch, repeat = q.shape[0], q.shape[1] // k.shape[1]
    skipped = mask.key_length - mask.query_length - past
    near = slice(skipped, skipped + past + window)
    first = scaled_dot_product_attention(
        q[:, :, :window], k[:, :, near], v[:, :, near], scaling=scaling, mask=mask.first, causal=mask.first is None
    )
    # Time before heads, [B, T, H, d], so that blocks become rows of the batch without another copy.
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    queries = blocks_of(q[:, window:], window, count).flatten(0, 1).transpose(1, 2)
    keys, values = (
        with_previous_block(blocks_of(x[:, skipped + past :], window, count + 1)).flatten(0, 1).transpose(1, 2)
        for x in (k, v)
    )
    if repeat > 1:
        # Of the kernels that take a mask, not all take shared keys.
        keys, values = keys.repeat_interleave(repeat, dim=1), values.repeat_interleave(repeat, dim=1)
    rest = scaled_dot_product_attention(queries, keys, values, scaling=scaling, mask=mask.blocks, causal=False)
    rest = rest.transpose(1, 2).unflatten(0, (batch, count)).flatten(1, 2)
    return torch.cat((first.transpose(1, 2), rest[:, : mask.query_length - window]), dim=1).transpose(1, 2)
