"""Whether Triton kernels can be launched, and on which device."""

from __future__ import annotations

import contextlib
import importlib.util

import torch

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None
"""Looked up once, on import: torch.compile traces a constant, but not a search for packages."""


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' (a model spread over several cards)."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
