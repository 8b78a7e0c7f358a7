"""The mixed cache of a head-wise hybrid: keys and values for attention groups, states for Gated DeltaNet groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..heads import GATED_DELTANET, LayerSpec


class AttentionState:
    """Keys and values [B, G, S, d] of one attention group; a sliding window keeps the last ``window - 1`` only."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Number of keys kept."""
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new keys and values; return all that the new queries may need, the kept ones first."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat((self.keys, keys), dim=2)
            values = torch.cat((self.values, values), dim=2)
        self.keys, self.values = keys, values
        if self.window is not None and keys.shape[2] >= self.window:
            # A copy, so that the full-length tensors of the prompt can be freed.
            start = keys.shape[2] - (self.window - 1)
            self.keys, self.values = keys[:, :, start:].clone(), values[:, :, start:].clone()
        return keys, values

    def reorder(self, index: torch.Tensor) -> None:
        """Select rows of the batch."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)


class DeltaNetState:
    """Recurrent state float32 [B, H, d, d]; last inputs of the q, k, v convolutions, each [B, conv_size - 1, width]."""

    def __init__(self) -> None:
        self.recurrent: torch.Tensor | None = None
        self.convolution: list[torch.Tensor | None] = [None, None, None]

    def reorder(self, index: torch.Tensor) -> None:
        """Select rows of the batch."""
        if self.recurrent is not None:
            self.recurrent = self.recurrent.index_select(0, index)
        self.convolution = [None if state is None else state.index_select(0, index) for state in self.convolution]


class HwHCache:
    """Cache of a whole model; ``states[layer][group]`` belongs to that head group.

    It is its own class rather than a subclass of the library's cache, whose layers hold one kind of state each and
    whose interface changed several times within transformers 5. A recurrent state cannot be shortened, so decoding
    methods that roll the cache back (assisted generation) are refused.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, layers: Sequence[LayerSpec]) -> None:
        self.seen_tokens = 0
        self.states: list[list[AttentionState | DeltaNetState]] = [
            [DeltaNetState() if group.kind == GATED_DELTANET else AttentionState(group.window) for group in layer]
            for layer in layers
        ]

    def __len__(self) -> int:
        return len(self.states)

    @property
    def is_linear(self) -> list[bool]:
        """Per layer: whether it holds recurrent states only. False throughout: the number of tokens is always known."""
        return [False] * len(self.states)

    @property
    def is_sliding(self) -> list[bool]:
        """Per layer; False, since windows are kept per head group."""
        return [False] * len(self.states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens seen, padding included."""
        return self.seen_tokens

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Select rows of the batch, for beam search."""
        for layer in self.states:
            for state in layer:
                state.reorder(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Select rows of the batch."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch ``repeats`` times."""
        for layer in self.states:
            for state in layer:
                tensor = state.recurrent if isinstance(state, DeltaNetState) else state.keys
                if tensor is not None:
                    index = torch.arange(tensor.shape[0], device=tensor.device).repeat_interleave(repeats)
                    state.reorder(index)

    def crop(self, length: int) -> None:
        """Refused: see the class."""
        raise NotImplementedError(
            "a cache with recurrent states cannot be shortened; use greedy, sampling or beam search"
        )
