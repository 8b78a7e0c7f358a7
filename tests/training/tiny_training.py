"""Settings of a training of seconds, and a loader of random tokens; also for processes that tests start."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTH = 32


class RandomLoader:
    """Skewed random tokens, so that a loss can fall; the batch depends on the step alone."""

    def __init__(self, vocab_size: int = 64, sequences: int = 4, length: int = LENGTH) -> None:
        self.shape = (sequences, length + 1)
        self.vocab_size = vocab_size
        self.fingerprint = f"random-{vocab_size}-{sequences}-{length}"

    def batch(self, step: int) -> np.ndarray:
        drawn = np.random.default_rng((7, step)).integers(0, self.vocab_size, self.shape)
        return (drawn**2 // self.vocab_size).astype(np.int64)


def make_settings(**training: Any) -> dict[str, Any]:
    """Settings of a run of seconds; keywords replace entries of ``training``."""
    return {
        "model": {
            "architecture": "hwh_std",
            "shape": {
                "num_layers": 4,
                "hidden_size": 32,
                "intermediate_size": 48,
                "attention_head_dim": 4,
                "gdn_head_dim": 4,
                "gate": True,
            },
            "rope_theta": 10000.0,
            "qk_norm": True,
            "length": LENGTH,
            "seed": 0,
        },
        "training": {
            "steps": 6,
            "tokens_per_step": 128,
            "warmup_steps": 2,
            "optimizer": {"kind": "muon_adamw", "learning_rate": 0.004, "matrix_learning_rate": 0.02},
            "precision": "float32",
            "compile": "never",
            "checkpoint_every_steps": 2,
        }
        | training,
    }
