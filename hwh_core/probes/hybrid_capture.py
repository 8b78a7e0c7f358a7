"""The weights by which each head of our own models reads earlier tokens: attention and Gated DeltaNet in one pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ..heads import HeadGroup
from .capture import LayerCapture, stream_layers
from .delta_influence import delta_rule_weights
from .errors import UnsupportedModelError

OUTPUT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest accepted error of sum_s w_ts v_s against the recurrence's own output, relative to its largest value."""


@dataclass(frozen=True)
class GroupWeights:
    """Weights [B, H, Q, T] of the last Q queries of one head group, and how well they give its output back.

    Attention weights, or w_ts of :mod:`hwh_core.probes.delta_influence`. ``error`` is relative: of the logits for
    attention, of the output for Gated DeltaNet.
    """

    layer: int
    place: int
    group: HeadGroup
    weights: Tensor
    query_positions: Tensor
    error: float


def delta_net_groups(model: Any) -> list[tuple[int, int, Any]]:
    """(layer index, group index, module) of the Gated DeltaNet groups of one of our own models."""
    from ..modeling.delta_net import GatedDeltaNetGroup

    return [
        (index, place, module)
        for index, block in enumerate(model.model.layers)
        for place, module in enumerate(block.mixer.groups)
        if isinstance(module, GatedDeltaNetGroup)
    ]


@torch.no_grad()
def stream_weights(model: Any, input_ids: Tensor, num_queries: int, consume: Callable[[GroupWeights], None]) -> None:
    """One clean forward pass of input_ids [B, T]; ``consume`` gets every head group as it is computed, one at a time.

    Gated DeltaNet runs in its torch form meanwhile: the fused kernels round to bfloat16, which would hide whether the
    weights give the output back. Raises :class:`UnsupportedModelError` where they do not, and the errors of
    :func:`hwh_core.probes.capture.stream_layers`.
    """
    from ..modeling.delta_net import GatedDeltaNetGroup, l2_normalize

    if getattr(model.config, "model_type", None) != "hwh":
        raise UnsupportedModelError(
            f"model {type(model).__name__}: the weights of all kinds of heads are taken from models of this project "
            "(model_type hwh); for others use `hwh probe`"
        )
    groups = {id(module): (layer, place) for layer, place, module in delta_net_groups(model)}
    run = GatedDeltaNetGroup._delta_rule

    def watched(
        module: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Any
    ) -> tuple[Tensor, Tensor | None]:
        output, recurrent = run(module, q, k, v, g, beta, state)
        positions = torch.arange(q.shape[1], device=q.device)[-num_queries:]
        queries, keys = l2_normalize(q[:, positions]), l2_normalize(k)
        weights = delta_rule_weights(queries, keys, g, beta, positions, module.scaling)
        layer, place = groups[id(module)]
        error = _checked_output(weights, v, output[:, positions], f"layer {layer}, head group {place}")
        consume(GroupWeights(layer, place, module.group, weights, positions, error))
        return output, recurrent

    def attention(layer: LayerCapture) -> None:
        group = model.model.layers[layer.layer].mixer.groups[layer.group].group
        consume(
            GroupWeights(
                layer.layer, layer.group, group, layer.probabilities(), layer.query_positions, layer.max_logit_error
            )
        )

    with ExitStack() as stack:
        stack.enter_context(patch.object(GatedDeltaNetGroup, "_delta_rule", watched))
        for _, _, module in delta_net_groups(model):
            stack.enter_context(patch.object(module, "backend", "torch"))
        stream_layers(model, input_ids, num_queries, attention, "include")


def _checked_output(weights: Tensor, v: Tensor, output: Tensor, where: str) -> float:
    """Error of sum_s w_ts v_s against ``output`` [B, Q, H, d], relative to its largest value."""
    rebuilt = torch.einsum("bhqs,bshd->bqhd", weights, v.to(weights.dtype))
    scale = output.abs().max().clamp_min(torch.finfo(weights.dtype).tiny)
    error = float((rebuilt - output.to(weights.dtype)).abs().max() / scale)
    if not error < OUTPUT_TOLERANCE[weights.dtype]:
        raise UnsupportedModelError(
            f"model: the effective weights of {where} miss the head's own output by {error:.2g} of its largest value "
            f"(accepted: {OUTPUT_TOLERANCE[weights.dtype]:g}); nothing was measured, since this recurrence is another"
        )
    return error
