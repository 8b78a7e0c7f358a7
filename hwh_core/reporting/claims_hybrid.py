"""Claims M1 to M6 (380M) and B1 to B5 (1.4B), and the ranking claims at the scale that was run (``-scaled``).

Lengths scale with the training length L, which is 2K in the paper: 1K is L/2, 4K is 2L, 5.5K is 2.75 L. What needles
alone decide is also tested in a wording of the retrieval mix (``-trained``), where a preset asks for such needles: a
model that retrieves may know no other wording.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ..config import HwHScale, NiahGrid, PresetConfig
from . import requirements, selection, task_scores
from .claim_model import Claim, Outcome, Part, from_parts, not_testable
from .hybrid_readings import bounded, difference, level, ranked
from .intervals import NOT_NEGATIVE, PERCENT, PERCENT_DIFFERENCE, UNLIMITED, Interval
from .results import Results
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES
from .task_scores import SeedValue, SeedValues

BASELINES = ("transformer", "gdn", "inter")
ABLE = 90.0
# Percent; what claim B4 counts as about nothing.
ABOUT_NOTHING = 10.0
NOTHING_TO_MATCH = f"neither model answers more than {ABOUT_NOTHING:g}%: equal at about nothing is no match"
OTHER_GRIDS = "needles in RULER's wording; other prompts, on which models may rank otherwise, are in Table 2"
TRAINED = "-trained"
TRAINED_GRID = "needles in a wording of the retrieval mix, with keys, numbers and prose that no model saw"


@dataclass(frozen=True)
class Family:
    """Scores and needle results of all models of one scale but the controls.

    ``grid``: needles of one of the additional grids in place of the main one. ``read`` counts rows and prompts by
    architecture and column or length, each once however often a test reads it.
    """

    results: Results
    scale: HwHScale
    grid: NiahGrid | None = None
    read: dict[tuple[str, str | int], int] = field(default_factory=dict)

    @cached_property
    def scores(self) -> pd.DataFrame:
        return self.results.scores(self.scale, selection.compared(self.scale))

    @cached_property
    def cells(self) -> pd.DataFrame:
        models = selection.compared(self.scale)
        if self.grid is None:
            return self.results.cells(self.scale, models)
        return self.results.additional_cells(self.scale, models, self.grid)

    @property
    def length(self) -> int:
        return self.scale.length

    def needles(self, architecture: str, keep: Callable[[int], bool]) -> SeedValues:
        """Needle accuracy in percent over the lengths kept."""
        rows = self.cells[(self.cells["architecture"] == architecture) & self.cells["length"].map(keep)]
        for length, group in rows.groupby("length"):
            self.read[architecture, int(length)] = int(group["n"].sum())
        return task_scores.needle_values(self.cells, architecture, keep)

    def column(self, architecture: str, column: task_scores.Column) -> SeedValues:
        """Values of one column of the tables by seed."""
        values = task_scores.column_values(self.scores, architecture, column)
        self._count(architecture, column.title, values)
        return values

    def commonsense(self, architecture: str, with_lambada: bool = False) -> SeedValues:
        """Mean accuracy over the seven tasks, or these and LAMBADA."""
        values = task_scores.commonsense(self.scores, architecture, with_lambada)
        self._count(architecture, f"commonsense{' and LAMBADA' * with_lambada}", values)
        return values

    def _count(self, architecture: str, what: str, values: SeedValues) -> None:
        if values:
            self.read[architecture, what] = sum(value.n for value in values.values())

    def at(self, architecture: str, multiple: float) -> SeedValues:
        """Needle accuracy at ``multiple`` times the training length; empty when that length is not in the grid."""
        return self.needles(architecture, lambda n: n == round(multiple * self.length))

    def able(self, architecture: str) -> bool:
        """Whether the model reaches 90% at half its training length (1K in the paper) in any seed.

        A grid without that length answers with the shortest one that it has within the training length.
        """
        half, lengths = round(0.5 * self.length), set(self.cells["length"].unique())
        length = half if half in lengths else min(lengths)
        if length > self.length:
            return False
        values = task_scores.needle_values(self.cells, architecture, lambda n: n == length)
        return any(value.value >= ABLE for value in values.values())

    def retrieval(self, architecture: str) -> SeedValues:
        """Mean of the real-world retrieval tasks; where none was run, or in another grid, needles within L."""
        if self.grid is None and task_scores.columns_run(self.scores, task_scores.RETRIEVAL):
            values = task_scores.retrieval(self.scores, architecture)
            self._count(architecture, "retrieval", values)
            return values
        return self.needles(architecture, lambda n: n <= self.length)

    @property
    def retrieval_note(self) -> str:
        """Which tasks :meth:`retrieval` averages."""
        if self.grid is not None:
            return "retrieval: needles within the training length"
        run = [column.title for column in task_scores.columns_run(self.scores, task_scores.RETRIEVAL)]
        if run:
            return f"retrieval: mean of {', '.join(run)}"
        return "retrieval: needles within the training length, since no real-world retrieval task was run"

    def log_perplexity(self, architecture: str, column: task_scores.Column) -> SeedValues:
        """Natural logarithm of a perplexity, with its error to first order."""
        return {seed: value.logarithm() for seed, value in self.column(architecture, column).items()}

    @property
    def perplexities(self) -> list[task_scores.Column]:
        """WikiText (or, without it, held-out articles) and LAMBADA, as far as they were run."""
        run = task_scores.columns_run(self.scores, (task_scores.WIKI, task_scores.HELD_OUT, task_scores.LAMBADA_PPL))
        return [c for c in run if c is not task_scores.HELD_OUT or task_scores.WIKI not in run]


Test = Callable[[Family], tuple[list[Part], str, str]]


def other_grids(family: Family) -> str:
    """Which needles a claim read, and where those in other prompts stand, on which no verdict of it rests."""
    if family.grid is not None:
        return TRAINED_GRID
    read = any(isinstance(what, int) for _, what in family.read)
    return OTHER_GRIDS if read and family.results.preset.evaluation.niah.additional else ""


def trained_grid(preset: PresetConfig) -> NiahGrid | None:
    """The additional grid with the needle of Figures 4 and 15 in a wording of the retrieval mix, if there is one."""
    grids = preset.evaluation.niah.additional
    return next((grid for grid in grids if (grid.variant, grid.wording) == ("single_2", "trained")), None)


def at_scale(
    claim_scale: str, architectures: tuple[str, ...], test: Test, report_only: bool = False, trained: bool = False
):
    """Run ``test`` on the preset's scale of that kind; not testable without it or without the architectures.

    ``trained``: on needles of :func:`trained_grid`.
    """

    def evaluate(results: Results) -> Outcome:
        scales = [scale for scale in results.preset.hwh.scales if scale.claim_scale == claim_scale]
        if not scales:
            return not_testable(f"no scale of this preset has claim_scale {claim_scale}")
        complete = [s for s in scales if set(architectures) <= set(selection.architectures_of(s))]
        if not complete:
            missing = sorted(set(architectures) - set(selection.architectures_of(scales[0])))
            return not_testable(f"not trained in scale {scales[0].name}: {', '.join(missing)}")
        grid = trained_grid(results.preset) if trained else None
        family = Family(results, complete[0], grid)
        parts, note, file = test(family)
        file = file if grid is None else requirements.additional_cells_file(grid)
        models = selection.models_of(family.scale, architectures)
        scale = family.scale
        tokens = scale.training.steps * scale.training.tokens_per_step
        size = (
            f"scale {scale.name}: width {scale.shape.hidden_size}, {scale.shape.num_layers} layers, {tokens:.3g} tokens"
        )
        mix = "trained with a retrieval mix, which the paper does not have" if scale.retrieval_mix else ""
        evidence = requirements.hwh_files(scale, models[:1], file)[0]
        notes = "; ".join(text for text in (size, mix, note, other_grids(family)) if text)
        return from_parts(
            parts, evidence=evidence, n_samples=sum(family.read.values()), note=notes, report_only=report_only
        )

    return evaluate


def matched(label: str, first: SeedValues, second: SeedValues, margin: float) -> Part:
    """A part that holds when ``first`` matches or exceeds ``second``: when it lies at most ``margin`` points below it.

    Two models that both answer about nothing lie within any margin of each other without having been compared in
    anything. That is inconclusive, unless the first is clearly above the second.
    """
    gap = difference(first, second)
    part = ranked(label, gap, margin)
    if part.verdict != "reproduced" or gap is None or gap.low > 0:
        return part
    best = max(level(values).estimate for values in (first, second))
    return part if best > ABOUT_NOTHING else replace(part, verdict="inconclusive", note=NOTHING_TO_MATCH)


def _title(name: str) -> str:
    return ARCHITECTURE_TITLES[name]


def m1(family: Family) -> tuple[list[Part], str, str]:
    """Absolute numbers of HwH-std."""
    parts = []
    for column, value in ((task_scores.WIKI, 27.41), (task_scores.LAMBADA_PPL, 34.84)):
        found = level(family.column("hwh_std", column))
        limits = (0.95 * value, 1.05 * value)
        parts.append(bounded(f"{column.title} ({value} ± 5%)", found, *limits, possible=NOT_NEGATIVE))
    eight = level(family.commonsense("hwh_std", with_lambada=True))
    # Its rows are among those of the eight.
    seven = level(task_scores.commonsense(family.scores, "hwh_std", with_lambada=False))
    seven = seven and seven.within(PERCENT)
    parts.append(bounded("average of 8 (42.78 ± 1.5)", eight, 42.78 - 1.5, 42.78 + 1.5))
    shown = "not run" if seven is None else f"{seven.estimate:.2f} [{seven.low:.2f}, {seven.high:.2f}]"
    note = f"the task set of 42.78 is not stated; the mean of 7 (without LAMBADA) is {shown}"
    return parts, note, "scores.csv"


def m1b(family: Family) -> tuple[list[Part], str, str]:
    """HwH-std has the lowest perplexity of the four."""
    parts = []
    for column in family.perplexities:
        ours = family.log_perplexity("hwh_std", column)
        for name in BASELINES:
            gap = difference(family.log_perplexity(name, column), ours)
            parts.append(ranked(f"ln {column.title}: {_title(name)} - HwH-std", gap, possible=UNLIMITED))
    return parts or [Part("perplexity", None, "not_testable", "not run")], "", "scores.csv"


def m2(family: Family) -> tuple[list[Part], str, str]:
    """GDN against SWA as the local part."""
    sense = difference(family.commonsense("hwh_std"), family.commonsense("hwh_swa"))
    beyond = [family.needles(name, lambda n: n > family.length) for name in ("hwh_swa", "hwh_std")]
    able = family.able("hwh_swa") and family.able("hwh_std")
    parts = [
        ranked("commonsense: GDN - SWA", sense),
        ranked("retrieval: SWA - GDN", difference(family.retrieval("hwh_swa"), family.retrieval("hwh_std"))),
        ranked("needles beyond L: SWA - GDN", difference(*beyond), able=able),
    ]
    return parts, family.retrieval_note, "scores.csv"


def rope_needles(family: Family) -> tuple[list[Part], str, str]:
    """Needles beyond the training length with RoPE in place of NoPE full attention."""
    std, rope = (family.at(name, 2) for name in ("hwh_std", "hwh_std_r"))
    able = family.able("hwh_std") and family.able("hwh_std_r")
    half = difference({s: SeedValue(0.5 * v.value, 0.5 * v.stderr, v.n) for s, v in std.items()}, rope)
    label = "needles at 2L: half of HwH-std - HwH-std-r"
    return [ranked(label, half, able=able, possible=(-100.0, 50.0))], "", "niah_cells.csv"


def m3(family: Family) -> tuple[list[Part], str, str]:
    """RoPE in place of NoPE full attention."""
    parts, _, file = rope_needles(family)
    parts.append(
        ranked("retrieval: HwH-std - HwH-std-r", difference(family.retrieval("hwh_std"), family.retrieval("hwh_std_r")))
    )
    for column in family.perplexities:
        gap = difference(family.log_perplexity("hwh_std_r", column), family.log_perplexity("hwh_std", column))
        title = f"ln {column.title}: HwH-std-r - HwH-std (not better by 1%)"
        parts.append(ranked(title, gap, margin=0.01, possible=UNLIMITED))
    return parts, family.retrieval_note, file


def allocation_needles(family: Family) -> tuple[list[Part], str, str]:
    """Needles without full attention in the first and last layer, then with 1:7 in the outer layers."""
    length = family.length

    def gap(first: str, second: str, keep: Callable[[int], bool]) -> Interval | None:
        return difference(family.needles(first, keep), family.needles(second, keep))

    edges = gap("hwh_outer13", "hwh_uniform13", lambda n: length < n <= 2 * length)
    outer = gap("hwh_std", "hwh_outer13", lambda n: n > 2 * length)
    parts = [
        ranked("needles in (L, 2L]: edges removed - uniform", edges,
               able=family.able("hwh_outer13") and family.able("hwh_uniform13")),
        ranked("needles beyond 2L: outer 1:7 - outer 1:3", outer,
               able=family.able("hwh_std") and family.able("hwh_outer13")),
    ]  # fmt: skip
    return parts, "", "niah_cells.csv"


def m4(family: Family) -> tuple[list[Part], str, str]:
    """Full attention out of the first and last layer, then 1:7 in the outer layers."""
    parts, _, file = allocation_needles(family)
    parts.append(
        ranked("retrieval: outer 1:7 - outer 1:3",
               difference(family.retrieval("hwh_std"), family.retrieval("hwh_outer13")))
    )  # fmt: skip
    sense = {name: family.commonsense(name) for name in selection.ALLOCATION_ARCHITECTURES}
    for name in ("hwh_uniform13", "hwh_outer13"):
        flat = difference(sense["hwh_std"], sense[name])
        title = f"commonsense: HwH-std - {_title(name)} (± 1 pt)"
        parts.append(bounded(title, flat, -1.0, 1.0, possible=PERCENT_DIFFERENCE))
    return parts, family.retrieval_note, file


def m5(family: Family) -> tuple[list[Part], str, str]:
    """Needles at 1K of the two models that the paper calls fragile."""
    parts = []
    for name in ("transformer", "hwh_std_r"):
        found = level(family.at(name, 0.5))
        shown, decided = (None, "not_testable") if found is None else (found.within(PERCENT), "inconclusive")
        parts.append(Part(f"{_title(name)} at L/2", shown, decided))
    return parts, "report only: never a verdict", "niah_cells.csv"


def m6(family: Family) -> tuple[list[Part], str, str]:
    """HwH-std matches or exceeds all baselines in retrieval."""
    ours = family.retrieval("hwh_std")
    parts = [
        matched(f"retrieval: HwH-std - {_title(name)} (margin 1 pt)", ours, family.retrieval(name), margin=1.0)
        for name in BASELINES
    ]
    return parts, family.retrieval_note, "scores.csv"


def b1(family: Family) -> tuple[list[Part], str, str]:
    """The Transformer does not extrapolate.

    The row is one of extrapolation, its lengths up to L included: of a model that is not able nothing is decided.
    """
    able = family.able("transformer")
    parts = [bounded("Transformer at 2L <= 2%", level(family.at("transformer", 2)), -np.inf, 2.0, able)]
    for multiple, label in ((0.5, "L/2"), (1, "L")):
        found = level(family.at("transformer", multiple))
        parts.append(bounded(f"Transformer at {label} >= 90%", found, 90.0, np.inf, able))
    return parts, "NIAH-Single-2 grid, mean over depth", "niah_cells.csv"


def b2(family: Family) -> tuple[list[Part], str, str]:
    """HwH-std through 2L and beyond; of a model that is not able nothing is decided, as in :func:`b1`."""
    length, able = family.length, family.able("hwh_std")
    parts = []
    for n in sorted(n for n in family.cells["length"].unique() if n <= 2 * length):
        found = level(family.needles("hwh_std", lambda value, wanted=n: value == wanted))
        parts.append(bounded(f"HwH-std at {n} >= 95%", found, 95.0, np.inf, able))
    for name in BASELINES:
        gap = difference(family.needles("hwh_std", lambda n: n > 2 * length),
                         family.needles(name, lambda n: n > 2 * length))  # fmt: skip
        parts.append(ranked(f"beyond 2L: HwH-std - {_title(name)}", gap, able=able))
    return parts, "", "niah_cells.csv"


def b3(family: Family) -> tuple[list[Part], str, str]:
    """GDN finds needles near the end only, in prompts longer than the training length."""
    models = selection.models_of(family.scale, ("gdn",))
    prompts = family.results.prompts(family.scale, models)
    long = prompts[prompts["length"] > family.length]
    family.read["gdn", "prompts beyond the training length"] = len(long)
    near_far: dict[bool, SeedValues] = {}
    for near, rows in long.groupby(long["needle_distance"] <= family.length):
        near_far[bool(near)] = {
            int(seed): task_scores.share_of(float(g["correct"].mean()), len(g)) for seed, g in rows.groupby("seed")
        }
    gap = difference(near_far.get(True, {}), near_far.get(False, {}))
    part = bounded("near - far (points)", gap, 50.0, np.inf, family.able("gdn"), PERCENT_DIFFERENCE)
    return [part], f"near: needle within {family.length} tokens of the end, in longer prompts", "niah.csv"


def b4(family: Family) -> tuple[list[Part], str, str]:
    """Inter falls to about 0 beyond 5K."""
    found = level(family.needles("inter", lambda n: n >= 2.75 * family.length))
    return [bounded("Inter at >= 2.75 L <= 10%", found, -np.inf, 10.0, family.able("inter"))], "", "niah_cells.csv"


def b5(family: Family) -> tuple[list[Part], str, str]:
    """HwH-std is best in retrieval, and its perplexity within 2% of the best."""
    ours = family.retrieval("hwh_std")
    parts = [ranked(f"retrieval: HwH-std - {_title(n)}", difference(ours, family.retrieval(n))) for n in BASELINES]
    for column in family.perplexities:
        for name in BASELINES:
            gap = difference(family.log_perplexity("hwh_std", column), family.log_perplexity(name, column))
            title = f"ln {column.title}: HwH-std - {_title(name)} <= 2%"
            parts.append(bounded(title, gap, -np.inf, math.log(1.02), possible=UNLIMITED))
    return parts, family.retrieval_note, "scores.csv"


def _pair(
    number: str, statement: str, paper: str | None, tolerance: str, metric: str, needs: tuple[str, ...], test: Test, *,
    report_only: bool = False, scaled: bool = True, trained: Test | None = None,
) -> list[Claim]:  # fmt: skip
    """The paper's row and, for ranking claims, rows at the scale that was run: as it is, and ``trained`` on needles in
    a wording of the retrieval mix."""
    letter = number[0]
    size = {"M": "380M", "B": "1.4B"}[letter]
    rows = [Claim(number, statement, paper, tolerance, metric, letter, size, at_scale(size, needs, test, report_only))]
    if scaled:
        small = at_scale("scaled", needs, test, report_only)
        text = f"{statement} (at the scale that was run)"
        rows.append(Claim(f"{number}-scaled", text, paper, tolerance, metric, letter, "scaled", small))
    if trained:
        there = at_scale("scaled", needs, trained, report_only, trained=True)
        text = f"{statement} (at the scale that was run; needles alone, in a wording of the retrieval mix)"
        rows.append(Claim(f"{number}{TRAINED}", text, paper, tolerance, metric, letter, "scaled", there))
    return rows


POINTS = "needle accuracy (%), mean over depth"
CLAIMS = [
    *_pair("M1", "380M HwH-std: Wiki ppl 27.41, LAMBADA ppl 34.84, average 42.78", "27.41 / 34.84 / 42.78",
           "±5% perplexity, ±1.5 points", "perplexity; mean accuracy (%)", ("hwh_std",), m1, scaled=False),
    *_pair("M1b", "HwH-std is the best of the four in language modelling", "best perplexities", "ranking",
           "difference of ln perplexity", MAIN_ARCHITECTURES, m1b),
    *_pair("M2", "GDN beats SWA on commonsense; SWA is slightly better on retrieval, clearly on extrapolation",
           "Figure 5", "ranking", "difference (points)", ("hwh_std", "hwh_swa"), m2),
    *_pair("M3", "With RoPE full attention retrieval and extrapolation drop sharply, language modelling is not better",
           "Figure 5", "NIAH-S2 at 2L below half of HwH-std; ranking", "difference (points; ln perplexity)",
           ("hwh_std", "hwh_std_r"), m3, trained=rope_needles),
    *_pair("M4", "No full attention in the first and last layer helps to 4K; outer 1:7 helps beyond 4K and retrieval; "
           "commonsense flat", "Figure 6", "ranking, ±1 point", "difference (points)",
           selection.ALLOCATION_ARCHITECTURES, m4, trained=allocation_needles),
    *_pair("M5", "Transformer and HwH-std-r are poor at 1K on NIAH-S2 (report only)", "anomalously poor",
           "none: reported", POINTS, ("transformer", "hwh_std_r"), m5, report_only=True, trained=m5),
    *_pair("M6", "HwH-std matches or exceeds all baselines in retrieval", "matches or exceeds", "ranking, ±1 point",
           "difference (points)", MAIN_ARCHITECTURES, m6, trained=m6),
    *_pair("B1", "Transformer: 0 on NIAH at 4K, fine at 1K and 2K", "zero at 4K", "<= 2% at 2L; >= 90% at L/2 and L",
           POINTS, ("transformer",), b1, trained=b1),
    *_pair("B2", "HwH-std is near perfect through 4K and best beyond", "nearly perfect through 4K",
           ">= 95% mean over depth through 2L; ranking beyond", POINTS, MAIN_ARCHITECTURES, b2, trained=b2),
    *_pair("B3", "GDN beyond 2K succeeds only when the needle lies within about 2048 tokens of the end",
           "a training-length window at the end", "near-far gap >= 50 points", "difference of accuracies (points)",
           ("gdn",), b3),
    *_pair("B4", "Inter falls to about 0 beyond 5K", "nearly vanishes beyond 5K", "<= 10% at >= 2.75 L", POINTS,
           ("inter",), b4, trained=b4),
    *_pair("B5", "HwH-std is best in retrieval, with competitive language modelling", "best overall retrieval",
           "ranking; perplexity within 2% of the best", "difference (points; ln perplexity)", MAIN_ARCHITECTURES, b5),
]  # fmt: skip
