"""Which sequences share a forward pass: answers to one question begin with the same tokens, computed once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .inference import pass_cost, token_batches

#: A shared beginning shorter than this many tokens is not worth a pass of its own.
LEAST_TOKENS = 8
#: Nor is one that saves less than this share of the tokens of its sequences.
LEAST_SAVING = 0.2
#: Prefixes of one batch are cut to the shortest, within one of these ratios: the closer, the less is computed again.
LENGTH_RATIOS = (1.1, 1.2, 1.4, 1.8, 3.0)


@dataclass(frozen=True)
class Unit:
    """Sequences (by index) whose first ``prefix`` tokens are equal; ``tail``: tokens of the longest behind these."""

    members: tuple[int, ...]
    prefix: int
    tail: int


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
    """All sequences, those with a common beginning in one unit where computing it once saves enough.

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
    units = []
    for members, prefix in groups:
        total = sum(len(sequences[index]) for index in members)
        if (len(members) - 1) * prefix >= LEAST_SAVING * total and len(members) > 1:
            tail = max(len(sequences[index]) for index in members) - prefix
            units.append(Unit(tuple(members), prefix, tail))
        else:
            units += [Unit((index,), 0, len(sequences[index])) for index in members]
    return units


def _shelf_batches(units: Sequence[Unit], batch_tokens: int, ratio: float) -> Iterator[list[Unit]]:
    """Batches of units whose prefixes differ in length by ``ratio`` at most."""
    shelves: dict[int, list[Unit]] = {}
    for unit in units:
        shelves.setdefault(int(math.log(unit.prefix, ratio)), []).append(unit)
    for _, shelf in sorted(shelves.items(), reverse=True):
        longest = max(unit.prefix for unit in shelf)
        batch: list[Unit] = []
        rows = padding = 0
        for unit in sorted(shelf, key=lambda unit: -unit.tail):
            if batch:
                padding += len(unit.members) * (batch[0].tail - unit.tail)
                full = (rows + len(unit.members)) * (longest + batch[0].tail) > batch_tokens
                if full or padding > pass_cost(batch_tokens):
                    yield batch
                    batch, rows, padding = [], 0, 0
            batch.append(unit)
            rows += len(unit.members)
        if batch:
            yield batch


def tokens_of(batch: Sequence[Unit]) -> int:
    """Tokens that a batch gives to the model, padding included: prefixes once, then what differs.

    Prefixes are cut to the shortest of the batch; the rest of the others is computed with every tail.
    """
    prefix = min(unit.prefix for unit in batch)
    longest = max(unit.prefix - prefix + unit.tail for unit in batch)
    return prefix * len(batch) + longest * sum(len(unit.members) for unit in batch)


def unit_batches(units: Sequence[Unit], batch_tokens: int) -> list[list[Unit]]:
    """Batches of units, all without prefix or all with prefixes of similar length; at most ``batch_tokens`` each.

    Padding and the prefix, once for every sequence as the cache holds it, count. A unit over the budget is a batch.
    How similar the prefixes of a batch are is chosen so that tokens and passes together cost least.
    """
    plain = [unit for unit in units if not unit.prefix]
    found = [[plain[index] for index in batch] for batch in token_batches([u.tail for u in plain], batch_tokens)]
    shared = [unit for unit in units if unit.prefix]
    plans = [list(_shelf_batches(shared, batch_tokens, ratio)) for ratio in LENGTH_RATIOS]
    return found + min(plans, key=lambda plan: sum(tokens_of(batch) + 2 * pass_cost(batch_tokens) for batch in plan))
