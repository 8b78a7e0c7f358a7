"""Claims B1 to B5: the hybrid family at 1.4B, and the same rankings at the scale that was run."""

from __future__ import annotations

import math

import numpy as np

from .claim_model import Part
from .hybrid_family import ABOUT_NOTHING, BASELINES, NEEDLE_ACCURACY, Family
from .hybrid_readings import bounded, difference, level, ranked
from .hybrid_scales import claim_rows
from .intervals import PERCENT_DIFFERENCE, UNLIMITED
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES


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
    """HwH-std through 2L and beyond; of a model that is not able nothing is decided, as in :func:`b1`.

    Beside others it must be able in a seed that they have as well; these need not be, the claim is that they fall.
    """
    length, able = family.length, family.able("hwh_std")
    parts = []
    for n in sorted(n for n in family.cells["length"].unique() if n <= 2 * length):
        found = level(family.needles("hwh_std", lambda value, wanted=n: value == wanted))
        parts.append(bounded(f"HwH-std at {n} >= 95%", found, 95.0, np.inf, able))
    for name in BASELINES:
        gap = difference(family.needles("hwh_std", lambda n: n > 2 * length),
                         family.needles(name, lambda n: n > 2 * length))  # fmt: skip
        label = f"beyond 2L: HwH-std - {ARCHITECTURE_TITLES[name]}"
        parts.append(ranked(label, gap, able=family.able("hwh_std", name)))
    return parts, "", "niah_cells.csv"


def b3(family: Family) -> tuple[list[Part], str, str]:
    """GDN finds needles near the end only, in prompts longer than the training length."""
    gap = difference(*family.near_and_far("gdn"))
    part = bounded("near - far (points)", gap, 50.0, np.inf, family.able("gdn"), PERCENT_DIFFERENCE)
    return [part], f"near: needle within {family.length} tokens of the end, in longer prompts", "niah.csv"


def b4(family: Family) -> tuple[list[Part], str, str]:
    """Inter falls to about 0 beyond 5K."""
    found = level(family.needles("inter", lambda n: n >= 2.75 * family.length))
    label = f"Inter at >= 2.75 L <= {ABOUT_NOTHING:g}%"
    return [bounded(label, found, -np.inf, ABOUT_NOTHING, family.able("inter"))], "", "niah_cells.csv"


def b5(family: Family) -> tuple[list[Part], str, str]:
    """HwH-std is best in retrieval, and its perplexity within 2% of the best."""
    ours = family.retrieval("hwh_std")
    parts = [
        ranked(f"retrieval: HwH-std - {ARCHITECTURE_TITLES[name]}", difference(ours, family.retrieval(name)))
        for name in BASELINES
    ]
    for column in family.perplexities:
        for name in BASELINES:
            gap = difference(family.log_perplexity("hwh_std", column), family.log_perplexity(name, column))
            title = f"ln {column.title}: HwH-std - {ARCHITECTURE_TITLES[name]} <= 2%"
            parts.append(bounded(title, gap, -np.inf, math.log(1.02), possible=UNLIMITED))
    return parts, family.retrieval_note, "scores.csv"


CLAIMS = [
    *claim_rows("B1", "Transformer: 0 on NIAH at 4K, fine at 1K and 2K", "zero at 4K",
                "<= 2% at 2L; >= 90% at L/2 and L", NEEDLE_ACCURACY, ("transformer",), b1, trained=b1),
    *claim_rows("B2", "HwH-std is near perfect through 4K and best beyond", "nearly perfect through 4K",
                ">= 95% mean over depth through 2L; ranking beyond", NEEDLE_ACCURACY, MAIN_ARCHITECTURES, b2,
                trained=b2),
    *claim_rows("B3", "GDN beyond 2K succeeds only when the needle lies within about 2048 tokens of the end",
                "a training-length window at the end", "near-far gap >= 50 points", "difference of accuracies (points)",
                ("gdn",), b3),
    *claim_rows("B4", "Inter falls to about 0 beyond 5K", "nearly vanishes beyond 5K",
                f"<= {ABOUT_NOTHING:g}% at >= 2.75 L", NEEDLE_ACCURACY, ("inter",), b4, trained=b4),
    *claim_rows("B5", "HwH-std is best in retrieval, with competitive language modelling", "best overall retrieval",
                "ranking; perplexity within 2% of the best", "difference (points; ln perplexity)", MAIN_ARCHITECTURES,
                b5),
]  # fmt: skip
