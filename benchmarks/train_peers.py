"""Peers of benchmarks.train: other libraries' models of matched size, trained on the same batches.

Both run under bfloat16 autocast over float32 weights with fused AdamW and gradient clipping, as ours do; the fastest
of a peer's ways to run counts.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.train_case import RandomLoader, time_steps
from benchmarks.train_plan import Case
from hwh_core.architectures import layers_of_shape, parameter_count

PARAMETER_TOLERANCE = 0.01
OURS = {"fla": "gdn", "hf": "transformer"}


def our_parameters(case: Case) -> int:
    """Parameters of our model that the peer is matched to."""
    return parameter_count(
        layers_of_shape(case.shape, OURS[case.kind]),
        hidden_size=case.shape["hidden_size"],
        intermediate_size=case.shape["intermediate_size"],
        vocab_size=case.vocab_size,
        tie_embeddings=False,
    )


def matched_intermediate_size(case: Case, parameters_at: Callable[[int], int]) -> int:
    """Width of the peer's SwiGLU, a multiple of 64 (2 at small sizes), that brings it closest to our parameters.

    ``parameters_at(width)`` counts the peer's parameters. Raises ValueError if they stay more than 1% apart.
    """
    wanted, multiple = our_parameters(case), 64 if case.shape["hidden_size"] >= 512 else 2
    start = case.shape["intermediate_size"]
    per_column = 3 * case.shape["hidden_size"] * case.shape["num_layers"]
    width = multiple * round((start + (wanted - parameters_at(start)) / per_column) / multiple)
    found = parameters_at(width)
    if abs(found / wanted - 1) > PARAMETER_TOLERANCE:
        raise ValueError(f"{case.name}: the peer has {found} parameters at width {width}, ours {wanted}: over 1% apart")
    return width


def _count(build: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def hf_model(case: Case, width: int) -> nn.Module:
    """transformers' Llama with sdpa attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = case.shape
    heads = shape["hidden_size"] // shape["attention_head_dim"]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=case.vocab_size,
            hidden_size=shape["hidden_size"],
            intermediate_size=width,
            num_hidden_layers=shape["num_layers"],
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=case.length,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    )


def fla_model(case: Case, width: int, **losses: bool) -> nn.Module:
    """flash-linear-attention's Gated DeltaNet with its own fused norms, SwiGLU and loss."""
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

    shape = case.shape
    return GatedDeltaNetForCausalLM(
        GatedDeltaNetConfig(
            vocab_size=case.vocab_size,
            hidden_size=shape["hidden_size"],
            intermediate_size=width,
            num_hidden_layers=shape["num_layers"],
            head_dim=shape["gdn_head_dim"],
            num_heads=shape["hidden_size"] // shape["gdn_head_dim"],
            expand_v=1.0,
            conv_size=shape["conv_size"],
            max_position_embeddings=case.length,
            tie_word_embeddings=False,
            use_cache=False,
            **losses,
        )
    )


def _variants(case: Case, device: torch.device) -> dict[str, tuple[Callable[[], nn.Module], bool]]:
    """Ways to run the peer: name -> (model, whether it is compiled)."""
    if case.kind == "hf":
        width = matched_intermediate_size(case, lambda width: _count(lambda: hf_model(case, width)))
        compiled = device.type == "cuda"
        return {"torch.compile" if compiled else "eager": (lambda: hf_model(case, width), compiled)}
    from hwh_kernels.fla_configs import prepare_fla
    from hwh_kernels.gated_delta_rule_check import check_gated_delta_rule

    prepare_fla(device)
    heads = case.shape["hidden_size"] // case.shape["gdn_head_dim"]
    # Like our own training, the peer may run kernels that its library holds back on some cards, once they are checked.
    check_gated_delta_rule(device, [(heads, case.shape["gdn_head_dim"])], batch=case.rows, length=case.length)
    width = matched_intermediate_size(case, lambda width: _count(lambda: fla_model(case, width)))
    return {
        "eager, fused cross entropy": (lambda: fla_model(case, width), False),
        "eager, fused linear cross entropy": (
            lambda: fla_model(case, width, fuse_cross_entropy=False, fuse_linear_cross_entropy=True),
            False,
        ),
        "torch.compile, fused cross entropy": (lambda: fla_model(case, width), True),
    }


def _time_variant(case: Case, device: torch.device, build: Callable[[], nn.Module], compiled: bool) -> dict[str, Any]:
    with device:
        model = build().train()
    parameters = list(model.parameters())
    # Matrices decay, the rest does not, as in our recipe.
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model, dynamic=False) if compiled else model
    # On the device beforehand, as our own batches are by the time that a step needs them.
    batches = torch.from_numpy(RandomLoader(case.rows, case.length, case.vocab_size).batches[:, :, :-1].copy()).to(
        device
    )
    autocast = (
        torch.autocast(device.type, dtype=torch.bfloat16)
        if case.training.precision == "bfloat16"
        else contextlib.nullcontext()
    )

    def step(number: int) -> float:
        tokens = batches[number % len(batches)]
        with autocast:
            loss = run(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return value

    return time_steps(case, step) | {"parameters": sum(p.numel() for p in parameters)}


def measure_peer(case: Case) -> dict[str, Any]:
    """The peer's fastest way to run, with the step times of all.

    Raises RuntimeError if none works, and torch.OutOfMemoryError if that is for want of memory.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    best: dict[str, Any] | None = None
    tried: dict[str, Any] = {}
    out_of_memory = False
    for name, (build, compiled) in _variants(case, device).items():
        try:
            result = _time_variant(case, device, build, compiled)
        except Exception as error:
            # A way that a library does not support must not lose the others; what failed is recorded.
            tried[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            out_of_memory |= isinstance(error, torch.OutOfMemoryError)
        else:
            tried[name] = result["step_seconds"]
            if best is None or result["step_seconds"] < best["step_seconds"]:
                best = result | {"variant": name}
        torch.compiler.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if best is None and out_of_memory:
        raise torch.OutOfMemoryError(f"{case.name}: {tried}")
    if best is None:
        raise RuntimeError(f"{case.name}: no way to run the peer worked: {tried}")
    return best | {"mfu": None, "ours_parameters": our_parameters(case), "variants": tried}
