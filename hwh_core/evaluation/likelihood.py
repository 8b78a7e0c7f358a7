"""Log-likelihoods of many (context, continuation) pairs: what they have in common is computed once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from .inference import Budget, cache_argument, cache_of, logits_at, score_tokens
from .prefixes import Unit, plan_batches, prefix_units, sharing_groups

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
    for batch in plan_batches(units, list(map(len, sequences)), Budget.on(model.device, batch_tokens)):
        prefix, cache = batch.prefix, None
        if prefix:
            cache = cache_of(model, [sequences[unit.members[0]][:prefix] for unit in batch.units])
        for number, rows in enumerate(batch.passes):
            members = [(row, index) for row, (_, place) in enumerate(rows) for index in groups[hosts[place]]]
            spans = [(row, range(wanted[index].start - prefix, wanted[index].stop - prefix)) for row, index in members]
            # A pass changes its cache, so all but the last get copies.
            own = cache if number == len(batch.passes) - 1 else copy.deepcopy(cache)
            tails = [sequences[place][prefix:] for _, place in rows]
            logits = logits_at(model, tails, spans, fill, own, [unit for unit, _ in rows])
            values, hits = score_tokens(logits, [token for _, index in members for token in pairs[index][1]])
            begin = 0
            for _, index in members:
                end = begin + len(pairs[index][1])
                scores[index] = (float(values[begin:end].sum()), bool(hits[begin:end].all()))
                begin = end
            done(len(members))
    return scores
