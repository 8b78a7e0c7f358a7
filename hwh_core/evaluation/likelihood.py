"""Log-likelihoods of many (context, continuation) pairs: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .inference import cache_argument, logits_at, score_tokens
from .prefixes import Unit, prefix_units, sharing_groups, unit_batches

Pair = tuple[list[int], list[int]]


def score_pairs(
    model: Any,
    pairs: Sequence[Pair],
    batch_tokens: int,
    fill: int,
    share_prefixes: bool = True,
    done: Callable[[int], Any] = lambda count: None,
) -> list[tuple[float, bool]]:
    """(log-probability in nats, is argmax) of each continuation after its context, both as tokens and not empty.

    A causal model gives the same logits for what several inputs begin with, whether one is the whole beginning of
    another or they part somewhere. ``done`` is told how many pairs a finished batch held.
    """
    inputs = [context + continuation[:-1] for context, continuation in pairs]
    # Logits are wanted from the last token of the context on.
    wanted = [range(len(context) - 1, len(tokens)) for (context, _), tokens in zip(pairs, inputs, strict=True)]
    groups = sharing_groups(inputs)
    hosts = list(groups)
    sequences = [inputs[host] for host in hosts]
    if share_prefixes and cache_argument(model):
        units = prefix_units(sequences, [min(wanted[index].start for index in groups[host]) for host in hosts])
    else:
        units = [Unit((place,), 0, len(tokens)) for place, tokens in enumerate(sequences)]
    scores: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    for batch in unit_batches(units, batch_tokens):
        order = [place for unit in batch for place in unit.members]
        members = [(row, index) for row, place in enumerate(order) for index in groups[hosts[place]]]
        spans = [(row, wanted[index]) for row, index in members]
        starts = [0, *accumulate(len(unit.members) for unit in batch)][:-1]
        prefix = min(unit.prefix for unit in batch)
        logits = logits_at(model, [sequences[place] for place in order], spans, fill, starts, prefix)
        values, hits = score_tokens(logits, [token for _, index in members for token in pairs[index][1]])
        place = 0
        for _, index in members:
            end = place + len(pairs[index][1])
            scores[index] = (float(values[place:end].sum()), bool(hits[place:end].all()))
            place = end
        done(len(members))
    return scores
