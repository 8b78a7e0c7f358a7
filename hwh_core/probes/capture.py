"""q and k of every attention layer before rotation, with the model's own frequencies, checked against its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hwh_kernels.rfis_rpd_reference import (
    Pairing,
    angles,
    contributions,
    num_groups,
    rotate_pairs,
    split_pairs,
    visible_keys,
)

from .errors import LogitMismatchError, ProbeError, UnsupportedModelError
from .observers import Attention, Rotation, adapter_for, visible_rows

LOGIT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest accepted error of rebuilt logits relative to the largest logit, by the model's type."""

TABLE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 1e-2, torch.float16: 4e-3}
"""Largest accepted difference of the model's cos and sin from those of a frequency table (angles up to 1e4)."""

SUMMED_ROWS = 4


@dataclass(frozen=True)
class LayerCapture:
    """One attention head group of one layer, for one sample or for a batch of samples (leading dimension B).

    ``q`` [(B,) H, Q, d] and ``k`` [(B,) G, T, d] in float32 (float64 of a float64 model), after QK-norm and before
    rotation, rotated dimensions first; ``inv_freq`` [F] as the loaded model holds it; ``cos`` and ``sin`` [T, F] as the
    model used them; integer positions [Q] and [T]; ``max_logit_error`` the largest error of the rebuilt logits relative
    to the largest logit. Groups without position encoding have ``rotates`` False and frequencies 0.
    """

    layer: int
    group: int
    q: Tensor
    k: Tensor
    inv_freq: Tensor
    cos: Tensor
    sin: Tensor
    query_positions: Tensor
    key_positions: Tensor
    scaling: float
    attention_scaling: float
    pairing: Pairing
    window: int | None
    softcap: float | None
    max_logit_error: float
    rotates: bool

    @property
    def num_frequency_groups(self) -> int:
        """F, or F + 1 where some dimensions are not rotated."""
        return num_groups(self.q.shape[-1], self.inv_freq.numel())

    def sample(self, index: int) -> LayerCapture:
        """One sample of a batch."""
        return replace(self, q=self.q[index], k=self.k[index])

    def logits(self) -> Tensor:
        """Rebuilt logits before any soft cap, summed over frequencies: [(B,) H, Q, T]."""
        return rebuilt_logits(
            self.q, self.k, self.inv_freq, self.query_positions, self.key_positions, self.scaling,
            self.attention_scaling, self.pairing,
        )  # fmt: skip

    def summed_contributions(self, rows: int) -> Tensor:
        """Sum over frequency groups of the single contributions c to the logits of the last queries: [H, rows, T]."""
        return contributions(
            self.q[:, -rows:], self.k, self.inv_freq, self.query_positions[-rows:], self.key_positions,
            scaling=self.scaling, attention_scaling=self.attention_scaling, pairing=self.pairing,
        ).sum(dim=1)  # fmt: skip

    def probabilities(self) -> Tensor:
        """Attention of the captured queries: [(B,) H, Q, T], rows adding up to 1."""
        logits = self.logits()
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        visible = visible_keys(self.query_positions, self.key_positions, self.window)
        return torch.softmax(logits.masked_fill(~visible, float("-inf")), dim=-1)


def rebuilt_logits(
    q: Tensor,
    k: Tensor,
    inv_freq: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    scaling: float,
    attention_scaling: float,
    pairing: Pairing,
) -> Tensor:
    """Sum over frequency groups of the contributions c (equation 5), in the type of ``q``: [..., H, Q, T]."""
    frequencies = inv_freq.numel()
    q_rotated = torch.cat(
        rotate_pairs(*split_pairs(q, frequencies, pairing), angles(query_positions, inv_freq, q.dtype)), dim=-1
    )
    k_rotated = torch.cat(
        rotate_pairs(*split_pairs(k, frequencies, pairing), angles(key_positions, inv_freq, q.dtype)), dim=-1
    )
    repeat = q.shape[-3] // k.shape[-3]
    k_rotated = k_rotated.repeat_interleave(repeat, dim=-3)
    logits = scaling * attention_scaling**2 * (q_rotated @ k_rotated.transpose(-1, -2))
    if q.shape[-1] > 2 * frequencies:
        rest = k[..., 2 * frequencies :].repeat_interleave(repeat, dim=-3)
        logits = logits + scaling * (q[..., 2 * frequencies :] @ rest.transpose(-1, -2))
    return logits


class _Collector:
    """Observer that pairs rotation and attention, checks the logits and hands every layer on at once."""

    def __init__(
        self,
        read_tables: Callable[[], list[tuple[Tensor, float | None]]],
        num_queries: int,
        nope: Literal["skip", "include"],
        consume: Callable[[LayerCapture], None],
    ) -> None:
        self.read_tables = read_tables
        self.tables: list[tuple[Tensor, float | None]] | None = None
        self.num_queries = num_queries
        self.nope = nope
        self.consume = consume
        self.pending: Rotation | None = None
        self.rotations = 0

    def rotated(self, event: Rotation) -> None:
        if self.pending is not None:
            raise UnsupportedModelError("model: it rotates q and k twice before one attention; the probe expects once")
        # Only the last queries are kept; the copy frees the rest once the model lets go of it.
        event.q = event.q[:, :, -self.num_queries :].clone()
        self.pending = event
        self.rotations += 1

    def attended(self, event: Attention) -> None:
        rotation, self.pending = self.pending, None
        if rotation is None and self.nope == "skip":
            return
        positions = torch.arange(event.k.shape[2], device=event.k.device)
        queries = positions[-self.num_queries :]
        seen_q = event.q[:, :, -self.num_queries :]
        dtype = torch.float64 if event.q.dtype == torch.float64 else torch.float32
        if rotation is None:
            half = event.q.shape[-1] // 2
            inv_freq = torch.zeros(half, device=event.q.device)
            cos, sin = torch.ones(positions.numel(), half), torch.zeros(positions.numel(), half)
            q, k, attention_scaling, pairing = seen_q, event.k, 1.0, "half"
        else:
            q, k = _with_unrotated(rotation, seen_q, event)
            pairing = _pairing(rotation, seen_q, q, event)
            inv_freq, attention_scaling, cos, sin = self._frequencies(rotation, positions, event.layer)
        layer = LayerCapture(
            layer=event.layer, group=event.group, q=q.to(dtype), k=k.to(dtype), inv_freq=inv_freq, cos=cos, sin=sin,
            query_positions=queries, key_positions=positions, scaling=event.scaling,
            attention_scaling=attention_scaling, pairing=pairing, window=event.window, softcap=event.softcap,
            max_logit_error=0.0, rotates=rotation is not None,
        )  # fmt: skip
        self.consume(replace(layer, max_logit_error=_checked_error(layer, seen_q, event)))

    def _frequencies(self, rotation: Rotation, positions: Tensor, layer: int) -> tuple[Tensor, float, Tensor, Tensor]:
        """The model's own table whose cosines and sines the layer used, with the factor on them."""
        if self.tables is None:
            # Not before the forward pass, which chooses among the tables of a model with longrope.
            self.tables = self.read_tables()
        cos, sin = rotation.cos[0].double(), rotation.sin[0].double()
        if rotation.cos.shape[0] > 1 and not bool((rotation.cos == rotation.cos[:1]).all()):
            raise UnsupportedModelError(f"model: positions differ between the samples of a batch in layer {layer}")
        columns = _table_columns(rotation.cos)
        cos, sin = cos[:, columns], sin[:, columns]
        factor = float((cos.square() + sin.square()).mean().sqrt())
        tolerance = TABLE_TOLERANCE[rotation.cos.dtype]
        best = float("inf")
        for inv_freq, known in self.tables:
            if inv_freq.numel() != cos.shape[-1]:
                continue
            angle = angles(positions, inv_freq.to(positions.device), torch.float32).double()
            scale = known if known is not None and abs(known - factor) < tolerance else factor
            scale = 1.0 if abs(scale - 1.0) < 1e-6 else float(scale)
            error = max(float((angle.cos() * scale - cos).abs().max()), float((angle.sin() * scale - sin).abs().max()))
            if error < tolerance:
                return inv_freq, scale, cos, sin
            best = min(best, error)
        raise UnsupportedModelError(
            f"model: no frequency table (inv_freq) of the loaded model gives the cos and sin of layer {layer} at "
            f"positions 0, 1, ... (nearest: off by {best:.2g}); multi-dimensional positions are not supported"
        )


def _with_unrotated(rotation: Rotation, seen_q: Tensor, event: Attention) -> tuple[Tensor, Tensor]:
    """q and k with all dimensions that attention saw: those beside the rotated ones are put behind them."""
    extra = event.q.shape[-1] - rotation.q.shape[-1]
    q, k = rotation.q, rotation.k
    if extra < 0 or q.shape[1] != event.q.shape[1] or k.shape[2] != event.k.shape[2] or event.k.shape[1] % k.shape[1]:
        raise UnsupportedModelError(
            f"model: layer {event.layer} rotates q {tuple(q.shape)} and k {tuple(k.shape)} but attends with "
            f"{tuple(event.q.shape)} and {tuple(event.k.shape)}"
        )
    k = k.repeat_interleave(event.k.shape[1] // k.shape[1], dim=1)
    if extra == 0:
        return q, k
    rotated_q = q.shape[-1]
    # Models put the rest behind the rotated slice, or before it (multi-head latent attention).
    rest = slice(rotated_q, None) if _rotates_first(rotation, seen_q, rotated_q) else slice(0, extra)
    return torch.cat([q, seen_q[..., rest]], dim=-1), torch.cat([k, event.k[..., rest]], dim=-1)


def _rotates_first(rotation: Rotation, seen_q: Tensor, size: int) -> bool:
    """Whether the first ``size`` dimensions that attention saw are the rotated ones: rotation keeps their length."""
    length = rotation.q.float().norm(dim=-1)
    first = (seen_q[..., :size].float().norm(dim=-1) - length).abs().max()
    last = (seen_q[..., -size:].float().norm(dim=-1) - length).abs().max()
    return bool(first <= last)


def _table_columns(cos: Tensor) -> slice:
    """One column a frequency out of cos or sin [B, T, 2F], which hold (0..F-1, 0..F-1) or (0, 0, 1, 1, ...)."""
    half = cos.shape[-1] // 2
    return slice(0, half) if torch.equal(cos[..., :half], cos[..., half:]) else slice(0, None, 2)


def _pairing(rotation: Rotation, seen_q: Tensor, q: Tensor, event: Attention) -> Pairing:
    """Which dimensions the model rotates together, found by rotating both ways."""
    frequencies = rotation.cos.shape[-1] // 2
    size = rotation.q.shape[-1]
    if 2 * frequencies > size:
        raise UnsupportedModelError(f"model: layer {event.layer} has {frequencies} frequencies for {size} dimensions")
    length = rotation.cos.shape[1]
    rows = slice(length - rotation.q.shape[2], length)
    errors = {}
    for pairing in ("half", "interleaved"):
        columns = _table_columns(rotation.cos)
        cos, sin = rotation.cos[:1, None, rows, columns].float(), rotation.sin[:1, None, rows, columns].float()
        first, second = split_pairs(rotation.q.float(), frequencies, pairing)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        for order, place in (("first", slice(0, 2 * frequencies)), ("last", slice(-2 * frequencies, None))):
            seen = split_pairs(seen_q[..., place].float(), frequencies, pairing)
            error = max(float((a - b).abs().max()) for a, b in zip(rotated, seen, strict=True))
            errors[pairing, order] = error
    pairing = min(errors, key=errors.__getitem__)[0]
    return pairing


def _checked_error(layer: LayerCapture, seen_q: Tensor, event: Attention) -> float:
    """Compare rebuilt logits and visible keys with what attention received; the error relative to the largest logit."""
    where = f"layer {event.layer}" + (f", head group {event.group}" if event.group else "")
    rows = slice(event.k.shape[2] - seen_q.shape[2], event.k.shape[2])
    visible = visible_keys(layer.query_positions, layer.key_positions, layer.window)
    if not bool((visible_rows(event, rows) == visible).all()):
        raise LogitMismatchError(
            f"model: the keys that {where} sees are not those of causal attention with window {layer.window}; "
            "give unpadded sequences, and look whether the model masks in another way"
        )
    errors = []
    for index in range(seen_q.shape[0]):
        k = event.k[index].to(layer.k.dtype).repeat_interleave(seen_q.shape[1] // event.k.shape[1], dim=0)
        own = event.scaling * (seen_q[index].to(k.dtype) @ k.transpose(-1, -2))
        sample = layer.sample(index)
        error = (sample.logits() - own).masked_fill_(~visible, 0.0).abs_().max()
        # The sum over single contributions, which RFIS and RPD take apart, is compared on a few rows.
        summed = sample.summed_contributions(SUMMED_ROWS) - own[:, -SUMMED_ROWS:]
        error = torch.maximum(error, summed.masked_fill_(~visible[-SUMMED_ROWS:], 0.0).abs_().max())
        scale = own.masked_fill_(~visible, 0.0).abs_().max().clamp_min(torch.finfo(own.dtype).tiny)
        errors.append(error / scale)
    # Of tensors, so that an error that is no number stays one.
    worst = float(torch.stack(errors).max())
    tolerance = LOGIT_TOLERANCE[event.q.dtype]
    if not worst < tolerance:
        raise LogitMismatchError(
            f"model: frequency contributions of {where} miss the model's own logits by {worst:.2g} of the "
            f"largest logit (accepted: {tolerance:g}); nothing was measured, since this attention is no such sum"
        )
    return worst


@torch.no_grad()
def stream_layers(
    model: torch.nn.Module,
    input_ids: Tensor,
    num_queries: int,
    consume: Callable[[LayerCapture], None],
    nope: Literal["skip", "include"] = "skip",
) -> None:
    """One clean forward pass of input_ids [B, T]; ``consume`` gets each attention group (batched) as it is computed.

    Only the last ``num_queries`` query rows of one layer are held at a time. Groups without position encoding are
    skipped, or handed on with frequencies 0. Raises :class:`UnsupportedModelError`, :class:`LogitMismatchError`.
    """
    if input_ids.ndim != 2:
        raise ProbeError(f"input_ids of shape {tuple(input_ids.shape)}: expected [samples, tokens]")
    if not 1 <= num_queries <= input_ids.shape[1]:
        raise ProbeError(
            f"num_queries: {num_queries} is not between 1 and the length {input_ids.shape[1]} of a sample; "
            "measure fewer queries or take longer samples"
        )
    adapter = adapter_for(model)
    collector = _Collector(lambda: adapter.frequency_tables(model), num_queries, nope, consume)
    training = model.training
    model.eval()
    try:
        adapter.forward(model, input_ids.to(next(model.parameters()).device), collector)
    finally:
        model.train(training)
    if adapter.frequency_tables(model) and not collector.rotations:
        raise UnsupportedModelError(
            f"model {type(model).__name__}: it holds RoPE frequencies but never called the apply_rotary_pos_emb of its "
            "module, so it rotates in another way, which the probe does not know"
        )


def capture(
    model: torch.nn.Module, input_ids: Tensor, num_queries: int, nope: Literal["skip", "include"] = "skip"
) -> list[LayerCapture]:
    """All attention groups of one sample, input_ids [T] or [1, T], with q [H, Q, d] and k [G, T, d].

    Holds the keys of all layers at once; :func:`stream_layers` holds one layer. Errors as there.
    """
    input_ids = input_ids[None] if input_ids.ndim == 1 else input_ids
    if input_ids.shape[0] != 1:
        raise ProbeError(f"input_ids: capture takes one sample, got {input_ids.shape[0]}; use stream_layers")
    layers: list[LayerCapture] = []
    stream_layers(model, input_ids, num_queries, lambda layer: layers.append(layer.sample(0)), nope)
    return layers
