"""A short form of the soak test (`make soak`): programs killed at random points, given again, give the same."""

from __future__ import annotations

import pytest
from soak_kinds import Workbench
from soak_trials import kill_round, undisturbed


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Workbench(tmp_path_factory.mktemp("soak") / "inputs")


@pytest.fixture(scope="module")
def kinds(bench):
    model = bench.folder / "undisturbed" / "training" / "out" / "model"
    return {kind.name: kind for kind in bench.kinds(model)}


# In this order: the first one trains the model that the second one scores.
@pytest.mark.parametrize(("name", "kills"), [("training", 2), ("evaluation", 1), ("download", 2)])
def test_killed_and_given_again_it_gives_the_same(bench, kinds, tmp_path, name, kills):
    reference = undisturbed(kinds[name], bench.folder / "undisturbed" / name, bench.environment)
    seed = f"short {name}"
    done = kill_round(reference, 1, kills, tmp_path, bench.environment, seed)
    assert done.failure is None, (done, (tmp_path / "said.txt").read_text()[-3000:])
