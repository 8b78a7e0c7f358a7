"""Gated DeltaNet head group (arXiv 2412.06464), parameter names as in flash-linear-attention's layer.

DeltaNet (arXiv 2406.06484) is the same without decay: no ``a_proj``, ``A_log`` and ``dt_bias``, and a log decay of 0.

Two backends: the torch form of ``hwh_kernels.gated_delta_rule`` anywhere, and flash-linear-attention's Triton kernels
on CUDA when that optional package is installed (it is imported on first use there and nowhere else).

The convolutions with SiLU behind the q, k and v projections come from ``hwh_kernels.short_convolution``.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from hwh_kernels import gated_delta_rule_fla as fla
from hwh_kernels.gated_delta_rule import chunk_gated_delta_rule, recurrent_gated_delta_rule
from hwh_kernels.short_convolution import short_convolution, short_convolution_torch

from ..heads import HeadGroup
from .cache import DeltaNetState
from .norm import HwHRMSNorm

BACKENDS = ("auto", "torch", "fla")
# With a cache, up to this many new tokens are taken one by one: cheaper than a padded chunk.
RECURRENT_MAX_TOKENS = 4


# Looked up once, when this module is imported: torch.compile traces a constant, but not a search for packages.
_FLA_IS_INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def fla_is_installed() -> bool:
    """Whether flash-linear-attention and Triton can be imported (looked up, not imported)."""
    return _FLA_IS_INSTALLED


def l2_normalize(x: torch.Tensor) -> torch.Tensor:
    """``x / sqrt(sum x^2 + 1e-6)`` over the last dimension, in float32 at least."""
    x = x if x.dtype == torch.float64 else x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class CausalConvolution(nn.Module):
    """Depthwise causal convolution without bias, then SiLU: [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 1, size))

    def forward(
        self, x: torch.Tensor, previous: torch.Tensor | None = None, keep_last: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``previous`` [B, size - 1, width]: the inputs before x, zeros if None.

        Returns the output and, with ``keep_last``, the last size - 1 inputs.
        """
        taps, before = self.weight[:, 0], self.weight.shape[-1] - 1
        if previous is None:
            last = F.pad(x, (0, 0, max(0, before - x.shape[1]), 0))[:, -before:] if keep_last and before else None
            return short_convolution(x, taps), x[:, :0] if keep_last and not before else last
        padded = torch.cat((previous.to(x.dtype), x), dim=1)
        return short_convolution_torch(padded, taps), padded[:, x.shape[1] :]


class GatedDeltaNetGroup(nn.Module):
    """One Gated DeltaNet or DeltaNet head group: hidden states [B, T, hidden_size] -> [B, T, group.width].

    The mixer projects.
    """

    def __init__(self, hidden_size: int, group: HeadGroup, eps: float, backend: str = "auto") -> None:
        super().__init__()
        if backend not in BACKENDS:
            raise ValueError(f"Gated DeltaNet backend {backend!r} is unknown; expected one of {', '.join(BACKENDS)}")
        self.group = group
        self.backend = backend
        self.head_dim = group.head_dim
        self.num_heads = group.heads
        self.scaling = group.head_dim**-0.5
        width, conv_size = group.width, group.conv_size or 1
        self.q_proj = nn.Linear(hidden_size, width, bias=False)
        self.k_proj = nn.Linear(hidden_size, width, bias=False)
        self.v_proj = nn.Linear(hidden_size, width, bias=False)
        self.a_proj = nn.Linear(hidden_size, group.heads, bias=False) if group.decays else None
        self.b_proj = nn.Linear(hidden_size, group.heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(group.heads)) if group.decays else None
        self.dt_bias = nn.Parameter(torch.empty(group.heads)) if group.decays else None
        self.q_conv1d = CausalConvolution(width, conv_size)
        self.k_conv1d = CausalConvolution(width, conv_size)
        self.v_conv1d = CausalConvolution(width, conv_size)
        self.g_proj = nn.Linear(hidden_size, width, bias=False) if group.gate else None
        self.o_norm = HwHRMSNorm(group.head_dim, eps)

    @staticmethod
    def initial_decay(heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random (A_log, dt_bias), as in Mamba-2: A uniform in [0, 16], time step log-uniform in [0.001, 0.1]."""
        rate = torch.empty(heads).uniform_(0, 16).clamp_min(1e-6)
        step = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp_min(1e-4)
        return rate.log(), step + torch.log(-torch.expm1(-step))

    def uses_fla(self, device: torch.device) -> bool:
        """Whether the forward pass on ``device`` runs flash-linear-attention's kernels."""
        if self.backend == "fla":
            if device.type != "cuda":
                raise ValueError(f"Gated DeltaNet backend 'fla' needs a CUDA device, not {device.type}; use 'torch'")
            return True
        return self.backend == "auto" and device.type == "cuda" and fla_is_installed()

    def input_projections(self) -> tuple[nn.Linear, ...]:
        """The bias-free projections of the hidden states: q, k, v, a if it decays, b (write strength), g if gated."""
        projections = (self.q_proj, self.k_proj, self.v_proj, self.a_proj, self.b_proj, self.g_proj)
        return tuple(projection for projection in projections if projection is not None)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        padding: torch.Tensor | None,
        state: DeltaNetState | None,
        projected: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """``padding`` [B, T] is True at padding: there the input is zeroed, and neither decay nor update happens.

        ``projected``: what :meth:`input_projections` give for ``hidden_states``, in their order, [B, T, out_features]
        each, when the caller has computed them already (views of one product are fine); None computes them here.
        Refused together with ``padding``, which has to be zeroed before the projections.
        """
        batch, length, _ = hidden_states.shape
        if padding is not None:
            if projected is not None:
                raise ValueError("Gated DeltaNet: projected together with padding; it is zeroed before the projections")
            hidden_states = hidden_states.masked_fill(padding[..., None], 0)
        if projected is None:
            projected = [projection(hidden_states) for projection in self.input_projections()]
        previous = state.convolution if state is not None else [None, None, None]
        keep = state is not None
        q, q_last = self.q_conv1d(projected[0], previous[0], keep)
        k, k_last = self.k_conv1d(projected[1], previous[1], keep)
        v, v_last = self.v_conv1d(projected[2], previous[2], keep)
        q, k, v = (x.view(batch, length, self.num_heads, self.head_dim) for x in (q, k, v))
        # Decay and write strength in float32 whatever the autocast dtype: small errors compound over the sequence.
        beta = projected[4 if self.group.decays else 3].float().sigmoid()
        if self.A_log is not None and self.dt_bias is not None:
            step = F.softplus(projected[3].float() + self.dt_bias.float())
            g = -self.A_log.float().exp() * step
        else:
            g = torch.zeros_like(beta)
        if padding is not None:
            g, beta = g.masked_fill(padding[..., None], 0), beta.masked_fill(padding[..., None], 0)
        output, recurrent = self._delta_rule(q, k, v, g, beta, state)
        if state is not None:
            state.recurrent = recurrent
            state.convolution = [x.clone() for x in (q_last, k_last, v_last)]
        output = self.o_norm(output).reshape(batch, length, self.group.width)
        if self.g_proj is not None:
            output = output * F.silu(projected[-1])
        return output

    def _delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: DeltaNetState | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.uses_fla(q.device):
            # Under autocast the kernels run in its dtype, also where the convolution's output is float32.
            if torch.is_autocast_enabled(q.device.type):
                q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
            if state is None:
                return fla.gated_delta_rule(q, k, v, g, beta, self.scaling), None
            recurrent = q.shape[1] <= RECURRENT_MAX_TOKENS and not torch.is_grad_enabled()
            return fla.gated_delta_rule_with_state(q, k, v, g, beta, self.scaling, state.recurrent, recurrent)
        q, k = l2_normalize(q), l2_normalize(k)
        if state is None:
            return chunk_gated_delta_rule(q, k, v, g, beta, self.scaling)
        rule = recurrent_gated_delta_rule if q.shape[1] <= RECURRENT_MAX_TOKENS else chunk_gated_delta_rule
        return rule(q, k, v, g, beta, self.scaling, initial_state=state.recurrent, output_final_state=True)
