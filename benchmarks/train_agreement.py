"""Whether faster ways to train give the same loss curve: recorded and compiled, chunked loss, bfloat16.

The recipe is the preset's own, its warm-up included. A control says how far rounding alone may lead: the same training
from weights changed by a millionth. With a warm-up of 5 steps instead of 200 the hybrid is chaotic from step 18 on, and
the control itself leaves the curve by 0.4 nats: nothing can be learnt there about who computes rightly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.train_case import make_trainer
from benchmarks.train_plan import Case
from hwh_core.modeling import model as model_module
from hwh_kernels.cross_entropy import linear_cross_entropy

# Largest difference of the loss over all steps, in nats. Roundings of bfloat16 differ wherever operations are fused,
# and training amplifies them: about 1e-3 in 30 steps; a wrong gradient moves the curve by far more.
BOUNDS = {"compiled_graph_against_eager": 0.02, "chunked_against_plain_loss": 0.02, "bfloat16_against_float32": 0.05}
CONTROL = "perturbed_against_plain"
PERTURBATION = 1e-6
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def plain_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss by its definition, all logits at once."""
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, -2).float(), targets.flatten())


def chunked_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Gradients with the loss, in chunks of a few rows so that there are several."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    return linear_cross_entropy(hidden.flatten(0, -2), weight, targets.flatten(), chunk_rows=100)


@contextmanager
def _loss_in_place(loss: Loss | None) -> Iterator[None]:
    own = model_module.mean_cross_entropy
    model_module.mean_cross_entropy = own if loss is None else loss
    try:
        yield
    finally:
        model_module.mean_cross_entropy = own


@torch.no_grad()
def _perturb(model: nn.Module, relative: float) -> None:
    """Change every weight by a random share of itself of this size."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        parameter.mul_(1 + relative * noise)


def loss_curve(
    case: Case, loss: Loss | None, backend: str = "auto", perturbation: float = 0.0, **changes: Any
) -> list[float]:
    """Losses of the case's steps; ``loss`` in place of the model's own, ``changes`` to the training recipe.

    ``backend`` is that of Gated DeltaNet groups; ``perturbation`` the relative change of the weights at the start.
    """
    with tempfile.TemporaryDirectory() as folder, _loss_in_place(loss):
        trainer = make_trainer(case, Path(folder), backend, **changes)
        if perturbation:
            _perturb(trainer.model, perturbation)
        curve = [trainer.run_step(number)["loss"] for number in range(case.steps[1])]
        if changes.get("compile") == "auto" and not (trainer.compiled and trainer.cuda_graph):
            raise RuntimeError(
                f"{case.name}: compiled = {trainer.compiled}, cuda_graph = {trainer.cuda_graph}; expected both, and a "
                "warning above says why"
            )
    return curve


def measure_agreement(case: Case) -> dict[str, Any]:
    """``differences`` (largest over the steps, in nats) by comparison, and the curves.

    The curve in float32 has Gated DeltaNet in its torch form, so that it depends on no kernel.
    """
    curves = {
        "float32": loss_curve(case, plain_loss, "torch", compile="never", precision="float32"),
        "plain": loss_curve(case, plain_loss, compile="never", precision="bfloat16"),
        "chunked": loss_curve(case, chunked_loss, compile="never", precision="bfloat16"),
        "perturbed": loss_curve(case, plain_loss, perturbation=PERTURBATION, compile="never", precision="bfloat16"),
    }
    pairs = {
        "chunked_against_plain_loss": ("chunked", "plain"),
        "bfloat16_against_float32": ("plain", "float32"),
        CONTROL: ("perturbed", "plain"),
    }
    if torch.cuda.is_available():
        curves["eager"] = loss_curve(case, None, compile="never", precision="bfloat16")
        curves["compiled_graph"] = loss_curve(case, None, compile="auto", precision="bfloat16")
        pairs["compiled_graph_against_eager"] = ("compiled_graph", "eager")
    differences = {
        name: max(abs(a - b) for a, b in zip(curves[first], curves[second], strict=True))
        for name, (first, second) in pairs.items()
    }
    return {"differences": differences, "curves": curves}
