"""Learning-rate schedule: linear warm-up, then cosine decay."""

from __future__ import annotations

import math


def learning_rate_factor(step: int, *, steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Factor on the peak learning rate at ``step`` (0-based): rises to 1 over the warm-up, ends at ``final_fraction``.

    Step ``warmup_steps - 1`` is the first at the peak, step ``steps - 1`` the last and exactly at ``final_fraction``.
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is outside 0 .. {steps - 1}")
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    decay_steps = steps - warmup_steps
    progress = (step - warmup_steps + 1) / decay_steps
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
