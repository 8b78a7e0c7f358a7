"""Architectures as pure functions from sizes to layers. Needs neither torch nor transformers.

A layer is a tuple of head groups (``hwh_core.heads``). The head-wise hybrid of section 4 gives each layer a fraction of
full-attention (FA) width: 0 in the first and last layer, 1/4 (FA : other = 1 : 3) in the middle half, 1/8 (1 : 7) in
the layers between. With q = num_layers // 4 the middle half is layers q to num_layers - q - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .heads import (
    DELTANET,
    FULL_ATTENTION,
    GATED_DELTANET,
    SLIDING_WINDOW,
    ArchitectureError,
    HeadGroup,
    LayerSpec,
    check_layers,
    layer_width,
)

ZONES = ("first and last", "outer", "middle")


@dataclass(frozen=True)
class Sizes:
    """Sizes from which an architecture is built; ``width`` is that of every layer's Q, K and V."""

    num_layers: int
    width: int
    attention_head_dim: int
    gdn_head_dim: int | None
    qk_norm: bool
    nope_qk_norm: bool
    gate: bool
    conv_size: int
    rope_theta: float
    attention_output_norm: bool
    sliding_window: int
    fractions: tuple[Fraction, ...] | None = None

    def attention(self, width: int, *, rope: bool, window: int | None = None) -> HeadGroup:
        """An attention group of ``width`` dimensions."""
        heads = _heads(width, self.attention_head_dim, "attention_head_dim")
        return HeadGroup(
            kind=FULL_ATTENTION if window is None else SLIDING_WINDOW,
            heads=heads,
            head_dim=self.attention_head_dim,
            rope_theta=self.rope_theta if rope else None,
            qk_norm=self.qk_norm if rope else self.nope_qk_norm,
            window=window,
            gate=self.gate,
            output_norm=self.attention_output_norm,
        )

    def delta_net(self, width: int) -> HeadGroup:
        """A Gated DeltaNet group of ``width`` dimensions."""
        if self.gdn_head_dim is None:
            raise ArchitectureError("gdn_head_dim is not set, and this architecture has Gated DeltaNet heads; set it")
        heads = _heads(width, self.gdn_head_dim, "gdn_head_dim")
        return HeadGroup(
            kind=GATED_DELTANET, heads=heads, head_dim=self.gdn_head_dim, gate=self.gate, conv_size=self.conv_size
        )


def _heads(width: int, head_dim: int, key: str) -> int:
    if head_dim < 1 or width % head_dim:
        raise ArchitectureError(
            f"{key} = {head_dim} does not divide a head group of width {width}; choose a {key} that divides it"
        )
    return width // head_dim


def layer_zone(index: int, num_layers: int) -> str:
    """Zone of a layer in the allocation of section 4: ``first and last``, ``outer`` or ``middle``."""
    if index in (0, num_layers - 1):
        return ZONES[0]
    quarter = num_layers // 4
    return ZONES[2] if quarter <= index < num_layers - quarter else ZONES[1]


def allocated(
    sizes: Sizes, fractions: Sequence[Fraction], *, rope: bool = False, sliding_window: bool = False
) -> list[LayerSpec]:
    """Layers with the given fractions of full-attention width, the rest Gated DeltaNet (or sliding-window) heads."""
    layers: list[LayerSpec] = []
    for index, fraction in enumerate(fractions):
        attention_width = sizes.width * fraction
        if not 0 <= fraction <= 1 or attention_width.denominator != 1:
            raise ArchitectureError(
                f"layer {index}: a full-attention fraction of {fraction} of width {sizes.width} is no whole number of "
                "dimensions; choose a width that the fraction divides"
            )
        full, rest = int(attention_width), sizes.width - int(attention_width)
        groups: list[HeadGroup] = []
        if full:
            groups.append(sizes.attention(full, rope=rope))
        if rest and sliding_window:
            groups.append(sizes.attention(rest, rope=True, window=sizes.sliding_window))
        elif rest:
            groups.append(sizes.delta_net(rest))
        layers.append(tuple(groups))
    return layers


def _zoned(sizes: Sizes, edge: Fraction, outer: Fraction, middle: Fraction) -> list[Fraction]:
    if sizes.num_layers < 4:
        raise ArchitectureError(
            f"num_layers = {sizes.num_layers}: a head-wise hybrid needs at least 4 layers (and 8 before the ablations "
            "of its outer layers differ from it)"
        )
    by_zone = dict(zip(ZONES, (edge, outer, middle), strict=True))
    return [by_zone[layer_zone(index, sizes.num_layers)] for index in range(sizes.num_layers)]


def _standard(sizes: Sizes) -> list[Fraction]:
    if sizes.fractions is not None:
        if len(sizes.fractions) != sizes.num_layers:
            raise ArchitectureError(
                f"full_attention_fractions has {len(sizes.fractions)} entries, and the model has {sizes.num_layers} "
                "layers; give one a layer"
            )
        return list(sizes.fractions)
    return _zoned(sizes, Fraction(0), Fraction(1, 8), Fraction(1, 4))


def transformer(sizes: Sizes) -> list[LayerSpec]:
    """Full attention with RoPE in every layer."""
    return allocated(sizes, [Fraction(1)] * sizes.num_layers, rope=True)


def nope_transformer(sizes: Sizes) -> list[LayerSpec]:
    """Full attention without position encoding in every layer (not in the paper; a null model for RPD)."""
    return allocated(sizes, [Fraction(1)] * sizes.num_layers)


def gdn(sizes: Sizes) -> list[LayerSpec]:
    """Gated DeltaNet in every layer."""
    return allocated(sizes, [Fraction(0)] * sizes.num_layers)


def inter(sizes: Sizes) -> list[LayerSpec]:
    """Layer-wise hybrid: (GDN, GDN, GDN, NoPE full attention), repeated."""
    if sizes.num_layers % 4:
        raise ArchitectureError(
            f"num_layers = {sizes.num_layers}: architecture inter repeats a period of 4 layers; choose a multiple of 4"
        )
    return allocated(sizes, [Fraction(int(index % 4 == 3)) for index in range(sizes.num_layers)])


def hwh_std(sizes: Sizes) -> list[LayerSpec]:
    """The head-wise hybrid: NoPE full attention beside GDN; 1 : 3 in the middle half, 1 : 7 outside, GDN at ends."""
    return allocated(sizes, _standard(sizes))


def hwh_std_r(sizes: Sizes) -> list[LayerSpec]:
    """HwH-std with RoPE in its full-attention heads."""
    return allocated(sizes, _standard(sizes), rope=True)


def hwh_swa(sizes: Sizes) -> list[LayerSpec]:
    """HwH-std with RoPE sliding-window heads in place of GDN, also in the first and last layer."""
    return allocated(sizes, _standard(sizes), sliding_window=True)


def hwh_swa_r(sizes: Sizes) -> list[LayerSpec]:
    """RoPE full attention beside RoPE sliding-window heads (not in the paper)."""
    return allocated(sizes, _standard(sizes), rope=True, sliding_window=True)


def hwh_uniform13(sizes: Sizes) -> list[LayerSpec]:
    """1 : 3 in all layers."""
    return allocated(sizes, _zoned(sizes, Fraction(1, 4), Fraction(1, 4), Fraction(1, 4)))


def hwh_outer13(sizes: Sizes) -> list[LayerSpec]:
    """GDN in the first and last layer, 1 : 3 in all others."""
    return allocated(sizes, _zoned(sizes, Fraction(0), Fraction(1, 4), Fraction(1, 4)))


ARCHITECTURES: dict[str, Callable[[Sizes], list[LayerSpec]]] = {
    function.__name__: function
    for function in (
        transformer, gdn, inter, hwh_std, hwh_std_r, hwh_swa, hwh_uniform13, hwh_outer13, nope_transformer, hwh_swa_r
    )
}  # fmt: skip
# Those whose allocation is HwH-std's; a variant may give them another.
WITH_FRACTIONS = ("hwh_std", "hwh_std_r", "hwh_swa", "hwh_swa_r")


def architecture(
    name: str,
    *,
    num_layers: int,
    hidden_size: int,
    attention_head_dim: int,
    gdn_head_dim: int | None,
    qk_norm: bool,
    gate: bool,
    conv_size: int,
    rope_theta: float,
    attention_output_norm: bool,
    num_attention_heads: int | None = None,
    nope_qk_norm: bool | None = None,
    sliding_window: int = 128,
    fractions: Sequence[Fraction] | None = None,
) -> list[LayerSpec]:
    """Layers of a named architecture, from the first to the last.

    Every layer is ``hidden_size`` wide, or ``num_attention_heads * attention_head_dim`` where that is given (then
    wider or narrower than the residual stream). ``nope_qk_norm``: QK-norm of heads without RoPE (None: as
    ``qk_norm``). ``fractions``: full-attention width of every layer in place of HwH-std's. Raises
    :class:`~hwh_core.heads.ArchitectureError` naming the key that does not fit.
    """
    if name not in ARCHITECTURES:
        raise ArchitectureError(f"architecture {name!r} is unknown; known are {', '.join(ARCHITECTURES)}")
    for key, value in (("num_layers", num_layers), ("hidden_size", hidden_size)):
        if value < 1:
            raise ArchitectureError(f"{key} = {value} must be positive")
    sizes = Sizes(
        num_layers=num_layers,
        width=hidden_size if num_attention_heads is None else num_attention_heads * attention_head_dim,
        attention_head_dim=attention_head_dim,
        gdn_head_dim=gdn_head_dim,
        qk_norm=qk_norm,
        nope_qk_norm=qk_norm if nope_qk_norm is None else nope_qk_norm,
        gate=gate,
        conv_size=conv_size,
        rope_theta=rope_theta,
        attention_output_norm=attention_output_norm,
        sliding_window=sliding_window,
        fractions=None if fractions is None else tuple(fractions),
    )
    if fractions is not None and name not in WITH_FRACTIONS:
        raise ArchitectureError(
            f"full_attention_fractions: architecture {name} has no list of fractions; expected one of "
            f"{', '.join(WITH_FRACTIONS)}"
        )
    layers = ARCHITECTURES[name](sizes)
    check_layers(layers)
    return layers


def layers_of_shape(
    shape: Mapping[str, Any], name: str, *, rope_theta: float = 10000.0, qk_norm: bool = True
) -> list[LayerSpec]:
    """Layers of architecture ``name`` at the sizes of a preset (keys of ``hwh_core.config.ModelShape``).

    With a key ``variant`` (of ``hwh_core.config.ArchitectureVariant``) ``name`` is that variant's.
    """
    optional = ("num_attention_heads", "nope_qk_norm", "sliding_window")
    variant = shape.get("variant") or {"name": name, "base": name}
    if variant["name"] != name:
        raise ArchitectureError(f"architecture {name!r} at the sizes of the variant {variant['name']!r}; name that one")
    listed = variant.get("full_attention_fractions")
    layers = architecture(
        variant["base"],
        fractions=None if listed is None else [Fraction(value).limit_denominator(1024) for value in listed],
        num_layers=shape["num_layers"],
        hidden_size=shape["hidden_size"],
        attention_head_dim=shape["attention_head_dim"],
        gdn_head_dim=shape.get("gdn_head_dim"),
        qk_norm=qk_norm,
        gate=shape["gate"],
        conv_size=shape.get("conv_size", 4),
        rope_theta=rope_theta,
        attention_output_norm=shape.get("attention_output_norm", False),
        **{key: shape[key] for key in optional if key in shape},
    )
    return [tuple(varied(group, variant) for group in layer) for layer in layers]


def varied(group: HeadGroup, variant: Mapping[str, Any]) -> HeadGroup:
    """A head group as a variant has it: another recurrence, or key heads that several query heads share.

    Retrieval (full attention) and position (sliding window) have their own numbers of query heads a key head. Raises
    :class:`~hwh_core.heads.ArchitectureError` where these do not divide.
    """
    if group.kind == GATED_DELTANET:
        return replace(group, kind=DELTANET) if variant.get("recurrence") == DELTANET else group
    key = f"{group.kind}_queries_per_key"
    share = variant.get(key, 1)
    if share == 1:
        return group
    if group.heads % share:
        raise ArchitectureError(f"{key} = {share} does not divide a head group of {group.heads} heads")
    return replace(group, kv_heads=group.heads // share)


def full_attention_fraction(layers: Sequence[LayerSpec]) -> float:
    """Share of Q, K and V dimensions, over all layers, that full-attention heads hold."""
    full = sum(group.width for layer in layers for group in layer if group.kind == FULL_ATTENTION)
    return full / sum(layer_width(layer) for layer in layers)


def describe_allocation(layers: Sequence[LayerSpec]) -> list[dict[str, Any]]:
    """One row a head group, for Table 4: layer, zone, kind, position encoding, width, heads, head_dim, fraction."""
    return [
        {
            "layer": index,
            "zone": layer_zone(index, len(layers)),
            "kind": group.kind,
            "position_encoding": _position_encoding(group),
            "width": group.width,
            "heads": group.heads,
            "head_dim": group.head_dim,
            "fraction": group.width / layer_width(layer),
        }
        for index, layer in enumerate(layers)
        for group in layer
    ]


def _position_encoding(group: HeadGroup) -> str:
    if group.is_recurrent:
        return "recurrent"
    return "none" if group.rope_theta is None else "rope"


def group_parameters(group: HeadGroup, hidden_size: int) -> int:
    """Parameters of a head group, without the layer's output projection."""
    gate = hidden_size * group.width if group.gate else 0
    if group.is_recurrent:
        projections = 3 * hidden_size * group.width + (1 + group.decays) * hidden_size * group.heads
        convolutions = 3 * group.width * (group.conv_size or 0)
        decay = 2 * group.heads * group.decays
        return projections + gate + convolutions + decay + group.head_dim
    projections = hidden_size * (group.width + 2 * group.key_value_heads * group.head_dim)
    norms = (2 * group.qk_norm + group.output_norm) * group.head_dim
    return projections + gate + norms


def parameter_breakdown(
    layers: Sequence[LayerSpec], *, hidden_size: int, intermediate_size: int, vocab_size: int, tie_embeddings: bool
) -> dict[str, int]:
    """Parameters by part: embedding, output_embedding (0 if tied), mixers, mlp, norms."""
    mixers = sum(
        sum(group_parameters(group, hidden_size) for group in layer) + layer_width(layer) * hidden_size
        for layer in layers
    )
    return {
        "embedding": vocab_size * hidden_size,
        "output_embedding": 0 if tie_embeddings else vocab_size * hidden_size,
        "mixers": mixers,
        "mlp": len(layers) * 3 * hidden_size * intermediate_size,
        "norms": (2 * len(layers) + 1) * hidden_size,
    }


def parameter_count(
    layers: Sequence[LayerSpec], *, hidden_size: int, intermediate_size: int, vocab_size: int, tie_embeddings: bool
) -> int:
    """Number of parameters of a model over these layers, by arithmetic alone."""
    parts = parameter_breakdown(
        layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        tie_embeddings=tie_embeddings,
    )
    return sum(parts.values())
