"""Stopping on request: a signal ends a training after the current step, with a checkpoint."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """Context manager that notes SIGTERM and SIGINT instead of dying from them; a second one interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell reports it."""
        return 128 + (self.signal or signal.SIGTERM)
