"""A pre-norm block whose mixer is a tuple of head groups side by side.

What a block needs besides its weights comes in as arguments and nothing is kept between layers, so that a compiler
can share one compiled form among all layers made of the same head groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from hwh_kernels.swiglu import swiglu_down

from ..heads import LayerSpec
from . import joint_projection
from .attention import AttentionGroup
from .configuration import HwHConfig
from .delta_net import GatedDeltaNetGroup
from .norm import HwHRMSNorm
from .sliding_window import SlidingWindow

GroupState = Any  # AttentionState | DeltaNetState


class GroupInputs(NamedTuple):
    """What one head group gets besides the hidden states.

    ``padding`` bool [B, T], True at padding among the new tokens. ``cos_sin`` float32 [B or 1, T, head_dim] where the
    group rotates; ``mask`` as :func:`~.attention.attend` takes it. Each None where it is not needed.
    """

    padding: torch.Tensor | None = None
    cos_sin: tuple[torch.Tensor, torch.Tensor] | None = None
    mask: torch.Tensor | SlidingWindow | None = None


class Mixer(nn.Module):
    """Head groups side by side on the same input; their outputs concatenated into one output projection."""

    def __init__(self, config: HwHConfig, layer: LayerSpec) -> None:
        super().__init__()
        self.groups = nn.ModuleList(
            GatedDeltaNetGroup(config.hidden_size, group, config.rms_norm_eps, config.delta_net_backend)
            if group.is_recurrent
            else AttentionGroup(config.hidden_size, group, config.rms_norm_eps)
            for group in layer
        )
        self.o_proj = nn.Linear(config.mixer_width, config.hidden_size, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, inputs: Sequence[GroupInputs], states: Sequence[GroupState] | None
    ) -> torch.Tensor:
        projected = self._projected(hidden_states, inputs)
        outputs = []
        for index, module in enumerate(self.groups):
            state = None if states is None else states[index]
            given, parts = inputs[index], projected[index]
            if isinstance(module, GatedDeltaNetGroup):
                outputs.append(module(hidden_states, padding=given.padding, state=state, projected=parts))
                continue
            outputs.append(module(hidden_states, cos_sin=given.cos_sin, mask=given.mask, state=state, projected=parts))
        return self.o_proj(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1))

    def _projected(
        self, hidden_states: torch.Tensor, inputs: Sequence[GroupInputs]
    ) -> list[Sequence[torch.Tensor] | None]:
        """The input projections of every group from one product; None where each group had better compute its own.

        Gated DeltaNet zeroes padded hidden states before it projects them, so padding excludes a common product.
        """
        if inputs[0].padding is not None or not joint_projection.is_worthwhile(hidden_states):
            return [None] * len(self.groups)
        projections = [module.input_projections() for module in self.groups]
        parts = joint_projection.joint_linear(hidden_states, [one for group in projections for one in group])
        split: list[Sequence[torch.Tensor] | None] = []
        for group in projections:
            split.append(parts[: len(group)])
            parts = parts[len(group) :]
        return split


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))`` without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if joint_projection.is_worthwhile(x):
            gate_up = joint_projection.joint_product(x, (self.gate_proj, self.up_proj))
            return swiglu_down(gate_up, self.down_proj.weight.to(gate_up.dtype))
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm block: mixer and SwiGLU, each added to the residual stream."""

    def __init__(self, config: HwHConfig, layer: LayerSpec) -> None:
        super().__init__()
        self.input_layernorm = HwHRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer = Mixer(config, layer)
        self.post_attention_layernorm = HwHRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self, hidden_states: torch.Tensor, inputs: Sequence[GroupInputs], states: Sequence[GroupState] | None
    ) -> torch.Tensor:
        """Hidden states [B, T, hidden_size] to the same; one entry of ``inputs`` and ``states`` a head group.

        ``states`` (None without a cache) are updated in place.
        """
        hidden_states = hidden_states + self.mixer(self.input_layernorm(hidden_states), inputs, states)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def run_block(
    block: Block, hidden_states: torch.Tensor, inputs: Sequence[GroupInputs], states: Sequence[GroupState] | None
) -> torch.Tensor:
    """``block(...)``: a function that takes the block as an argument, for a training to put a compiled one in place."""
    return block(hidden_states, inputs, states)
