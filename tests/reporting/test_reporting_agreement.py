"""Agreement of QRscore maps of two models, and the table of heads."""

from __future__ import annotations

import numpy as np
import pytest

from hwh_core.reporting import table_heads
from hwh_core.reporting.agreement import head_agreement, profile_agreement


def scores(layers: int, heads: int, profile, seed: int, noise: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    depth = np.linspace(0, 1, layers)
    head = profile(depth)[:, None] * rng.gamma(2.0, size=(layers, heads))
    return head * (1 + noise * rng.random((6, layers, heads)))


def middle(depth: np.ndarray) -> np.ndarray:
    return np.exp(-(((depth - 0.5) / 0.15) ** 2)) + 0.02


def test_models_with_the_same_depth_profile_agree_whatever_their_size():
    small, large = scores(12, 6, middle, 0), scores(30, 16, middle, 1)
    profile = profile_agreement(small, large)
    assert profile.low > 0.8
    assert profile.low <= profile.estimate <= profile.high
    heads, chance = head_agreement(small, large)
    assert heads.low > chance + 0.2
    # The same model with its heads in another order is the same model.
    shuffled = np.random.default_rng(2).permuted(small[0], axis=1)[None].repeat(6, axis=0)
    alike, _ = head_agreement(small[:1].repeat(6, axis=0), shuffled)
    assert alike.estimate == pytest.approx(1.0)


def test_unrelated_profiles_agree_by_chance_only():
    first, second = scores(24, 8, middle, 0), scores(24, 8, lambda depth: 1.05 - middle(depth), 1)
    heads, chance = head_agreement(first, second)
    assert heads.estimate < chance
    assert profile_agreement(first, second).high < 0


def test_the_table_has_every_statistic_of_every_model_and_every_pair(wide):
    table = table_heads.make(wide.results())
    long = table.long()
    models = [model.title for model in wide.preset.pretrained.models]
    alone = long[long["model"].isin(models)]
    counts = alone.groupby("model")["statistic"].nunique()
    assert counts.nunique() == 1
    assert set(alone["claim"]) == {
        "W1",
        "W2",
        "W3",
        "W4",
        "W5",
        "W5, W7",
        "W6",
        "W7",
        "W8",
        "C7",
        "C8",
        "classes",
        "B.5",
    }
    pairs = long[long["claim"] == "W9"]
    assert pairs["model"].nunique() == len(models) * (len(models) - 1) // 2
    assert pairs["statistic"].str.endswith(", by chance").sum() == 10
    assert not alone["ours"].eq("not run").any()
    share = alone[alone["claim"] == "classes"].groupby("model")["ours"].apply(lambda values: sum(map(float, values)))
    np.testing.assert_allclose(share, 1.0)
