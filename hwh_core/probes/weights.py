"""Weights of a loaded model: whether they are there and numbers, and what tells them from others."""

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


def check_loaded(model: torch.nn.Module, needs_head: bool) -> None:
    """Raise :class:`ProbeError` naming weights that the files of a model just loaded did not hold: they are random.

    Those of the output (``lm_head``) may be missing unless ``needs_head``: attention does not depend on them.
    """
    output = None if needs_head else model.get_output_embeddings()
    unread = set() if output is None else {id(parameter) for parameter in output.parameters()}
    # transformers marks what it has read, so as not to initialise it.
    missing = [
        name
        for name, parameter in model.named_parameters()
        if id(parameter) not in unread and not getattr(parameter, "_is_hf_initialized", False)
    ]
    if missing:
        raise ProbeError(
            f"model: its files hold no weights for {missing[0]}"
            + f" and {len(missing) - 1} more" * (len(missing) > 1)
            + "; config.json is of another model, or a file is missing: take all from one source"
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
