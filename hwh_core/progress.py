"""Progress of long steps: a bar on a terminal, otherwise a line every few seconds with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0


def progress(items: Iterable[Item], description: str, total: int | None = None, unit: str = "it") -> Iterator[Item]:
    """Yield ``items`` while showing how far they are: tqdm on a terminal, plain lines in a log.

    ``total`` is the number of items, by default ``len(items)``. With 0 ``items`` is left alone: a step that was killed
    between its last item and its end goes on, though processes for no work at all cannot be started.
    """
    if total is None:
        total = len(items)  # type: ignore[arg-type]
    if total == 0:
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=description, total=total, unit=unit)
        return
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done < total:
            left = (now - started) / done * (total - done)
            print(f"{description}: {done}/{total} {unit}, about {left:.0f} s left", file=sys.stderr, flush=True)
            last = now
