"""Work in several processes that end with the program that started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from .scripting import end_with_the_workflow


def _start_worker(parent: int) -> None:
    # Processes share the cores already; threads of the tokenizer would take them from one another.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # A worker whose program was killed would wait for its next task for ever.
    os.environ["HWH_WORKFLOW_PID"] = str(parent)
    end_with_the_workflow()


def in_processes(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """``(number, function(tasks[number]))`` of every task as it is finished; what fails ends all.

    ``function`` and tasks must be picklable. With one worker, or at most one task, everything runs here, in order.
    """
    if workers == 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            yield number, function(task)
        return
    # Not forked: the tokenizer's threads, once started here, would not be there in a copy.
    context = get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _start_worker, (os.getpid(),)) as pool:
        try:
            futures = {pool.submit(function, task): number for number, task in enumerate(tasks)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
