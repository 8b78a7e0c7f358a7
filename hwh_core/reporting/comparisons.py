"""Tables of ours that set models of one scale side by side (``targets.comparisons``): which, and what they read.

They stand apart from the tables under ``targets.tables``, whose files decide what the record of a chain of measurements
holds: these read nothing that the claims ledger does not read already, so no chain depends on them.
"""

from __future__ import annotations

from ..config import HwHModel, HwHScale, PresetConfig
from . import requirements, selection
from .needle_grids import trained_grid
from .selection import ReportError, TableId

COMPARISONS = ("variants",)
# What variants are held against in a scale that does not train their own base.
CONTROL = "hwh_std"


def bases_of(preset: PresetConfig) -> dict[str, str]:
    """The architecture that each variant of a preset is made from, by the name of the variant."""
    return {variant.name: variant.base for variant in preset.hwh.architectures}


def held_against(preset: PresetConfig, scale: HwHScale) -> dict[str, str | None]:
    """By variant that a scale compares: its base where that is trained, else HwH-std, else None."""
    trained = selection.architectures_of(scale)
    bases = bases_of(preset)
    return {
        name: next((other for other in (bases[name], CONTROL) if other in trained), None)
        for name in trained
        if name in bases
    }


def side_by_side(preset: PresetConfig, scale: HwHScale) -> list[HwHModel]:
    """Models of a scale that the table of variants shows: what they are held against, then the variants.

    A scale that stands in no claim and trains no variant is a variation as a whole (of steps or sizes): all of it.
    """
    against = held_against(preset, scale)
    if not against and scale.claim_scale == "none":
        return selection.models_of(scale, selection.architectures_of(scale))
    return selection.models_of(scale, dict.fromkeys([*filter(None, against.values()), *against]))


def missing_for_table(preset: PresetConfig, table: TableId) -> list[str]:
    """What the preset lacks for a table; empty when it can be made. Raises :class:`ReportError` for others."""
    if table in COMPARISONS:
        has_variants = any(held_against(preset, scale) for scale in preset.hwh.scales)
        return [] if has_variants else ["a trained model of a variant (hwh.architectures)"]
    known = [*selection.TABLE_NUMBERS, *selection.OWN_TABLES, *COMPARISONS]
    if table not in known:
        raise ReportError(f"table {table} is none of this report's; choose one of {known}")
    return selection.missing_for_table(preset, table)


def refuse_if_missing(preset: PresetConfig, table: TableId) -> None:
    """Raise :class:`ReportError` naming what the preset lacks for a table."""
    missing = missing_for_table(preset, table)
    if missing and table in COMPARISONS:
        raise ReportError(
            f"table {table} cannot be made with preset {preset.preset!r}: it lacks {'; '.join(missing)}; add one to a "
            "scale of the preset, or use one that has some, such as variants"
        )
    if missing:
        selection.refuse_if_missing(preset, "table", table)


def table_inputs(preset: PresetConfig, table: TableId) -> list[str]:
    """Files that any table needs. Raises :class:`ReportError` naming what the preset lacks."""
    refuse_if_missing(preset, table)
    if table not in COMPARISONS:
        return requirements.table_inputs(preset, table)
    trained = trained_grid(preset)
    cells = ["niah_cells.csv", *([requirements.additional_cells_file(trained)] if trained else [])]
    return [
        path
        for scale in preset.hwh.scales
        for path in requirements.hwh_files(scale, side_by_side(preset, scale), "metrics.json", *cells)
    ]
