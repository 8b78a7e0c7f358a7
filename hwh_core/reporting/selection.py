"""Which models of a preset stand in which figure, table and claim: pure functions on the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..config import ControlledModel, HwHModel, HwHScale, PresetConfig, PretrainedModel
from ..scripting import UserError

MAIN_ARCHITECTURES = ("transformer", "gdn", "inter", "hwh_std")
COMPONENT_ARCHITECTURES = ("hwh_std", "hwh_swa", "hwh_std_r")
ALLOCATION_ARCHITECTURES = ("hwh_uniform13", "hwh_outer13", "hwh_std")
# Every kind of head, alone and beside others, in the order of the figure.
PROBED_ARCHITECTURES = ("hwh_std", "hwh_std_r", "hwh_swa", "inter", "gdn", "transformer")
ARCHITECTURE_TITLES = {
    "transformer": "Transformer",
    "gdn": "GDN",
    "inter": "Inter",
    "hwh_std": "HwH-std",
    "hwh_std_r": "HwH-std-r",
    "hwh_swa": "HwH-swa",
    "hwh_uniform13": "HwH uniform 1:3",
    "hwh_outer13": "HwH outer 1:3",
}
PAPER_LENGTH = 2048
FIGURE_NUMBERS = tuple(range(2, 16))
TABLE_NUMBERS = tuple(range(1, 9))
# Figures of this project that the paper does not have, by name.
OWN_FIGURES = ("band_curve", "head_influence", "needle_wordings", "qk_norm")
OWN_TABLES = ("heads",)
# Ours too, but no preset draws them by itself: what they need takes long.
ON_DEMAND_FIGURES = ("causal",)
FigureId = int | str
TableId = int | str


class ReportError(UserError):
    """A figure, a table or the ledger cannot be made; the message names what is missing and the mend."""


def figure_name(figure: FigureId) -> str:
    """Name of a figure's files, module and rule: ``fig3``, ``fig_head_influence``."""
    return f"fig{figure}" if isinstance(figure, int) else f"fig_{figure}"


def table_name(table: TableId) -> str:
    """Name of a table's files, module and rule: ``table3``, ``table_heads``."""
    return f"table{table}" if isinstance(table, int) else f"table_{table}"


def id_of(text: str) -> FigureId | TableId:
    """The figure or table that a command line names: a number of the paper, or a name of ours."""
    return int(text) if text.isdigit() else text


@dataclass(frozen=True, order=True)
class Condition:
    """Controlled models that differ in nothing but the seed."""

    rope_theta: float
    length: int
    qk_norm: bool

    @property
    def title(self) -> str:
        """Short text for panels and tables."""
        return f"θ={self.rope_theta:.0e}, L={self.length}".replace("e+0", "e") + ("" if self.qk_norm else ", no QKNorm")


def condition_of(model: ControlledModel) -> Condition:
    """The condition of one controlled model."""
    return Condition(model.rope_theta, model.length, model.qk_norm)


def conditions(preset: PresetConfig, qk_norm: bool | None = None) -> dict[Condition, list[ControlledModel]]:
    """Controlled models by condition, in the order of the preset; ``qk_norm`` keeps one of the two kinds."""
    found: dict[Condition, list[ControlledModel]] = {}
    for model in preset.controlled.models:
        if qk_norm is None or model.qk_norm == qk_norm:
            found.setdefault(condition_of(model), []).append(model)
    return found


def base_length(preset: PresetConfig) -> int | None:
    """The training length at which RoPE bases are compared: 2048 where it was trained, else the most compared one."""
    with_norm = conditions(preset, qk_norm=True)
    if not with_norm:
        return None
    lengths = {c.length for c in with_norm}
    if PAPER_LENGTH in lengths:
        return PAPER_LENGTH
    return max(lengths, key=lambda length: (len({c.rope_theta for c in with_norm if c.length == length}), -length))


def main_conditions(preset: PresetConfig) -> list[Condition]:
    """Figure 3: both bases at one length, and the lower base at twice that length, as far as they were trained."""
    length = base_length(preset)
    if length is None:
        return []
    with_norm = conditions(preset, qk_norm=True)
    at_length = sorted(c for c in with_norm if c.length == length)
    doubled = [c for c in with_norm if c.length == 2 * length and c.rope_theta == at_length[0].rope_theta]
    return at_length + doubled


def without_norm_and_partners(preset: PresetConfig) -> list[ControlledModel]:
    """Figure 12: models without QK-norm, each condition after its partner with QK-norm where that was trained."""
    groups = conditions(preset)
    chosen: list[ControlledModel] = []
    for condition in conditions(preset, qk_norm=False):
        chosen += groups.get(Condition(condition.rope_theta, condition.length, True), []) + groups[condition]
    return chosen


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


PRETRAINED_FAMILIES = {
    "Qwen3-4B": ("qwen34b",),
    "Qwen3-1.7B": ("qwen317b",),
    "Qwen3-8B": ("qwen38b",),
    "Llama3.1-8B-Instruct": ("llama318b", "metallama318b"),
    "Gemma-7B": ("gemma7b",),
    "SmolLM2-135M": ("smollm2135m",),
}


def pretrained_model(preset: PresetConfig, family: str) -> PretrainedModel | None:
    """The model of one of :data:`PRETRAINED_FAMILIES`, found by its name without punctuation, or None."""
    for model in preset.pretrained.models:
        if any(_plain(model.name).startswith(prefix) for prefix in PRETRAINED_FAMILIES[family]):
            return model
    return None


# The paper draws these of one model; other models have to be named under pretrained.figures.
FAMILY_FIGURES = {10: "Llama3.1-8B-Instruct", 13: "Gemma-7B", 14: "Gemma-7B"}
PRETRAINED_FIGURES = (2, 7, 8, 9, *FAMILY_FIGURES, "qk_norm", "causal")
PAPER_LAYERS = {10: (13, 14), 14: (14, 16)}


def pretrained_of_figure(preset: PresetConfig, figure: FigureId) -> list[PretrainedModel]:
    """Models that a figure of pretrained models draws, in the order of ``pretrained.figures``.

    Without an entry there: the paper's model of Figures 10, 13 and 14 where the preset has it, and every model in the
    others.
    """
    by_name = {model.name: model for model in preset.pretrained.models}
    named = [by_name[name] for entry in preset.pretrained.figures if entry.figure == figure for name in entry.models]
    if named:
        return named
    if figure in FAMILY_FIGURES:
        model = pretrained_model(preset, FAMILY_FIGURES[figure])
        return [model] if model else []
    return list(preset.pretrained.models)


def layers_of_figure(preset: PresetConfig, figure: FigureId, model: PretrainedModel) -> list[int] | None:
    """Layers of a model that Figure 10 or 14 draws: those of the preset or the paper; None: chosen by their heads."""
    for entry in preset.pretrained.figures:
        if entry.figure == figure and model.name in entry.models and entry.layers is not None:
            return list(entry.layers)
    is_papers = pretrained_model(preset, FAMILY_FIGURES[figure]) == model
    return list(PAPER_LAYERS[figure]) if is_papers else None


def compared(scale: HwHScale) -> list[HwHModel]:
    """Models of a scale that claims and comparisons are about: all that were trained as the scale says."""
    return [model for model in scale.models if model.retrieval_mix]


def controls(scale: HwHScale) -> list[HwHModel]:
    """Models of a scale that were trained without its retrieval mix."""
    return [model for model in scale.models if not model.retrieval_mix]


def mix_note(scale: HwHScale) -> str:
    """One sentence on the retrieval mix that the compared models of a scale were trained with; empty without one."""
    mix = scale.retrieval_mix
    if mix is None:
        return ""
    digits = " or ".join(map(str, mix.value_digits))
    return (
        f"Trained with a retrieval mix, which the paper does not have: {mix.sequence_share:.0%} of the sequences carry "
        f"{mix.pairs_per_sequence} facts with values of {digits} digits, each asked for later in the sequence "
        f"({mix.repeat_share:.0%} only repeated), at uniform distances up to the training length {scale.length}; keys, "
        "values, prose and wordings are disjoint from those of the evaluation, but for the wording of the needles that "
        "are said to be in a trained one"
    )


def architectures_of(scale: HwHScale) -> list[str]:
    """Architectures of the compared models of a scale, each once, in the order of the preset."""
    return list(dict.fromkeys(model.architecture for model in compared(scale)))


def models_of(scale: HwHScale, architectures: Iterable[str]) -> list[HwHModel]:
    """Compared models of a scale with an architecture among ``architectures``, ordered by these, then by seed."""
    order = list(architectures)
    chosen = [model for model in compared(scale) if model.architecture in order]
    return sorted(chosen, key=lambda model: (order.index(model.architecture), model.seed))


def scale_for(preset: PresetConfig, claim_scale: str, architectures: Iterable[str] = ()) -> HwHScale | None:
    """The scale that stands for one of the paper's.

    The scale with that ``claim_scale`` (380M or 1.4B) if the preset has one, else a scaled-down one, else any; among
    equals the first that holds all ``architectures``. None when no scale holds them.
    """
    wanted = set(architectures)
    for kind in (claim_scale, "scaled", "none"):
        for scale in preset.hwh.scales:
            if scale.claim_scale == kind and wanted <= set(architectures_of(scale)):
                return scale
    return None


def probed(preset: PresetConfig) -> tuple[HwHScale | None, list[HwHModel]]:
    """The scale whose heads are probed and its models, by architecture and seed; no models without ``hwh.probe``."""
    scale = scale_for(preset, "380M")
    if preset.hwh.probe is None or scale is None:
        return scale, []
    return scale, models_of(scale, PROBED_ARCHITECTURES)


def _need_architectures(preset: PresetConfig, claim_scale: str, architectures: tuple[str, ...]) -> list[str]:
    if scale_for(preset, claim_scale, architectures):
        return []
    best = max((set(architectures_of(s)) & set(architectures) for s in preset.hwh.scales), key=len, default=set())
    return [f"HwH architecture {name} in one scale" for name in architectures if name not in best]


def _missing_for_head_influence(preset: PresetConfig) -> list[str]:
    if preset.hwh.probe is None:
        return ["a probe of the heads of the HwH family (hwh.probe)"]
    return [] if probed(preset)[1] else ["an HwH architecture that is probed"]


def missing_for_figure(preset: PresetConfig, number: FigureId) -> list[str]:
    """What the preset lacks for a figure; empty when it can be drawn. Raises :class:`ReportError` for others."""
    if number == "band_curve":
        return [] if preset.controlled.curve_models else ["a curve of controlled models (controlled.curve)"]
    if number == "head_influence":
        return _missing_for_head_influence(preset)
    if number == "needle_wordings":
        lacks = [] if scale_for(preset, "380M") else ["an HwH scale"]
        return lacks + ([] if preset.evaluation.niah.additional else ["needle grids in evaluation.niah.additional"])
    if number == "causal" and preset.pretrained.causal is None:
        return ["causal checks (pretrained.causal)"]
    with_norm, without_norm = conditions(preset, True), conditions(preset, False)
    if number == 8:
        return [] if len(pretrained_of_figure(preset, 8)) >= 2 else ["a second pretrained model to compare with"]
    if number in FAMILY_FIGURES:
        family = FAMILY_FIGURES[number]
        return (
            []
            if pretrained_of_figure(preset, number)
            else [f"pretrained model {family}, or another in pretrained.figures"]
        )
    if number in PRETRAINED_FIGURES:
        return [] if pretrained_of_figure(preset, number) else ["a pretrained model"]
    if number in (3, 11):
        return [] if with_norm else ["a controlled model with qk_norm: true"]
    if number == 12:
        return [] if without_norm else ["a controlled model with qk_norm: false"]
    if number == 4:
        return _need_architectures(preset, "1.4B", MAIN_ARCHITECTURES)
    if number == 5:
        return _need_architectures(preset, "380M", COMPONENT_ARCHITECTURES)
    if number == 6:
        return _need_architectures(preset, "380M", ALLOCATION_ARCHITECTURES)
    if number == 15:
        return [] if scale_for(preset, "380M") else ["an HwH scale"]
    known = [*FIGURE_NUMBERS, *OWN_FIGURES, *ON_DEMAND_FIGURES]
    raise ReportError(f"figure {number} is none of this report's; choose one of {known}")


def missing_for_table(preset: PresetConfig, number: TableId) -> list[str]:
    """What the preset lacks for a table; empty when it can be made. Raises :class:`ReportError` for others."""
    if number == "heads":
        return [] if preset.pretrained.models else ["a pretrained model"]
    if number in (1, 2, 4):
        return [] if preset.hwh.scales else ["an HwH scale"]
    if number == 3:
        return [] if preset.controlled.models else ["a controlled model"]
    if number in (5, 6):
        return _need_architectures(preset, "380M", COMPONENT_ARCHITECTURES)
    if number in (7, 8):
        return _need_architectures(preset, "380M", ALLOCATION_ARCHITECTURES)
    raise ReportError(f"table {number} is none of this report's; choose one of {[*TABLE_NUMBERS, *OWN_TABLES]}")


def available_figures(preset: PresetConfig) -> list[FigureId]:
    """All figures that the models of a preset allow: numbers of the paper's, then names of ours."""
    return [figure for figure in (*FIGURE_NUMBERS, *OWN_FIGURES) if not missing_for_figure(preset, figure)]


def on_demand_figures(preset: PresetConfig) -> list[FigureId]:
    """Figures that the models of a preset allow and that are drawn only when they are asked for."""
    return [figure for figure in ON_DEMAND_FIGURES if not missing_for_figure(preset, figure)]


def available_tables(preset: PresetConfig) -> list[TableId]:
    """All tables that the models of a preset allow: numbers of the paper's, then names of ours."""
    return [number for number in (*TABLE_NUMBERS, *OWN_TABLES) if not missing_for_table(preset, number)]


def refuse_if_missing(preset: PresetConfig, kind: str, number: FigureId | TableId) -> None:
    """Raise :class:`ReportError` naming what the preset lacks for a ``figure`` or ``table``."""
    missing = (missing_for_figure if kind == "figure" else missing_for_table)(preset, number)
    if missing:
        raise ReportError(
            f"{kind} {number} cannot be made with preset {preset.preset!r}: it lacks {'; '.join(missing)}; "
            f"add the models to the preset or use one that has them (targets.{kind}s lists what it can make)"
        )
