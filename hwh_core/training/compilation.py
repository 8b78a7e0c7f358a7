"""Whether torch.compile can be used and pays for one run, and what is compiled."""

from __future__ import annotations

import functools
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from ..heads import LayerSpec
from ..modeling import HwHForCausalLM
from ..modeling.block import Block, run_block
from ..modeling.delta_net import GatedDeltaNetGroup

# Tokens from which compiling pays. On one CPU core it costs 35 s for a small Transformer, whose steps then take a tenth
# less time, and over 100 s for a hybrid.
CPU_MINIMUM_TOKENS = {"attention": 6_000_000, "delta_net": 2_000_000}
CUDA_MINIMUM_TOKENS = 20_000_000


def cpp_compiler_is_usable() -> bool:
    """Whether a C++ compiler and Python.h exist, which torch.compile needs on a CPU."""
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return header.is_file() and any(shutil.which(compiler) for compiler in compilers)


def should_compile(
    mode: str, layers: Sequence[LayerSpec], total_tokens: int, device_type: str, delta_net_backend: str | None = None
) -> bool:
    """Decide for a run of ``total_tokens`` (of the whole run, so that a resumed run decides alike).

    ``mode`` is ``training.compile`` (auto or never). On CUDA, Gated DeltaNet is compiled around the kernels of
    ``delta_net_backend`` fla; its torch form stays eager there, since its loop over chunks takes minutes to compile.
    """
    if mode == "never":
        return False
    delta_net = any(group.is_recurrent for layer in layers for group in layer)
    if device_type == "cuda":
        return total_tokens >= CUDA_MINIMUM_TOKENS and (not delta_net or delta_net_backend == "fla")
    enough = total_tokens >= CPU_MINIMUM_TOKENS["delta_net" if delta_net else "attention"]
    return enough and cpp_compiler_is_usable()


def delta_net_backend(model: nn.Module, device: torch.device) -> str | None:
    """What computes the Gated DeltaNet groups of ``model`` on ``device``: fla or torch; None without such groups."""
    for module in model.modules():
        if isinstance(module, GatedDeltaNetGroup):
            return "fla" if module.uses_fla(device) else "torch"
    return None


class NextTokenLoss(nn.Module):
    """The model as a function from tokens to loss: what is compiled, and what is wrapped for data parallelism."""

    def __init__(self, model: HwHForCausalLM, run_block: Callable[..., torch.Tensor] = run_block) -> None:
        super().__init__()
        self.model = model
        self.run_block = run_block

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss in nats a token; inputs and targets int64 [B, T]."""
        return self.model.next_token_loss(inputs, targets, self.run_block)


def compiled_blocks(
    layers: Sequence[LayerSpec],
    backend: str = "inductor",
    function: Callable[..., torch.Tensor] = run_block,
) -> Callable[..., torch.Tensor]:
    """``function`` (run_block) compiled: once for every distinct structure among ``layers``, whatever their number.

    Layers share compiled code because a block's weights are inputs of it. Compiling one block a structure instead of
    the whole model keeps the start of a training short.
    """
    import torch._dynamo

    # Training and, without gradients, evaluation of every structure.
    needed = 2 * len(set(layers))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, needed)
    return torch.compile(function, dynamic=False, backend=backend)


def compile_in_place(blocks: Sequence[Block], layers: Sequence[LayerSpec], backend: str = "inductor") -> None:
    """Compile ``forward`` of each block, so that its hooks stay outside of what is compiled.

    Blocks of one structure share compiled code.
    """
    forward = compiled_blocks(layers, backend, Block.forward)
    for block in blocks:
        block.forward = functools.partial(forward, block)
