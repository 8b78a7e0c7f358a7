"""The mixed cache of a head-wise hybrid: keys and values for attention groups, states for Gated DeltaNet groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..heads import LayerSpec

BLOCK = 256
"""Room for keys grows in multiples of this, and by at least one eighth."""


def room_for(needed: int, present: int = 0) -> int:
    """Number of keys to make room for when ``needed`` no longer fit into ``present``."""
    return -(-max(needed, present + present // 8) // BLOCK) * BLOCK


class AttentionState:
    """Keys and values [B, G, S, d] of one attention group; a sliding window keeps the last ``window - 1`` only.

    They lie in buffers with room for more, so that a new token is written behind the others and nothing is copied.
    That of a window has twice its size: when it is full, the keys that are still seen move to its start, once in
    about ``window`` tokens. While a gradient is recorded, tensors are concatenated instead, as writing into a buffer
    would change what an earlier step needs for its backward pass.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None
        self._start = self._end = 0

    @property
    def keys(self) -> torch.Tensor | None:
        """The kept keys, a view [B, G, length, d]; None before the first."""
        return None if self._keys is None else self._keys[:, :, self._start : self._end]

    @property
    def values(self) -> torch.Tensor | None:
        """The kept values, a view [B, G, length, d]; None before the first."""
        return None if self._values is None else self._values[:, :, self._start : self._end]

    @property
    def length(self) -> int:
        """Number of keys kept."""
        return self._end - self._start

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new keys and values; return all that the new queries may need, the kept ones first.

        What is returned is valid until the next update.
        """
        if self._keys is None or self._values is None:
            self._keep(keys, values)
            return keys, values
        count, room = keys.shape[2], self._keys.shape[2]
        more_than_a_window_holds = self.window is not None and self.length + count > room
        if more_than_a_window_holds or not self._may_write(keys, values):
            keys, values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)
            self._keep(keys, values)
            return keys, values
        if self._end + count > room:
            self._make_room(count)
        start, end = self._start, self._end + count
        self._keys[:, :, self._end : end] = keys
        self._values[:, :, self._end : end] = values
        self._end = end
        if self.window is not None:
            self._start = max(start, end - (self.window - 1))
        return self._keys[:, :, start:end], self._values[:, :, start:end]

    def _may_write(self, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether the buffers may be written: no gradient is recorded, and autograd permits changing them."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (keys, values, self._keys, self._values)):
            return False
        return torch.is_inference_mode_enabled() or not self._keys.is_inference()

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start anew with these keys and values, copied into buffers of their own."""
        kept = keys.shape[2] if self.window is None else min(keys.shape[2], self.window - 1)
        first = keys.shape[2] - kept
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            self._keys, self._values = keys[:, :, first:], values[:, :, first:]
        else:
            # A copy also where it fits exactly, so that the full-length tensors of a prompt can be freed.
            room = room_for(kept + 1) if self.window is None else 2 * self.window
            self._keys, self._values = (_with_room(x[:, :, first:], room) for x in (keys, values))
        self._start, self._end = 0, kept

    def _make_room(self, count: int) -> None:
        """Have room for ``count`` more keys behind those that are kept."""
        keys, values, length = self.keys, self.values, self.length
        if self.window is None:
            room = room_for(length + count, self._keys.shape[2])
            self._keys, self._values = _with_room(keys, room), _with_room(values, room)
        else:
            # Where the two places overlap (several new tokens at once), a copy goes between.
            overlap = self._start < length
            self._keys[:, :, :length] = keys.clone() if overlap else keys
            self._values[:, :, :length] = values.clone() if overlap else values
        self._start, self._end = 0, length

    def reorder(self, index: torch.Tensor) -> None:
        """Select rows of the batch."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)

    def tensors(self) -> list[torch.Tensor]:
        """The kept keys and values, as views; empty before the first."""
        return [] if self._keys is None or self._values is None else [self.keys, self.values]


def _with_room(x: torch.Tensor, room: int) -> torch.Tensor:
    """A new contiguous tensor [B, G, room, d] that begins with x [B, G, S, d]."""
    buffer = x.new_empty((*x.shape[:2], room, x.shape[3]))
    buffer[:, :, : x.shape[2]] = x
    return buffer


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

    def tensors(self) -> list[torch.Tensor]:
        """Recurrent and convolution states; empty before the first token."""
        return [state for state in (self.recurrent, *self.convolution) if state is not None]


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
            [DeltaNetState() if group.is_recurrent else AttentionState(group.window) for group in layer]
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

    def _tensors(self) -> Iterator[torch.Tensor]:
        for layer in self.states:
            for state in layer:
                yield from state.tensors()

    def used_bytes(self) -> int:
        """Bytes of the keys, values, recurrent and convolution states that later tokens depend on."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def allocated_bytes(self) -> int:
        """Bytes that the cache holds in memory, room for more keys included."""
        storages = (tensor.untyped_storage() for tensor in self._tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

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
