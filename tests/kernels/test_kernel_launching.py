"""Every launcher of Triton kernels launches on the device of its tensors, whatever the current device is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import pytest
import torch
import triton

from hwh_kernels import (
    columns_triton,
    cross_entropy_triton,
    launching,
    normalised_rotation_triton,
    rfis_rpd_triton,
    short_convolution_triton,
    swiglu_triton,
)

DEVICE = torch.device("cuda" if isinstance(columns_triton._copy, triton.runtime.JITFunction) else "cpu")


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def _rfis_rpd() -> None:
    positions = torch.arange(4, device=DEVICE)
    rfis_rpd_triton.rfis_rpd_triton(_ones(1, 4, 16), _ones(1, 4, 16), _ones(8), positions, positions, scaling=0.25)


LAUNCHES: dict[str, Callable[[], object]] = {
    "swiglu_triton.forward": lambda: swiglu_triton.forward(_ones(2, 8)),
    "swiglu_triton.backward": lambda: swiglu_triton.backward(_ones(2, 4), _ones(2, 8)),
    "columns_triton.join": lambda: columns_triton.join([_ones(2, 3), _ones(2, 4)]),
    "cross_entropy_triton.cross_entropy_rows_": lambda: cross_entropy_triton.cross_entropy_rows_(
        _ones(2, 8), torch.zeros(2, dtype=torch.int64, device=DEVICE), None
    ),
    "normalised_rotation_triton.forward": lambda: normalised_rotation_triton.forward(
        _ones(1, 2, 1, 16), _ones(16), _ones(1, 2, 16), _ones(1, 2, 16), 1e-6
    ),
    "normalised_rotation_triton.backward": lambda: normalised_rotation_triton.backward(
        _ones(1, 2, 1, 16), _ones(1, 2, 1, 16), _ones(16), _ones(1, 2, 16), _ones(1, 2, 16), 1e-6
    ),
    "short_convolution_triton.forward": lambda: short_convolution_triton.forward(_ones(1, 4, 8), _ones(8, 4)),
    "short_convolution_triton.backward": lambda: short_convolution_triton.backward(
        _ones(1, 4, 8), _ones(1, 4, 8), _ones(8, 4)
    ),
    "rfis_rpd_triton.rfis_rpd_triton": _rfis_rpd,
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_on_the_device_of_its_tensors(name, monkeypatch):
    seen = []

    def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
        seen.append(torch.device(device).type)
        return launching.on_device(device)

    module = sys.modules[f"hwh_kernels.{name.partition('.')[0]}"]
    monkeypatch.setattr(module, "on_device", on_device)
    LAUNCHES[name]()
    assert set(seen) == {DEVICE.type}
