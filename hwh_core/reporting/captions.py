"""What titles and captions say of the retrieval mix: a title names it in a few words, the caption describes it."""

from __future__ import annotations

from ..config import HwHScale, PresetConfig
from . import selection

MIX_IN_TITLE = "trained with a retrieval mix (not in the paper)"
# Scale of the paper and architectures that a figure of trained models needs.
SCALES_OF_FIGURES: dict[selection.FigureId, tuple[str, tuple[str, ...]]] = {
    4: ("1.4B", selection.MAIN_ARCHITECTURES),
    5: ("380M", selection.COMPONENT_ARCHITECTURES),
    6: ("380M", selection.ALLOCATION_ARCHITECTURES),
    15: ("380M", ()),
    "needle_wordings": ("380M", ()),
    "head_influence": ("380M", ()),
}


def title_of(words: str, scale: HwHScale) -> str:
    """One line for the head of a figure: what it shows, the scale, and the mix where its models were trained with one.

    Only what no reader may miss stands there; how marks are read is said by axes and legends.
    """
    return ", ".join([words, f"scale {scale.name}", *([MIX_IN_TITLE] if scale.retrieval_mix else [])])


def caption_note(preset: PresetConfig, figure: selection.FigureId) -> str:
    """The sentence that the caption of a figure adds for this preset: the mix of its models; empty without one."""
    if figure not in SCALES_OF_FIGURES:
        return ""
    scale = selection.scale_for(preset, *SCALES_OF_FIGURES[figure])
    note = selection.mix_note(scale) if scale else ""
    return f"{note}." if note else ""
