"""Which sequences share forward passes: answers to one question begin with the same tokens, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .inference import Budget, cheapest_batches

#: A shared beginning shorter than this many tokens is not worth a pass of its own.
LEAST_TOKENS = 8
#: Shorter sequences count as so many tokens where their cache must fit: it has room to spare, up to twice as many.
CACHE_ROOM = 128


@dataclass(frozen=True)
class Unit:
    """Sequences (by index) whose first ``prefix`` tokens are equal; ``longest``: tokens of the longest of them."""

    members: tuple[int, ...]
    prefix: int
    longest: int


def sharing_groups(sequences: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Indices of all sequences, grouped under one that they are equal to or the beginning of."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    groups: dict[int, list[int]] = {}
    host = None
    # In this order a beginning stands right before what continues it, so going backwards the host comes first.
    for index in reversed(order):
        tokens = sequences[index]
        if host is None or sequences[host][: len(tokens)] != tokens:
            host = index
        groups.setdefault(host, []).append(index)
    return groups


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens at the beginning in which two sequences agree."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def prefix_units(sequences: Sequence[Sequence[int]], limits: Sequence[int]) -> list[Unit]:
    """All sequences, those with a common beginning in one unit.

    ``limits``: tokens of each sequence that may be in a prefix, since logits are wanted from there on. A unit of one
    sequence has prefix 0.
    """
    groups: list[tuple[list[int], int]] = []
    # Sorted, sequences with a common beginning stand together, and it is the least that neighbours have in common.
    for index in sorted(range(len(sequences)), key=lambda index: sequences[index]):
        if groups:
            members, prefix = groups[-1]
            common = min(prefix, limits[index], common_prefix(sequences[members[-1]], sequences[index]))
            if common >= LEAST_TOKENS and len(members) * common > (len(members) - 1) * prefix:
                members.append(index)
                groups[-1] = (members, common)
                continue
        groups.append(([index], limits[index]))
    return [
        Unit(tuple(members), prefix if len(members) > 1 else 0, max(len(sequences[index]) for index in members))
        for members, prefix in groups
    ]


@dataclass(frozen=True)
class Batch:
    """Units whose first ``prefix`` tokens are computed in one pass, and the passes behind it.

    ``passes``: of each its sequences, as (place of the unit in ``units``, index). ``tokens``: of all passes, padding
    included. Without prefix each unit is a sequence.
    """

    units: tuple[Unit, ...]
    prefix: int
    passes: tuple[tuple[tuple[int, int], ...], ...]
    tokens: int

    def cost(self, budget: Budget) -> int:
        """Tokens and passes together, in tokens."""
        return self.tokens + (len(self.passes) + (self.prefix > 0)) * budget.a_pass


def _batch(units: Sequence[Unit], prefix: int, lengths: Sequence[int], budget: Budget) -> Batch:
    rows = [(place, index) for place, unit in enumerate(units) for index in unit.members]
    behind = [lengths[index] - prefix for _, index in rows]
    groups = cheapest_batches(behind, budget, prefix)
    tokens = prefix * len(units) + sum(behind[group[0]] * len(group) for group in groups)
    return Batch(tuple(units), prefix, tuple(tuple(rows[row] for row in group) for group in groups), tokens)


def _shared_batches(units: Sequence[Unit], lengths: Sequence[int], budget: Budget) -> list[Batch]:
    """Batches of units behind prefixes cut to the shortest; the rest of the others is computed with every sequence.

    A batch holds what the cache can hold at once: a prefix once for every sequence.
    """
    prefix = min(unit.prefix for unit in units)
    parts: list[list[Unit]] = []
    rows = 0
    for unit in sorted(units, key=lambda unit: -unit.longest):
        rows += len(unit.members)
        if not parts or rows * max(parts[-1][0].longest, CACHE_ROOM) > budget.tokens:
            parts.append([])
            rows = len(unit.members)
        parts[-1].append(unit)
    return [_batch(part, prefix, lengths, budget) for part in parts]


def plan_batches(units: Sequence[Unit], lengths: Sequence[int], budget: Budget) -> list[Batch]:
    """All units in batches within the budget (a sequence over it is a batch); ``lengths``: of all sequences.

    Units are put together by the length of their prefix: first those of equal length, then neighbours as long as it
    makes tokens and passes cost less. Where sharing costs more than it saves, sequences stay whole.
    """
    by_prefix: dict[int, list[Unit]] = {}
    for unit in units:
        by_prefix.setdefault(unit.prefix, []).append(unit)
    plain = by_prefix.pop(0, [])

    def planned(group: list[Unit]) -> tuple[list[Unit], list[Batch], int]:
        batches = _shared_batches(group, lengths, budget)
        return group, batches, sum(batch.cost(budget) for batch in batches)

    groups = [planned(group) for _, group in sorted(by_prefix.items())]
    joined = [planned(one[0] + other[0]) for one, other in pairwise(groups)]
    while joined:
        saved = [groups[place][2] + groups[place + 1][2] - found[2] for place, found in enumerate(joined)]
        place = max(range(len(saved)), key=saved.__getitem__)
        if saved[place] <= 0:
            break
        groups[place : place + 2] = [joined.pop(place)]
        for side in (place - 1, place):
            if 0 <= side < len(joined):
                joined[side] = planned(groups[side][0] + groups[side + 1][0])
    shared: list[Batch] = []
    whole = _batch(plain, 0, lengths, budget)
    for group, batches, cost in groups:
        alone = [Unit((index,), 0, lengths[index]) for unit in group for index in unit.members]
        more = _batch([*whole.units, *alone], 0, lengths, budget)
        if whole.cost(budget) + cost <= more.cost(budget):
            shared += batches
        else:
            whole = more
    return [*shared, whole] if whole.units else shared
