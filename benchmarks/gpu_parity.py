"""Whether what runs on a GPU agrees with its torch form and with the CPU; writes benchmarks/results/gpu_parity.json."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

from benchmarks.recording import Figure, record_each
from hwh_core.heads import GATED_DELTANET, HeadGroup
from hwh_core.modeling import HwHForCausalLM
from hwh_core.modeling.attention import attend, visible_keys
from hwh_core.modeling.build import build_model
from hwh_core.modeling.delta_net import GatedDeltaNetGroup
from hwh_core.modeling.sliding_window import visible_pairs
from hwh_kernels.gated_delta_rule_check import hopper_guard
from hwh_kernels.rfis_rpd import rfis_rpd

SHAPE = {
    "num_layers": 8, "hidden_size": 256, "intermediate_size": 640, "attention_head_dim": 32, "gdn_head_dim": 32,
    "conv_size": 4, "gate": True,
}  # fmt: skip


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    value, reference = value.detach().float(), reference.detach().float()
    return float((value - reference).norm() / reference.norm())


def figure(name: str, value: float, against: str) -> Figure:
    """One entry of `figures`."""
    print(f"{name}: {value:.2e} (against {against})", flush=True)
    return {"id": name, "value": value, "unit": "relative error", "against": against}


def delta_net(head_dim: int, heads: int, length: int) -> list[Figure]:
    """Outputs and gradients of a head group in bfloat16 on fla against the torch form in float32."""
    torch.manual_seed(0)
    group = HeadGroup(kind=GATED_DELTANET, heads=heads, head_dim=head_dim, gate=True, conv_size=4)
    reference = GatedDeltaNetGroup(group.width, group, 1e-6, backend="torch").cuda()
    for parameter in reference.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02 if parameter.dim() == 2 else 0.3)
    with torch.no_grad():
        for parameter, value in zip(
            (reference.A_log, reference.dt_bias), GatedDeltaNetGroup.initial_decay(heads), strict=True
        ):
            parameter.copy_(value)
    on_fla = GatedDeltaNetGroup(group.width, group, 1e-6, backend="fla").cuda()
    on_fla.load_state_dict(reference.state_dict())
    hidden = torch.randn(2, length, group.width, device="cuda")
    weight = torch.linspace(0, 1, length, device="cuda")[None, :, None]
    outputs, gradients = [], []
    for module, autocast in ((reference, False), (on_fla, True)):
        inputs = hidden.clone().requires_grad_(True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            output = module(inputs, padding=None, state=None)
        (output.float() * weight).sum().backward()
        outputs.append(output)
        gradients.append({"input": inputs.grad} | {name: p.grad for name, p in module.named_parameters()})
    worst = max(relative(gradients[1][name], gradients[0][name]) for name in gradients[0])
    name, against = f"delta_net.d{head_dim}", "torch form in float32, fla in bfloat16"
    return [
        figure(f"{name}.output", relative(outputs[1], outputs[0]), against),
        figure(f"{name}.worst_gradient", worst, against),
    ]


@torch.no_grad()
def decoding_error(model: HwHForCausalLM, ids: torch.Tensor) -> float:
    """Logits of ten single steps with the cache, after all tokens but these, against those of the full pass."""
    start = ids.shape[1] - 10
    full = model(ids).logits
    cache, steps = model(ids[:, :start], use_cache=True).past_key_values, []
    for place in range(start, ids.shape[1]):
        steps.append(model(ids[:, place : place + 1], past_key_values=cache, use_cache=True).logits)
    return relative(torch.cat(steps, dim=1), full[:, start:])


def decoding() -> list[Figure]:
    """Prefill and ten single steps of HwH-std with the mixed cache against the full pass, per backend."""
    model = build_model(SHAPE, "hwh_std", 10000.0, True, 256, 512, seed=0).cuda().eval()
    groups = [module for module in model.modules() if isinstance(module, GatedDeltaNetGroup)]
    ids = torch.randint(0, 512, (2, 80), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    found, full = [], {}
    for backend in ("torch", "fla"):
        for group in groups:
            group.backend = backend
        with torch.no_grad():
            full[backend] = model(ids).logits
        error = decoding_error(model, ids)
        found.append(figure(f"decoding.{backend}", error, "full pass of the same backend, float32"))
    return [*found, figure("logits.fla", relative(full["fla"], full["torch"]), "torch form, float32")]


def sliding_window() -> list[Figure]:
    """Windows in blocks, bfloat16, against one dense mask in float32; decoding of HwH-SWA against the full pass."""
    found: list[Figure] = []
    generator = torch.Generator("cuda").manual_seed(0)
    length, window = 2000, 128
    weight = torch.linspace(0, 1, length, device="cuda")[:, None]
    key_mask = torch.ones(4, length, dtype=torch.bool, device="cuda")
    key_mask[1, :300] = False
    for name, padding in (("plain", None), ("padded", key_mask)):
        drawn = [torch.randn(4, 14, length, 64, device="cuda", generator=generator) for _ in range(3)]
        places = torch.arange(length, device="cuda")
        masks = (
            (torch.float32, visible_pairs(places, places, window, padding)),
            (torch.bfloat16, visible_keys(length, length, window, padding, places.device)),
        )
        results = []
        for dtype, mask in masks:
            inputs = [x.to(torch.bfloat16).to(dtype).requires_grad_(True) for x in drawn]
            output = attend(*inputs, scaling=0.125, mask=mask)
            (output.float() * weight).sum().backward()
            results.append((output, *(x.grad for x in inputs)))
        output, *gradients = (relative(ours, exact) for exact, ours in zip(*results, strict=True))
        against = "dense mask in float32, blocks in bfloat16"
        found.append(figure(f"sliding_window.{name}.output", output, against))
        found.append(figure(f"sliding_window.{name}.worst_gradient", max(gradients), against))
    model = build_model(SHAPE | {"sliding_window": 16}, "hwh_swa", 10000.0, True, 256, 512, seed=0).cuda().eval()
    ids = torch.randint(0, 512, (2, 80), device="cuda", generator=generator)
    return [*found, figure("decoding.sliding_window", decoding_error(model, ids), "full pass, float32")]


def probe() -> list[Figure]:
    """RFIS and RPD of random heads on the card against the reference form on the CPU, both in float32."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(8, 64, 64, generator=generator), torch.randn(2, 512, 64, generator=generator)
    inv_freq = 10000.0 ** (-torch.arange(32, dtype=torch.float32) / 32)
    keys = torch.arange(512)
    maps = {}
    for device, backend in (("cuda", "auto"), ("cpu", "reference")):
        moved = [x.to(device) for x in (q, k, inv_freq, keys[-64:], keys)]
        maps[device] = [m.cpu() for m in rfis_rpd(*moved, scaling=0.125, backend=backend)]
    return [
        figure(f"probe.{name}", relative(on_card, on_cpu), "reference on the CPU, float32")
        for name, on_card, on_cpu in zip(("rfis", "rpd"), maps["cuda"], maps["cpu"], strict=True)
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by-pass-guard", action="store_true", help="measure gradients that fla refuses on Hopper")
    parser.add_argument("--output", type=Path, help="folder or .json file (default: benchmarks/results)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: benchmarks.gpu_parity needs a CUDA device, and torch sees none")
    if arguments.by_pass_guard:
        hopper_guard(torch.device("cuda")).lift()
    parts = (probe, partial(delta_net, 64, 7, 512), partial(delta_net, 16, 7, 512), decoding, sliding_window)
    command = "python -m benchmarks.gpu_parity" + (" --by-pass-guard" if arguments.by_pass_guard else "")
    record_each("gpu_parity", (part() for part in parts), command, arguments.output)


if __name__ == "__main__":
    main()
