"""Peers of benchmarks.train: other libraries' models of matched size, trained on the same batches.

Both run under bfloat16 autocast over float32 weights with fused AdamW and gradient clipping, as ours do. A peer has
several ways to run, of which the fastest counts: each is measured in a process of its own, since some end it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.train_case import RandomLoader, time_steps
from benchmarks.train_plan import Case
from hwh_core.architectures import layers_of_shape, parameter_count
from hwh_core.training.flops import mixing_flops_per_token, model_flops_utilization

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


def peer_flops_per_token(case: Case, parameters: int) -> float:
    """FLOPs a token of a peer with so many parameters, counted as ours are; it mixes tokens as our model does."""
    products = 6 * (parameters - case.vocab_size * case.shape["hidden_size"])
    layers = layers_of_shape(case.shape, OURS[case.kind])
    return products + sum(mixing_flops_per_token(group, case.length) for layer in layers for group in layer)


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


def _model(case: Case, variant: str, device: torch.device) -> nn.Module:
    """The peer matched to our size, on ``device``."""
    if case.kind == "hf":
        width = matched_intermediate_size(case, lambda width: _count(lambda: hf_model(case, width)))
        with device:
            return hf_model(case, width)
    from hwh_kernels.fla_configs import prepare_fla
    from hwh_kernels.gated_delta_rule_check import check_gated_delta_rule

    prepare_fla(device)
    heads = case.shape["hidden_size"] // case.shape["gdn_head_dim"]
    # Like our own training, the peer may run kernels that its library holds back on some cards, once they are checked.
    check_gated_delta_rule(device, [(heads, case.shape["gdn_head_dim"])], batch=case.rows, length=case.length)
    width = matched_intermediate_size(case, lambda width: _count(lambda: fla_model(case, width)))
    linear = "linear" in variant
    losses = {"fuse_cross_entropy": not linear, "fuse_linear_cross_entropy": linear}
    with device:
        return fla_model(case, width, **losses)


def measure_peer(case: Case, variant: str) -> dict[str, Any]:
    """Step times of the peer run in the way ``variant`` (see :data:`~benchmarks.train_plan.PEER_VARIANTS`)."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _model(case, variant, device).train()
    parameters = list(model.parameters())
    # Matrices decay, the rest does not, as in our recipe.
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, betas=(0.9, 0.95), fused=True)
    compiled = variant.startswith("torch.compile") and device.type == "cuda"
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

    result = time_steps(case, step)
    count = sum(p.numel() for p in parameters)
    name = torch.cuda.get_device_name() if device.type == "cuda" else None
    return result | {
        "parameters": count,
        "ours_parameters": our_parameters(case),
        "mfu": model_flops_utilization(peer_flops_per_token(case, count), result["tokens_per_second"], name, 1),
        "variant": variant,
        "compiled": compiled,
    }
