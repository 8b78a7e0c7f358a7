"""Changing what attention does while a model runs: heads without output, frequencies without rotation.

Both are context managers that hook and patch and never touch weights, so the model afterwards is the model before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from .errors import UnsupportedModelError
from .observers import ROTATION, known_obstacle, modeling_modules

OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj")
Places = Mapping[int, Sequence[int]]
"""Heads or frequency groups by layer index."""


def _attention_modules(model: Any) -> dict[int, torch.nn.Module]:
    """The attention module of every layer. Raises :class:`UnsupportedModelError` where a layer has not just one."""
    if model.config.model_type == "hwh":
        found = [(layer, module) for layer, _, module in model.attention_groups()]
    else:
        found = [
            (module.layer_idx, module)
            for module in model.modules()
            if hasattr(module, "layer_idx") and any(hasattr(module, name) for name in OUTPUT_PROJECTIONS)
        ]
    modules = dict(found)
    if not found or len(modules) < len(found):
        raise UnsupportedModelError(
            f"model {type(model).__name__}: expected one attention with an output projection "
            f"({', '.join(OUTPUT_PROJECTIONS)}) in a layer, found {len(found)} in {len(modules)} layers"
        )
    return modules


def _check_layers(modules: Mapping[int, Any], places: Places) -> None:
    unknown = sorted(set(places) - set(modules))
    if unknown:
        raise UnsupportedModelError(f"model: it has no attention in layers {unknown}; it has some in {sorted(modules)}")


def _without_heads(output: Tensor, heads: Sequence[int], num_heads: int) -> Tensor:
    """Outputs of heads side by side [..., num_heads * d] with those of ``heads`` set to 0."""
    split = output.unflatten(-1, (num_heads, -1)).clone()
    split[..., list(heads), :] = 0
    return split.flatten(-2)


@contextmanager
def masked_heads(model: Any, heads: Places) -> Iterator[None]:
    """Set the output of the given heads to 0, in front of the output projection.

    Raises :class:`UnsupportedModelError` for models whose heads are not found, and for heads that they do not have.
    """
    modules = _attention_modules(model)
    _check_layers(modules, heads)
    own = model.config.model_type == "hwh"
    with ExitStack() as stack:
        for layer, chosen in heads.items():
            module = modules[layer]
            count = module.num_heads if own else model.config.num_attention_heads
            if not chosen:
                continue
            if max(chosen) >= count:
                raise UnsupportedModelError(f"model: layer {layer} has {count} heads, there is no head {max(chosen)}")

            def change(values: Tensor, chosen: Sequence[int] = chosen, count: int = count) -> Tensor:
                return _without_heads(values, chosen, count)

            if own:
                # The output of the group is split in heads until the joint projection of the mixer.
                hook = module.register_forward_hook(lambda _, __, output, change=change: change(output))
            else:
                projection = next(getattr(module, name) for name in OUTPUT_PROJECTIONS if hasattr(module, name))
                hook = projection.register_forward_pre_hook(
                    lambda _, inputs, change=change: (change(inputs[0]), *inputs[1:])
                )
            stack.callback(hook.remove)
        yield


def _still(cos: Tensor, sin: Tensor, groups: Sequence[int]) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 2F] of which the given groups rotate by no angle; their length (attention scaling) is kept."""
    half = cos.shape[-1] // 2
    # Tables hold (0..F-1, 0..F-1) or (0, 0, 1, 1, ...).
    doubled = torch.equal(cos[..., :half], cos[..., half:])
    columns = [column for r in groups for column in ((r, r + half) if doubled else (2 * r, 2 * r + 1))]
    length = torch.hypot(cos[..., columns], sin[..., columns])
    cos, sin = cos.clone(), sin.clone()
    cos[..., columns] = length
    sin[..., columns] = 0
    return cos, sin


@contextmanager
def rotation_off(model: Any, groups: Places) -> Iterator[None]:
    """Set the rotation of the given frequency groups of each layer to the identity (p-RoPE where they are the lowest).

    Raises :class:`UnsupportedModelError` for models that do not rotate through ``apply_rotary_pos_emb``.
    """
    if (reason := known_obstacle(model)) is not None:
        raise UnsupportedModelError(f"model {type(model).__name__}: {reason}")
    modules = _attention_modules(model)
    _check_layers(modules, groups)
    current: list[int] = []

    def enter(layer: int) -> Callable[..., None]:
        return lambda *_: current.__setitem__(slice(None), [layer])

    def watch(rotate: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(rotate)

        @wraps(rotate)
        def changed(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            chosen = groups.get(current[0], ())
            if len(chosen):
                cos, sin = bound.arguments["cos"], bound.arguments["sin"]
                bound.arguments["cos"], bound.arguments["sin"] = _still(cos, sin, chosen)
            return rotate(*bound.args, **bound.kwargs)

        return changed

    with ExitStack() as stack:
        for layer, module in modules.items():
            stack.callback(module.register_forward_pre_hook(enter(layer)).remove)
        for module in modeling_modules(model):
            stack.enter_context(patch.object(module, ROTATION, watch(getattr(module, ROTATION))))
        yield
