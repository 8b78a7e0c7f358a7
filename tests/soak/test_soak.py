"""A short form of the soak test (`make soak`): programs killed at random points, given again, give the same."""

from __future__ import annotations

import pytest
from soak_kinds import Workbench
from soak_trials import kill_round, undisturbed


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Workbench(tmp_path_factory.mktemp("soak") / "inputs")


@pytest.mark.parametrize(("name", "kills"), [("training", 3), ("download", 2), ("tokenization", 2)])
def test_killed_and_given_again_it_gives_the_same(bench, tmp_path, name, kills):
    kind = next(kind for kind in bench.kinds(model=tmp_path) if kind.name == name)
    reference = undisturbed(kind, bench.folder / "undisturbed" / name, bench.environment)
    done = kill_round(reference, 1, kills, tmp_path, bench.environment, f"short {name}")
    assert done.failure is None, (done, (tmp_path / "said.txt").read_text()[-3000:])
