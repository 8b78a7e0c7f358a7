"""Work in several processes: none for none, and results with the numbers of their tasks."""

from __future__ import annotations

import pytest

from hwh_core.processes import in_processes


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("tasks", [[], [5], [1, 2, 3, 4]])
def test_every_task_is_done_once_whatever_their_number(workers, tasks):
    assert sorted(in_processes(double, tasks, workers)) == [(number, 2 * task) for number, task in enumerate(tasks)]
