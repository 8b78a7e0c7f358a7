"""Batches on the training device; on a GPU the next one is read and copied while the card works on the present one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch


class Loader(Protocol):
    """What training needs of a data loader."""

    def batch(self, step: int) -> np.ndarray:
        """int64 [sequences, length + 1], depending on the step alone."""


class Batches:
    """This process's rows (``share``) of the batches of ``loader``, as tensors on ``device``.

    Reading ahead changes no batch, since a batch depends on its step alone. On a CPU nothing is read ahead: reading
    would compete with the step for the same cores.
    """

    def __init__(self, loader: Loader, share: slice, device: torch.device) -> None:
        self.loader = loader
        self.share = share
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: tuple[int, torch.Tensor] | None = None

    def take(self, step: int) -> torch.Tensor:
        """int64 [rows, length + 1]: the batch of ``step``, read ahead or read now."""
        ahead, self._ahead = self._ahead, None
        if self._stream is None or ahead is None or ahead[0] != step:
            return self._read(step).to(self.device)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        # The tensor was allocated on the copying stream; its memory must not be reused before this stream is done.
        ahead[1].record_stream(current)
        return ahead[1]

    def read_ahead(self, step: int) -> None:
        """Read the batch of ``step`` and start to copy it; returns without waiting for the device."""
        if self._stream is None:
            return
        host = self._read(step).pin_memory()
        with torch.cuda.stream(self._stream):
            self._ahead = step, host.to(self.device, non_blocking=True)

    def _read(self, step: int) -> torch.Tensor:
        return torch.from_numpy(self.loader.batch(step)[self.share])
