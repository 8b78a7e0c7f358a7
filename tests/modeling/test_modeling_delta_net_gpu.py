"""Gated DeltaNet on flash-linear-attention's real kernels; runs only where a CUDA device and the package are."""

from __future__ import annotations

import importlib

import pytest
import torch

from hwh_core.heads import GATED_DELTANET, HeadGroup
from hwh_core.modeling.delta_net import GatedDeltaNetGroup, fla_is_installed
from hwh_core.modeling.delta_net_check import check_model
from hwh_kernels.fla_configs import KERNELS, prepare_fla
from hwh_kernels.fla_configs.harvest import tuner_of
from hwh_kernels.gated_delta_rule_check import TOLERANCE, check_inputs
from hwh_kernels.gated_delta_rule_fla import gated_delta_rule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and fla_is_installed()), reason="needs a CUDA device and fla"),
]
HIDDEN, HEADS, HEAD_DIM, LENGTH = 512, 7, 64, 256
SCALE = HEAD_DIM**-0.5


@pytest.fixture(scope="module")
def device() -> torch.device:
    """The first card, with the kernels checked: on Hopper with an older Triton they refuse to train before."""
    device = torch.device("cuda", 0)
    check = check_model(group(), device, batch=2, length=LENGTH)
    assert check.passed
    assert max(max(errors.values()) for errors in check.errors.values()) < TOLERANCE
    return device


def group() -> GatedDeltaNetGroup:
    torch.manual_seed(0)
    heads = HeadGroup(GATED_DELTANET, heads=HEADS, head_dim=HEAD_DIM, conv_size=4, gate=True)
    module = GatedDeltaNetGroup(HIDDEN, heads, 1e-6, backend="fla")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.1)
    return module.cuda()


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


def test_a_compiled_training_pass_equals_the_eager_one(device):
    hidden = torch.randn(2, LENGTH, HIDDEN, device=device)
    gradients = {}
    for name in ("eager", "compiled"):
        module = group()

        def run(x, module=module):
            return module(x, padding=None, state=None)

        if name == "compiled":
            run = torch.compile(run, fullgraph=True, dynamic=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = run(hidden)
        output.float().square().sum().backward()
        gradients[name] = {"output": output.detach()} | {key: p.grad for key, p in module.named_parameters()}
    for key, expected in gradients["eager"].items():
        assert relative(gradients["compiled"][key], expected) < 2 * TOLERANCE, key


def test_forward_and_backward_replay_from_a_cuda_graph(device):
    inputs, grad = check_inputs(device, HEADS, HEAD_DIM, 2, LENGTH)
    leaves = [x.requires_grad_() for x in inputs]

    def run():
        output = gated_delta_rule(*leaves, SCALE)
        return (output.detach(), *torch.autograd.grad(output, leaves, grad))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = run()
    with torch.no_grad():
        for leaf in leaves[:3]:
            leaf.copy_(leaf.flip(1))
    graph.replay()
    replayed = [x.clone() for x in recorded]
    for one, expected in zip(replayed, run(), strict=True):
        torch.testing.assert_close(one, expected)


def test_shipped_configurations_leave_nothing_to_tune(device):
    if prepare_fla(device).source != "shipped":
        pytest.skip("no configurations are shipped for this card, or the user has set others")
    tuners = {name: tuner_of(getattr(importlib.import_module(module), name)) for name, module in KERNELS.items()}
    for tuner in tuners.values():
        # What a tuner leaves behind when it has measured; other tests may have made it do so.
        vars(tuner).pop("configs_timings", None)
    inputs, grad = check_inputs(device, 5, HEAD_DIM, 3, 2 * LENGTH)
    leaves = [x.requires_grad_() for x in inputs]
    torch.autograd.grad(gated_delta_rule(*leaves, SCALE), leaves, grad)
    for name, tuner in tuners.items():
        assert any(5 in key or HEAD_DIM in key for key in tuner.cache), f"{name} was not launched"
        assert not hasattr(tuner, "configs_timings"), f"{name} was tuned: keys {list(tuner.cache)}"
