"""Pseudo-random permutations of 0 .. n-1 that need no table, so that 10^8 windows are shuffled without memory."""

from __future__ import annotations

import numpy as np

_ROUNDS = 8
_MASK = (1 << 64) - 1


def _mix(value: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: every bit of the result depends on every bit of ``value`` (uint64)."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _round_keys(key: tuple[int, ...]) -> np.ndarray:
    state = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
    for part in key:
        state = _mix(state ^ np.array([part & _MASK], dtype=np.uint64))
        with np.errstate(over="ignore"):
            state = state + np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        steps = state + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _mix(steps)


def permute(positions: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """Image of ``positions`` (int64, each in 0 .. size-1) under the permutation of 0 .. size-1 that ``key`` names.

    A Feistel network with ``ceil(log2 size)`` bits permutes a power of two; values outside are sent through it again
    until they fall inside (cycle walking), which keeps it a permutation: fewer than 2 rounds on average. Different
    keys (for example seed and epoch) give unrelated permutations. Raises ValueError for positions out of range.
    """
    positions = np.asarray(positions, dtype=np.int64)
    if size <= 0 or (positions.size and (positions.min() < 0 or positions.max() >= size)):
        raise ValueError(f"permute: positions must lie in 0 .. {size - 1}")
    if size == 1:
        return np.zeros_like(positions)
    bits = max(2, (size - 1).bit_length())
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    low_mask, high_mask = (np.uint64((1 << int(width)) - 1) for width in (low, high))
    keys = _round_keys(key)
    values = positions.reshape(-1).astype(np.uint64)
    outside = np.ones(values.shape, dtype=bool)
    while outside.any():
        current = values[outside]
        upper, lower = current >> low, current & low_mask
        for number in range(0, _ROUNDS, 2):
            lower = lower ^ (_mix(upper ^ keys[number]) & low_mask)
            upper = upper ^ (_mix(lower ^ keys[number + 1]) & high_mask)
        values[outside] = (upper << low) | lower
        outside = values >= np.uint64(size)
    return values.astype(np.int64).reshape(positions.shape)
