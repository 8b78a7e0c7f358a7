"""From the sizes of a preset to a model at initialisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..architectures import layers_of_shape
from ..heads import layers_to_dicts
from .configuration import HwHConfig
from .model import HwHForCausalLM


def model_config(
    shape: Mapping[str, Any], architecture: str, rope_theta: float, qk_norm: bool, length: int, vocab_size: int
) -> HwHConfig:
    """Configuration of a model; ``shape`` has the keys of ``hwh_core.config.ModelShape``.

    Raises :class:`~hwh_core.heads.ArchitectureError` for sizes that do not fit.
    """
    layers = layers_of_shape(shape, architecture, rope_theta=rope_theta, qk_norm=qk_norm)
    return HwHConfig(
        vocab_size=vocab_size,
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        layer_groups=layers_to_dicts(layers),
        max_position_embeddings=length,
        initializer_range=shape.get("initializer_range", 0.02),
        tie_word_embeddings=shape.get("tie_embeddings", False),
        architecture=architecture,
    )


def build_model(
    shape: Mapping[str, Any],
    architecture: str,
    rope_theta: float,
    qk_norm: bool,
    length: int,
    vocab_size: int,
    seed: int,
) -> HwHForCausalLM:
    """A model at initialisation on the CPU in float32; a pure function of its arguments.

    The state of torch's global random generator is left as it was.
    """
    config = model_config(shape, architecture, rope_theta, qk_norm, length, vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HwHForCausalLM(config)
