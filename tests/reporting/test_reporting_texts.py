"""Spellings that tables and claims share."""

from __future__ import annotations

import pytest

from hwh_core.reporting.selection import Condition
from hwh_core.reporting.texts import theta_text


@pytest.mark.parametrize(("theta", "text"), [(1e4, "θ=1e4"), (1e6, "θ=1e6"), (5e5, "θ=5e5"), (12345.0, "θ=12345")])
def test_a_base_loses_no_digit(theta, text):
    assert theta_text(theta) == text


@pytest.mark.parametrize("theta", [1e4, 1e6, 5e5])
def test_tables_name_a_base_as_figures_do(theta):
    assert Condition(theta, 2048, True).title.startswith(f"{theta_text(theta)},")
