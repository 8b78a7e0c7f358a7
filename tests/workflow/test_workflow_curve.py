"""The band against tokens seen, from training to figure, with a tiny preset of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml

pytestmark = pytest.mark.workflow

STEPS = [0, 1, 4, 6]
MODEL, OTHER = "theta1e4_L64_s0", "theta1e4_L64_noqknorm_s0"


def test_a_curve_from_training_to_figure(checkout):
    path = checkout.code / "config" / "curve.yaml"
    preset = yaml.safe_load((checkout.code / "config" / "smoke.yaml").read_text())
    assert preset["controlled"]["training"]["steps"] == STEPS[-1]
    preset["preset"] = "curve"
    preset["controlled"]["curve"] = {"models": [MODEL], "steps": STEPS}
    # Weights and snapshots go in the same run in which they are measured.
    preset["keep_weights"] = False
    preset["targets"] = {"figures": ["band_curve"], "tables": []}
    path.write_text(yaml.safe_dump(preset))
    wanted = ("fig_band_curve", f"results/curve/controlled/{MODEL}/probe_x1.npz")

    plan = checkout.run("-n", preset="curve")
    assert plan.returncode == 0, plan.stderr[-3000:]
    lines = [line.split() for line in (plan.stdout + plan.stderr).splitlines()]
    counts = {line[0]: line[1] for line in lines if len(line) == 2}
    assert counts["train_controlled"] == counts["train_controlled_with_snapshots"] == "1"
    assert counts["probe_curve"] == counts["extract_curve"] == "1"

    result = checkout.run(*wanted, preset="curve")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    root = checkout.folder / "results" / "curve"
    for kind in ("pdf", "png", "csv"):
        assert (root / f"figures/fig_band_curve.{kind}").stat().st_size > 0
    folder = root / "controlled" / MODEL
    assert not (folder / "snapshots").exists(), "snapshots go once they have been probed"
    assert list((folder / "checkpoints").glob("s*")) == []
    assert list(folder.rglob("*.safetensors")) == []
    assert f"controlled/{MODEL}/curve.csv" in "".join((root / f"chains/controlled/{MODEL}.json").read_text().split())
    assert not (root / "controlled" / OTHER).exists()

    rows = pd.read_csv(folder / "curve.csv")
    assert rows["step"].tolist() == STEPS
    assert rows["tokens"].tolist() == [256 * step for step in STEPS]
    assert rows["verdict"][0] == "none", "the model at initialisation does not pass itself"
    assert rows["loss_nats_per_token"].is_monotonic_decreasing
    with np.load(folder / "curve" / f"probe_step{STEPS[-1]}.npz") as last, np.load(folder / "probe_x1.npz") as trained:
        assert set(last.files) == set(trained.files)
        for name in last.files:
            np.testing.assert_array_equal(last[name], trained[name])

    again = checkout.run(*wanted, "-n", preset="curve")
    assert "Nothing to be done" in again.stdout + again.stderr, (again.stdout + again.stderr)[-3000:]
