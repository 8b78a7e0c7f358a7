"""Weights of a loaded model: whether they are numbers, and what tells them from others."""

from __future__ import annotations

import hashlib
import json

import torch

from .errors import ProbeError

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_weights(model: torch.nn.Module) -> None:
    """Raise :class:`ProbeError` naming the first tensor that holds NaN or infinite values."""
    for name, tensor in model.named_parameters():
        if not bool(tensor.isfinite().all()):
            count = int((~tensor.isfinite()).sum())
            raise ProbeError(
                f"model: {count} of {tensor.numel()} weights in {name} are NaN or infinite; its training diverged or "
                "its file is damaged: take another checkpoint"
            )


def weights_fingerprint(model: torch.nn.Module) -> str:
    """What tells one model from another, wherever it was loaded from: its config, and a checksum of every tensor.

    Sums of raw bits are exact and the same on every device, and take no second copy of the weights.
    """
    lines = [json.dumps(model.config.to_diff_dict(), sort_keys=True, default=str)]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        total = tensor.detach().contiguous().view(BITS[tensor.element_size()]).sum(dtype=torch.int64).item()
        lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {total}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
