"""What a layer is made of: head groups, and layers as tuples of them. Needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .scripting import UserError

FULL_ATTENTION = "full_attention"
SLIDING_WINDOW = "sliding_window"
GATED_DELTANET = "gated_deltanet"
DELTANET = "deltanet"
RECURRENT_KINDS = (GATED_DELTANET, DELTANET)
KINDS = (FULL_ATTENTION, SLIDING_WINDOW, *RECURRENT_KINDS)


class ArchitectureError(UserError):
    """Head groups or layers that cannot be built; the message names the field, its value and what was expected."""


@dataclass(frozen=True)
class HeadGroup:
    """Heads of one kind inside one layer.

    ``heads`` query heads of ``head_dim`` dimensions; ``kv_heads`` key and value heads (None: as many as ``heads``).
    ``rope_theta`` None means no position encoding (NoPE). ``window`` is the number of visible keys, the query's own
    included, of a sliding-window group. ``gate``: element-wise SiLU output gate. ``output_norm``: per-head RMSNorm of
    an attention group's output before the gate (recurrent groups always have one). ``conv_size``: taps of the causal
    convolution of recurrent groups. DeltaNet (arXiv 2406.06484) is Gated DeltaNet whose state never decays. Fields that
    a kind has no use for are refused.
    """

    kind: str
    heads: int
    head_dim: int
    kv_heads: int | None = None
    rope_theta: float | None = None
    qk_norm: bool = False
    window: int | None = None
    gate: bool = False
    output_norm: bool = False
    conv_size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArchitectureError(f"head group: kind {self.kind!r} is unknown; expected one of {', '.join(KINDS)}")
        for name in ("heads", "head_dim"):
            self._require_positive(name)
        if self.is_recurrent:
            self._refuse("kv_heads", "rope_theta", "qk_norm", "window", "output_norm")
            self._require_positive("conv_size")
            return
        self._refuse("conv_size")
        if self.kind == SLIDING_WINDOW:
            self._require_positive("window")
        else:
            self._refuse("window")
        if self.kv_heads is not None:
            self._require_positive("kv_heads")
            if self.heads % self.kv_heads:
                raise ArchitectureError(
                    f"head group {self.kind}: kv_heads = {self.kv_heads} does not divide heads = {self.heads}"
                )
        if self.rope_theta is not None:
            if not self.rope_theta > 1:
                raise ArchitectureError(
                    f"head group {self.kind}: rope_theta = {self.rope_theta} must be greater than 1, or None for no "
                    "position encoding"
                )
            if self.head_dim % 2:
                raise ArchitectureError(
                    f"head group {self.kind}: head_dim = {self.head_dim} must be even to be rotated in pairs"
                )

    def _require_positive(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArchitectureError(f"head group {self.kind}: {name} = {value!r} must be a positive whole number")

    def _refuse(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise ArchitectureError(f"head group {self.kind} has no use for {name} = {value!r}; leave it out")

    @property
    def is_recurrent(self) -> bool:
        """Whether the group keeps a state in place of keys and values."""
        return self.kind in RECURRENT_KINDS

    @property
    def decays(self) -> bool:
        """Whether the state of a recurrent group is multiplied by a decay at every token."""
        return self.kind == GATED_DELTANET

    @property
    def width(self) -> int:
        """Query dimensions of the group, equal to its output dimensions."""
        return self.heads * self.head_dim

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def to_dict(self) -> dict[str, Any]:
        """Only the fields that are set, in order: the form stored in config.json."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadGroup:
        """Inverse of :meth:`to_dict`; unknown fields are refused."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ArchitectureError(f"head group: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        missing = [name for name in ("kind", "heads", "head_dim") if name not in values]
        if missing:
            raise ArchitectureError(f"head group: field {missing[0]!r} is missing")
        return cls(**values)


LayerSpec = tuple[HeadGroup, ...]


def layer_width(layer: LayerSpec) -> int:
    """Query dimensions of a layer: the sum over its head groups."""
    return sum(group.width for group in layer)


def check_layers(layers: Sequence[LayerSpec]) -> int:
    """Check that there are layers, none of them empty, and all equally wide; return that width.

    Raises :class:`ArchitectureError`.
    """
    if not layers:
        raise ArchitectureError("an architecture needs at least one layer")
    for index, layer in enumerate(layers):
        if not layer:
            raise ArchitectureError(f"layer {index} has no head group")
    widths = [layer_width(layer) for layer in layers]
    for index, width in enumerate(widths):
        if width != widths[0]:
            raise ArchitectureError(
                f"layer {index} is {width} dimensions wide and layer 0 is {widths[0]}; all layers must be equally wide"
            )
    return widths[0]


def layers_to_dicts(layers: Sequence[LayerSpec]) -> list[list[dict[str, Any]]]:
    """Layers as plain lists and dicts, for JSON."""
    return [[group.to_dict() for group in layer] for layer in layers]


def layers_from_dicts(layers: Sequence[Sequence[Mapping[str, Any]]]) -> list[LayerSpec]:
    """Inverse of :func:`layers_to_dicts`, checked by :func:`check_layers`."""
    built = [tuple(HeadGroup.from_dict(group) for group in layer) for layer in layers]
    check_layers(built)
    return built
