"""Colours of models in figures: one chooser, and a palette that colour-blind readers and white paper bear."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from hwh_core.reporting.style import ARCHITECTURE_COLOURS, FREE_COLOURS, OKABE_ITO, WINE, colours_of

# Machado, Oliveira and Fernandes (2009), complete lack of one kind of cone, on linear RGB.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
PALETTE = [*OKABE_ITO.values(), WINE]


def linear(colour):
    """Linear RGB of an sRGB colour."""
    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB."""
    x, y, z = np.cbrt(np.clip(XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1), 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(first, second, seen):
    """CIE 1976 distance of two colours as they are seen."""
    return float(np.linalg.norm(lab(np.array(seen) @ linear(first)) - lab(np.array(seen) @ linear(second))))


def contrast_to_white(colour):
    """Contrast as the WCAG defines it: 1 to 21."""
    return 1.05 / (float(XYZ[1] @ linear(colour)) + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_is_seen_on_white(colour):
    assert contrast_to_white(colour) > 2
    assert contrast_to_white("#F0E442") < 1.4, "the yellow that the palette leaves out"


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_the_added_colour_lies_apart_from_the_others(seen):
    closest = min(distance(*pair, seen) for pair in combinations(OKABE_ITO.values(), 2))
    assert min(distance(WINE, colour, seen) for colour in OKABE_ITO.values()) > closest


def test_every_architecture_has_one_colour_of_the_palette():
    assert sorted(ARCHITECTURE_COLOURS.values()) == sorted(PALETTE)
    assert sorted(FREE_COLOURS) == sorted(set(PALETTE) - {OKABE_ITO["black"]})


def test_architectures_of_a_figure_have_colours_of_their_own():
    names = ["variant", "transformer", "gdn", "hwh_std", "hwh_outer13", "other"]
    colours = colours_of(names)
    assert list(colours) == names
    assert len(set(colours.values())) == len(names)
    assert all(colours[name] == ARCHITECTURE_COLOURS[name] for name in names[1:5])


def test_models_of_one_architecture_have_colours_of_their_own():
    models = {"a": "inter", "b": "variant", "c": "inter", "d": "hwh_std_r", "e": "another"}
    colours = colours_of(models, models)
    assert len(set(colours.values())) == len(models)
    assert (colours["a"], colours["d"]) == (ARCHITECTURE_COLOURS["inter"], ARCHITECTURE_COLOURS["hwh_std_r"])


def test_colours_come_again_only_when_all_are_taken():
    """Black stays the Transformer's, and no colour is a third model's before each is a second one's."""
    alone = list(colours_of(map(str, range(10))).values())
    assert alone[:7] == list(FREE_COLOURS)
    assert alone[7:] == list(FREE_COLOURS[:3])
    known = colours_of([*ARCHITECTURE_COLOURS, "variant", "other"])
    assert [known["variant"], known["other"]] == list(FREE_COLOURS[:2])
