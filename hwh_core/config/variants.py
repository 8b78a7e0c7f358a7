"""Checks of ``hwh.architectures``: every key of a variant must change heads that its base has."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from ..architectures import ARCHITECTURES, ArchitectureError, architecture
from ..heads import FULL_ATTENTION, GATED_DELTANET, SLIDING_WINDOW, HeadGroup
from .training import ArchitectureVariant


class Effect(NamedTuple):
    """What a key of a variant changes; ``unset``: the value with which it changes nothing."""

    unset: object
    heads: str
    reaches: Callable[[HeadGroup], bool]


EFFECTS = {
    "recurrence": Effect("gated_deltanet", "Gated DeltaNet heads", lambda group: group.kind == GATED_DELTANET),
    "full_attention_queries_per_key": Effect(1, "full-attention heads", lambda group: group.kind == FULL_ATTENTION),
    "sliding_window_queries_per_key": Effect(1, "sliding-window heads", lambda group: group.kind == SLIDING_WINDOW),
    "attention_output_norm": Effect(None, "attention heads", lambda group: not group.is_recurrent),
    "nope_qk_norm": Effect(
        None, "attention heads without RoPE", lambda group: not group.is_recurrent and group.rope_theta is None
    ),
}
# Any sizes serve to tell the kinds of heads: all zones and periods of the architectures fit into so many layers.
LAYERS, HEAD_DIM = 8, 2


def groups_of(base: str, listed: list[float] | None = None) -> list[HeadGroup]:
    """Head groups of all layers of an architecture, with ``listed`` in place of its full-attention fractions.

    Raises :class:`~hwh_core.heads.ArchitectureError` for an architecture that has no fractions.
    """
    fractions = None if listed is None else [Fraction(value).limit_denominator(1024) for value in listed]
    width = HEAD_DIM * math.lcm(LAYERS, *(fraction.denominator for fraction in fractions or ()))
    layers = architecture(
        base,
        num_layers=LAYERS if fractions is None else len(fractions),
        hidden_size=width,
        attention_head_dim=HEAD_DIM,
        gdn_head_dim=HEAD_DIM,
        qk_norm=True,
        gate=True,
        conv_size=4,
        rope_theta=10000.0,
        attention_output_norm=False,
        fractions=fractions,
    )
    return [group for layer in layers for group in layer]


def checked_variant(variant: ArchitectureVariant) -> ArchitectureVariant:
    """The variant, whose base is known and whose keys all have an effect. Raises ValueError naming the key if not."""
    base, listed = variant.base, variant.full_attention_fractions
    if base not in ARCHITECTURES:
        raise ValueError(f"{variant.name!r} has base {base!r}; expected one of {', '.join(ARCHITECTURES)}")
    try:
        groups = groups_of(base, listed)
    except ArchitectureError as error:
        raise ValueError(f"{variant.name!r}: {error}; remove the key or change the base") from None
    for key, effect in EFFECTS.items():
        value = getattr(variant, key)
        if value != effect.unset and not any(map(effect.reaches, groups)):
            having = [name for name in ARCHITECTURES if any(map(effect.reaches, groups_of(name)))]
            given = "" if listed is None else " with these full_attention_fractions"
            raise ValueError(
                f"{variant.name!r} has {key} = {value!r}, but its base {base!r}{given} has no {effect.heads}, so that "
                f"the key does nothing; remove it, or choose a base that has them ({', '.join(having)})"
            )
    return variant
