"""Table 4: full-attention and local widths by zone, generated from the architectures themselves."""

from __future__ import annotations

from fractions import Fraction

from ..architectures import describe_allocation, full_attention_fraction, layers_of_shape
from ..config import HwHConfig, HwHScale
from ..heads import DELTANET, FULL_ATTENTION, GATED_DELTANET, SLIDING_WINDOW
from .paper_values import SUMMARY, TABLE_4_VALUES
from .results import Results
from .selection import ARCHITECTURE_TITLES, architectures_of
from .tables import Cell, Table

COLUMNS = ["layers", "FA dims", "local dims", "FA:local", "FA heads", "local heads", "FA position", "FA share of model"]
KINDS = {
    FULL_ATTENTION: "full attention", GATED_DELTANET: "Gated DeltaNet", DELTANET: "DeltaNet",
    SLIDING_WINDOW: "sliding window",
}  # fmt: skip
INTER_ZONES = {0: "3 of 4 layers", 1: "every 4th layer"}


def _ratio(full: int, local: int) -> str:
    if full == 0:
        return "local only"
    if local == 0:
        return "FA only"
    ratio = Fraction(local, full)
    return f"1:{float(ratio):g}"


def _heads(rows: list[dict]) -> str:
    """Heads of some groups as text: number, dimensions and kind, and how many key heads they share."""
    return " + ".join(f"{row['heads']}×{row['head_dim']} {KINDS[row['kind']]}{_shared(row)}" for row in rows) or "none"


def _shared(row: dict) -> str:
    keys = row["key_value_heads"]
    return "" if keys == row["heads"] else f" on {keys} key head{'s' * (keys > 1)}"


def zones(family: HwHConfig, scale: HwHScale, architecture: str) -> dict[str, dict[str, str]]:
    """Cell texts by zone; layers of one zone that are alike are one row. Dimensions count Q (K and V have the same)."""
    rope_theta = next(model.rope_theta for model in scale.models if model.architecture == architecture)
    shape = family.shape_of(scale, architecture).model_dump()
    # A list of shares keeps to no zones: layers with one share are one row.
    listed = bool((shape.get("variant") or {}).get("full_attention_fractions"))
    layers = layers_of_shape(shape, architecture, rope_theta=rope_theta, qk_norm=scale.qk_norm)
    by_layer: dict[int, list[dict]] = {}
    head_groups = (group for layer in layers for group in layer)
    for row, group in zip(describe_allocation(layers), head_groups, strict=True):
        keys = group.heads if group.is_recurrent else group.key_value_heads
        by_layer.setdefault(row["layer"], []).append(row | {"key_value_heads": keys})
    share = f"{full_attention_fraction(layers):.4f}"
    found: dict[str, dict[str, str]] = {}
    members: dict[str, list[int]] = {}
    for layer, rows in by_layer.items():
        full = [row for row in rows if row["kind"] == "full_attention"]
        local = [row for row in rows if row["kind"] != "full_attention"]
        full_width, local_width = sum(r["width"] for r in full), sum(r["width"] for r in local)
        zone = INTER_ZONES[int(bool(full))] if architecture == "inter" else rows[0]["zone"]
        if listed:
            zone = f"share {full_width / (full_width + local_width):.4g}"
        members.setdefault(zone, []).append(layer)
        position = {"none": "NoPE", "rope": "RoPE"}
        found[zone] = {
            "FA dims": str(full_width),
            "local dims": str(local_width),
            "FA:local": _ratio(full_width, local_width),
            "FA heads": _heads(full),
            "local heads": _heads(local),
            "FA position": ", ".join(sorted({position[row["position_encoding"]] for row in full})) or "-",
            "FA share of model": share,
        }
    for zone, layers_of_zone in members.items():
        found[zone]["layers"] = _ranges(layers_of_zone)
    return found


def _ranges(layers: list[int]) -> str:
    """``0, 2–5, 7`` from a sorted list."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in parts)


def make(results: Results) -> Table:
    """One row per scale, architecture and zone."""
    table = Table(
        4, "Allocation of Q/K/V dimensions, generated from the code", ["scale", "architecture", "zone"], COLUMNS
    )
    for scale in results.preset.hwh.scales:
        for name in architectures_of(scale):
            for zone, texts in zones(results.preset.hwh, scale, name).items():
                cells = {column: Cell(texts[column]) for column in COLUMNS}
                paper = TABLE_4_VALUES.get((name, zone))
                if paper is not None:
                    cells["FA:local"] = Cell(texts["FA:local"], paper=paper, source=f"{SUMMARY} of section 4.1")
                table.add((scale.name, ARCHITECTURE_TITLES.get(name, name), zone), cells)
    shared = any(" on " in cells[name].ours for _, cells in table.rows for name in ("FA heads", "local heads"))
    table.notes = [
        "FA: full attention; local: Gated DeltaNet or sliding-window heads. Layers count from 0; dimensions are those "
        f"of Q, and K and V have the same{' but where query heads share key heads' if shared else ''}.",
        f"FA share of model: full-attention share of all {'Q' if shared else 'Q/K/V'} dimensions; 0.1771 for HwH-std "
        "at 24 layers, other depths differ because the zones are whole layers.",
    ]
    if variants := results.preset.hwh.architectures:
        named = ", ".join(f"{variant.name} from {variant.base}" for variant in variants)
        table.notes.append(f"Variants of this preset: {named}. Their local heads may be DeltaNet.")
    return table
