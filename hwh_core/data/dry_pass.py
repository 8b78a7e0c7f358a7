"""A dry pass over the batches of a training: no text is read, but every window is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .loader import BatchLoader


@dataclass(frozen=True)
class Pass:
    """What the steps of a training use: whole ``epochs`` and the share of the last one, ``steps`` of ``tokens``.

    ``repeated``: windows that came twice within an epoch, which must be 0; ``left``: windows of the last epoch that
    never came.
    """

    steps: int
    tokens: int
    windows: int
    epochs: float
    repeated: int
    left: int


def dry_pass(
    loader: BatchLoader,
    steps: int,
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda steps: steps,
) -> Pass:
    """Walk through the batches of ``steps`` steps, with one byte of memory a window.

    Windows of an epoch are disjoint in their targets, so that no window twice means no token twice.
    """
    seen = np.zeros(loader.num_windows, dtype=bool)
    repeated, epoch = 0, 0
    for step in progress(range(steps)):
        windows = loader.windows(step)
        first = step * loader.batch_size
        epochs = (first + np.arange(loader.batch_size)) // loader.num_windows
        for number in np.unique(epochs):
            if number != epoch:
                seen[:] = False
                epoch = int(number)
            chosen, counts = np.unique(windows[epochs == number], return_counts=True)
            repeated += int(seen[chosen].sum() + (counts - 1).sum())
            seen[chosen] = True
    return Pass(
        steps=steps,
        tokens=steps * loader.batch_size * loader.length,
        windows=loader.num_windows,
        epochs=steps * loader.batch_size / loader.num_windows,
        repeated=repeated,
        left=int((~seen).sum()),
    )
