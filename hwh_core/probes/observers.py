"""Watching a model's attention during one clean forward pass: two adapters behind one protocol.

An adapter tells an :class:`Observer` of two moments in every attention group: where q and k are rotated (q, k, cos, sin
before, by standing in for the module-level ``apply_rotary_pos_emb``), and where attention is computed (rotated q and k,
scaling, mask, soft cap, window). The second is independent of the first and serves as the check of it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor

from .errors import UnsupportedModelError

ROTATION = "apply_rotary_pos_emb"
QUERY_ROWS = 256


@dataclass
class Rotation:
    """q [B, H, T, d] and k [B, G, T, d] as they enter the rotation, with cos and sin [B or 1, T, 2F]."""

    q: Tensor
    k: Tensor
    cos: Tensor
    sin: Tensor


@dataclass
class Attention:
    """What a model's attention receives: q [B, H, T, d] and k [B, G, T, d] after rotation, and how it is computed."""

    layer: int
    group: int
    q: Tensor
    k: Tensor
    scaling: float
    mask: Tensor | None
    """bool (True = visible) or additive [B or 1, 1, T, T]; None means plain causal."""
    softcap: float | None = None
    window: int | None = None


class Observer(Protocol):
    """Receives the events of one forward pass, in order."""

    def rotated(self, event: Rotation) -> None:
        """q and k are about to be rotated."""

    def attended(self, event: Attention) -> None:
        """Attention is about to be computed."""


class Adapter(Protocol):
    """How a family of models is watched."""

    def frequency_tables(self, model: torch.nn.Module) -> list[tuple[Tensor, float | None]]:
        """(inv_freq [F], attention_scaling or None if unknown) of every table that the loaded model holds."""

    def forward(self, model: torch.nn.Module, input_ids: Tensor, observer: Observer) -> None:
        """One clean forward pass of input_ids [B, T] without padding."""


def adapter_for(model: torch.nn.Module) -> Adapter:
    """The adapter of a model. Raises :class:`UnsupportedModelError` for models that are not of transformers' kind."""
    if getattr(getattr(model, "config", None), "model_type", None) == "hwh":
        return HeadGroupAdapter()
    if not hasattr(model, "base_model"):
        raise UnsupportedModelError(
            f"model {type(model).__name__}: not a transformers model; load it with AutoModelForCausalLM.from_pretrained"
        )
    return TransformersAdapter()


class HeadGroupAdapter:
    """Models of :mod:`hwh_core.modeling`."""

    def frequency_tables(self, model: Any) -> list[tuple[Tensor, float | None]]:
        """See :class:`Adapter`."""
        return [(module.inv_freq, 1.0) for _, _, module in model.rope_groups()]

    def forward(self, model: Any, input_ids: Tensor, observer: Observer) -> None:
        """See :class:`Adapter`. Attention groups run in the order in which the model lists them."""
        from ..modeling import attention, rotary

        groups = iter(model.attention_groups())
        rotate, attend = rotary.apply_rotary_pos_emb, attention.attend

        def watched_rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
            observer.rotated(Rotation(q, k, cos, sin))
            return rotate(q, k, cos, sin)

        def watched_attention(q: Tensor, k: Tensor, v: Tensor, *, scaling: float, mask: Tensor | None) -> Tensor:
            layer, place, module = next(groups)
            observer.attended(Attention(layer, place, q, k, scaling, mask, window=module.window))
            return attend(q, k, v, scaling=scaling, mask=mask)

        with patch.object(rotary, ROTATION, watched_rotation), patch.object(attention, "attend", watched_attention):
            model.base_model(input_ids)


def _softcapped_attention(q: Tensor, k: Tensor, v: Tensor, event: Attention) -> Tensor:
    """Attention with a soft cap on the logits, in rows of queries: [B, T, H, d]."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    outputs = []
    for start in range(0, q.shape[2], QUERY_ROWS):
        rows = slice(start, start + QUERY_ROWS)
        logits = (q[:, :, rows] @ k.transpose(2, 3)) * event.scaling
        logits = event.softcap * torch.tanh(logits / event.softcap)
        logits = logits.masked_fill(~visible_rows(event, rows), float("-inf"))
        outputs.append(torch.softmax(logits.float(), dim=-1).to(q.dtype) @ v)
    return torch.cat(outputs, dim=2).transpose(1, 2)


def visible_rows(event: Attention, rows: slice) -> Tensor:
    """Which keys the given rows of queries see by the mask that attention received: bool [B or 1, 1, R, T]."""
    length = event.k.shape[2]
    positions = torch.arange(length, device=event.k.device)
    if event.mask is None:
        return (positions[None, :] <= positions[rows, None])[None, None]
    mask = event.mask[..., rows, :length]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


class TransformersAdapter:
    """Model families of transformers 5 that rotate through a module-level ``apply_rotary_pos_emb``."""

    IMPLEMENTATION = "hwh_probe"
    REFUSED = ("s_aux", "sinks", "position_bias")

    def frequency_tables(self, model: torch.nn.Module) -> list[tuple[Tensor, float | None]]:
        """See :class:`Adapter`. Tables are buffers named [<layer type>_]inv_freq, with a factor of the same prefix."""
        tables = []
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name.endswith("inv_freq") and "original" not in name:
                    prefix = name.removesuffix("inv_freq")
                    tables.append((buffer, getattr(module, f"{prefix}attention_scaling", None)))
        return tables

    def forward(self, model: Any, input_ids: Tensor, observer: Observer) -> None:
        """See :class:`Adapter`. The language-model head is left out."""
        if (reason := known_obstacle(model)) is not None:
            raise UnsupportedModelError(f"model {type(model).__name__}: {reason}")
        with self._watched(model, observer):
            model.base_model(input_ids=input_ids, use_cache=False)

    @contextmanager
    def _watched(self, model: Any, observer: Observer) -> Iterator[None]:
        from transformers import masking_utils, modeling_utils

        modeling = modeling_modules(model)
        # Submodules may hold configs of their own.
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
        before = [(config, config._attn_implementation) for config in configs]
        attention_functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
        # Masks are only built for names that are registered for good; an unknown name would get none at all.
        masking_utils.AttentionMaskInterface.register(self.IMPLEMENTATION, masking_utils.sdpa_mask)
        with ExitStack() as stack:
            for module in modeling:
                stack.enter_context(
                    patch.object(module, ROTATION, _watched_rotation(getattr(module, ROTATION), observer))
                )
            attention_functions[self.IMPLEMENTATION] = self._attention_function(observer)
            stack.callback(attention_functions.__delitem__, self.IMPLEMENTATION)
            for config, implementation in before:
                config._attn_implementation = self.IMPLEMENTATION
                stack.callback(setattr, config, "_attn_implementation", implementation)
            yield

    def _attention_function(self, observer: Observer) -> Any:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        def attention(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
        ) -> tuple[Tensor, None]:
            for name in self.REFUSED:
                if options.get(name) is not None:
                    raise UnsupportedModelError(
                        f"model: attention of layer {module.layer_idx} uses {name!r}, which the probe does not rebuild"
                    )
            scaling = options.get("scaling")
            event = Attention(
                layer=module.layer_idx,
                group=0,
                q=query,
                k=key,
                scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
                mask=attention_mask,
                softcap=options.get("softcap"),
                window=options.get("sliding_window"),
            )
            observer.attended(event)
            if event.softcap is not None:
                return _softcapped_attention(query, key, value, event), None
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

        return attention


def known_obstacle(model: torch.nn.Module) -> str | None:
    """Why a model cannot be taken apart into frequencies, as far as its config tells; None where it tells nothing."""
    config = model.config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (parameters, *parameters.values()) if isinstance(part, dict)}
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "ALiBi: a bias by distance takes the place of rotation"
    if "dynamic" in kinds:
        return "dynamic NTK: its frequencies change with the length of a sequence and with what ran before"
    if getattr(config, "kv_lora_rank", None) and getattr(config, "rope_interleave", True):
        return "multi-head latent attention that rotates in another way, which the probe does not know"
    return None


def modeling_modules(model: Any) -> list[ModuleType]:
    """Modules whose ``apply_rotary_pos_emb`` rotates q and k of a model.

    Raises :class:`UnsupportedModelError` where there is none.
    """
    if model.config.model_type == "hwh":
        from ..modeling import rotary

        return [rotary]
    names = {type(module).__module__ for module in model.modules()}
    found = [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], ROTATION)]
    if not found:
        raise UnsupportedModelError(
            f"model {type(model).__name__}: its modeling module has no function {ROTATION}, so q and k before "
            "rotation cannot be taken; supported are the Llama, Qwen, Gemma and other families that have one"
        )
    return found


def _watched_rotation(rotate: Any, observer: Observer) -> Any:
    signature = inspect.signature(rotate)
    if not {"q", "k", "cos", "sin"} <= set(signature.parameters):
        raise UnsupportedModelError(
            f"model: {rotate.__module__}.{ROTATION} takes {list(signature.parameters)}, expected q, k, cos and sin"
        )

    def watched(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        q, k = values["q"], values["k"]
        if values.get("unsqueeze_dim", 1) == 2:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        observer.rotated(Rotation(q, k, values["cos"], values["sin"]))
        return rotate(*args, **kwargs)

    return watched
