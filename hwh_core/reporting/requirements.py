"""Which files each figure, each table and the claims ledger read, relative to ``results/<preset>``.

Pure functions of the preset: the workflow takes its rules' inputs from here, and the programs read no other files, so
the two cannot disagree.
"""

from __future__ import annotations

from ..config import ControlledModel, HwHModel, HwHScale, NiahGrid, PresetConfig, PretrainedModel
from . import selection

# What the probe of the HwH family's own heads writes.
HEAD_INFLUENCE, HEAD_INFLUENCE_BINS, ROPE_HEADS = "head_influence.csv", "head_influence_bins.csv", "rope_heads.json"


# Files of one pretrained model that the figures read.
PRETRAINED_INPUTS = {
    2: ("probe.npz", "heads.csv"),
    7: ("heads.csv",),
    8: ("heads.csv",),
    9: ("probe.npz", "bands.json"),
    10: ("probe.npz", "heads.csv"),
    13: ("probe.npz", "bands.json"),
    14: ("probe.npz", "heads.csv"),
    "qk_norm": ("probe.npz", "norms.npz"),
    "causal": ("causal_summary.csv",),
}


def factor_text(factor: float) -> str:
    """A probe length as in file names: ``0.5``, ``1``, ``2``."""
    return f"{factor:g}"


def band_file(model: ControlledModel) -> str:
    """Band of a controlled model."""
    return f"controlled/{model.name}/band.json"


def curve_file(model: ControlledModel) -> str:
    """Band of a controlled model against the tokens that it has seen."""
    return f"controlled/{model.name}/curve.csv"


def curve_maps_file(model: ControlledModel) -> str:
    """Mean maps of a controlled model at every step of its curve."""
    return f"controlled/{model.name}/curve_maps.csv"


def controlled_probe_file(model: ControlledModel, factor: float = 1.0) -> str:
    """RFIS and RPD maps of a controlled model at ``factor`` times its training length."""
    return f"controlled/{model.name}/probe_x{factor_text(factor)}.npz"


def pretrained_files(model: PretrainedModel, *names: str) -> list[str]:
    """Files below the folder of one pretrained model."""
    return [f"pretrained/{model.name}/{name}" for name in names]


def hwh_files(scale: HwHScale, models: list[HwHModel], *names: str) -> list[str]:
    """Files below the folders of models of one scale."""
    return [f"hwh/{scale.name}/{model.name}/{name}" for model in models for name in names]


def _controlled(models: list[ControlledModel]) -> list[str]:
    return [path for model in models for path in (band_file(model), controlled_probe_file(model))]


def _members(preset: PresetConfig, chosen: list[selection.Condition]) -> list[ControlledModel]:
    groups = selection.conditions(preset)
    return [model for condition in chosen for model in groups[condition]]


def figure_inputs(preset: PresetConfig, number: selection.FigureId) -> list[str]:
    """Files that a figure needs. Raises :class:`selection.ReportError` naming the models that the preset lacks."""
    selection.refuse_if_missing(preset, "figure", number)
    if number == "band_curve":
        models = preset.controlled.curve_models
        return [path for model in models for path in (curve_file(model), curve_maps_file(model))]
    if number == "head_influence":
        scale, probed = selection.probed(preset)
        return hwh_files(scale, probed, HEAD_INFLUENCE, HEAD_INFLUENCE_BINS)
    if number in selection.PRETRAINED_FIGURES:
        wanted = PRETRAINED_INPUTS[number]
        models = selection.pretrained_of_figure(preset, number)
        return [path for model in models for path in pretrained_files(model, *wanted)]
    if number == 3:
        return _controlled(_members(preset, selection.main_conditions(preset)))
    if number == 11:
        return _controlled(_members(preset, list(selection.conditions(preset, True))))
    if number == 12:
        return _controlled(selection.without_norm_and_partners(preset))
    if number == 4:
        scale = selection.scale_for(preset, "1.4B", selection.MAIN_ARCHITECTURES)
        return hwh_files(scale, selection.models_of(scale, selection.MAIN_ARCHITECTURES), "niah_cells.csv")
    if number in (5, 6):
        names = selection.COMPONENT_ARCHITECTURES if number == 5 else selection.ALLOCATION_ARCHITECTURES
        scale = selection.scale_for(preset, "380M", names)
        return hwh_files(scale, selection.models_of(scale, names), "scores.csv", "niah_cells.csv")
    scale = selection.scale_for(preset, "380M")
    additional = [additional_cells_file(grid) for grid in preset.evaluation.niah.additional]
    wordings = additional if number == "needle_wordings" else []
    return hwh_files(scale, selection.compared(scale), "niah_cells.csv", *wordings)


def additional_cells_file(grid: NiahGrid) -> str:
    """Name of the cells of one of the additional needle grids."""
    return f"niah_{grid.name}_cells.csv"


def table_inputs(preset: PresetConfig, number: selection.TableId) -> list[str]:
    """Files that a table needs. Raises :class:`selection.ReportError` naming the models that the preset lacks."""
    selection.refuse_if_missing(preset, "table", number)
    if number == "heads":
        names = ("probe.npz", "behavior.npz", "heads.csv", "bands.json", "norms.npz")
        return [path for model in preset.pretrained.models for path in pretrained_files(model, *names)]
    if number == 3:
        return [band_file(model) for model in preset.controlled.models]
    if number == 4:
        return []
    if number == 1:
        return [
            path
            for scale in preset.hwh.scales
            for path in hwh_files(scale, selection.models_of(scale, selection.MAIN_ARCHITECTURES), "scores.csv")
        ]
    if number == 2:
        scale = selection.scale_for(preset, "1.4B")
        members = [*selection.models_of(scale, selection.MAIN_ARCHITECTURES), *selection.controls(scale)]
        additional = [additional_cells_file(grid) for grid in preset.evaluation.niah.additional]
        return hwh_files(scale, members, "scores.csv", "niah_cells.csv", *additional)
    names = selection.COMPONENT_ARCHITECTURES if number in (5, 6) else selection.ALLOCATION_ARCHITECTURES
    scale = selection.scale_for(preset, "380M", names)
    return hwh_files(scale, selection.models_of(scale, names), "scores.csv")


def claims_inputs(preset: PresetConfig) -> list[str]:
    """Files that the claims ledger reads: every measured result of the preset but those of controls."""
    paths = ["synthetic.json"]
    for model in preset.controlled.models:
        paths += [band_file(model), f"controlled/{model.name}/metrics.json"]
    paths += [curve_file(model) for model in preset.controlled.curve_models]
    for model in preset.pretrained.models:
        paths += pretrained_files(model, "probe.npz", "behavior.npz", "heads.csv", "bands.json")
    trained = [additional_cells_file(grid) for grid in preset.evaluation.niah.additional if grid.wording == "trained"]
    for scale in preset.hwh.scales:
        for model in scale.models:
            measured = ("scores.csv", "niah.csv", "niah_cells.csv", *trained) if model.retrieval_mix else ()
            paths += hwh_files(scale, [model], "metrics.json", *measured)
    scale, probed = selection.probed(preset)
    paths += hwh_files(scale, probed, HEAD_INFLUENCE, ROPE_HEADS) if probed else []
    return paths
