"""The one model class: pre-norm blocks whose mixer is a tuple of head groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

from ..heads import LayerSpec
from . import rotary
from .attention import AttentionGroup, visible_keys
from .block import Block, GroupInputs, GroupState, run_block
from .cache import HwHCache
from .configuration import HwHConfig
from .delta_net import CausalConvolution, GatedDeltaNetGroup
from .loss import mean_cross_entropy
from .norm import HwHRMSNorm
from .sliding_window import SlidingWindow

# The library renamed this argument of generate() within version 5; beam search reorders the cache under its name.
_CACHE_ARGUMENT = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)


@dataclass
class HwHOutput(ModelOutput):
    """Output of :class:`HwHForCausalLM`: loss (with labels), logits [B, T, vocab_size], cache, hidden states."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    cache: HwHCache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None

    @property
    def past_key_values(self) -> HwHCache | None:
        """The cache under its older name."""
        return self.cache


@dataclass
class _Context:
    """What all layers of one forward pass share."""

    padding: torch.Tensor | None  # bool [B, T], True at padding among the new tokens
    key_mask: torch.Tensor | None  # bool [B, past + T], False at padding
    length: int
    cos_sin: dict[tuple[float, int], tuple[torch.Tensor, torch.Tensor]]
    masks: dict[tuple[int | None, int], torch.Tensor | SlidingWindow | None]
    device: torch.device

    def inputs(self, layer: LayerSpec, states: list[GroupState] | None) -> list[GroupInputs]:
        """What each head group of a layer gets besides the hidden states."""
        collected = []
        for index, group in enumerate(layer):
            if group.is_recurrent:
                collected.append(GroupInputs(self.padding))
                continue
            cos_sin = None if group.rope_theta is None else self.cos_sin[(group.rope_theta, group.head_dim)]
            key_length = self.length + (0 if states is None else states[index].length)
            collected.append(GroupInputs(self.padding, cos_sin, self.mask(group.window, key_length)))
        return collected

    def mask(self, window: int | None, key_length: int) -> torch.Tensor | SlidingWindow | None:
        """Mask for a group that sees ``key_length`` keys; built once for all groups alike."""
        key = (window, key_length)
        if key not in self.masks:
            key_mask = None if self.key_mask is None else self.key_mask[:, -key_length:]
            self.masks[key] = visible_keys(self.length, key_length, window, key_mask, self.device)
        return self.masks[key]


class HwHPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation."""

    config_class = HwHConfig
    base_model_prefix = "model"
    _no_split_modules = ("Block",)
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding | CausalConvolution):
            init.normal_(module.weight, mean=0.0, std=std)
        elif isinstance(module, HwHRMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, GatedDeltaNetGroup) and module.group.decays:
            a_log, dt_bias = module.initial_decay(module.num_heads)
            init.copy_(module.A_log, a_log)
            init.copy_(module.dt_bias, dt_bias)


class HwHModel(HwHPreTrainedModel):
    """Embedding, blocks and final norm."""

    def __init__(self, config: HwHConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        # Kept, since the configuration builds them anew at each access, which shows in decoding.
        self.layer_specs = tuple(config.layers)
        self.layers = nn.ModuleList(Block(config, layer) for layer in self.layer_specs)
        self.norm = HwHRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: HwHCache | None = None,
        output_hidden_states: bool = False,
        run_block: Callable[..., torch.Tensor] = run_block,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
        """Hidden states [B, T, hidden_size] after the final norm, and per layer if asked.

        ``attention_mask`` [B, past + T] marks padding by 0. With a cache padding must be on the left; without one it
        may be on either side. A cache is filled in place. ``run_block`` runs one block, as
        :func:`~hwh_core.modeling.block.run_block` does.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        context = self._context(hidden_states, attention_mask, position_ids, cache)
        collected = [hidden_states]
        for index, (block, layer) in enumerate(zip(self.layers, self.layer_specs, strict=True)):
            states = None if cache is None else cache.states[index]
            hidden_states = run_block(block, hidden_states, context.inputs(layer, states), states)
            if output_hidden_states:
                collected.append(hidden_states)
        if cache is not None:
            cache.seen_tokens += context.length
        hidden_states = self.norm(hidden_states)
        return hidden_states, (*collected[:-1], hidden_states) if output_hidden_states else None

    def _context(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: HwHCache | None,
    ) -> _Context:
        batch, length, _ = hidden_states.shape
        device = hidden_states.device
        past = 0 if cache is None else cache.seen_tokens
        key_mask = None
        if attention_mask is not None:
            key_mask = _checked_mask(attention_mask, batch, past + length, cache is not None)
        padding = None if key_mask is None else ~key_mask[:, past:]
        if position_ids is None:
            if key_mask is None:
                position_ids = torch.arange(past, past + length, device=device)[None]
            else:
                position_ids = (key_mask.long().cumsum(-1) - 1).clamp_min(0)[:, past:]
        cos_sin: dict[tuple[float, int], tuple[torch.Tensor, torch.Tensor]] = {}
        for layer in self.layer_specs:
            for group in layer:
                key = (group.rope_theta, group.head_dim)
                if group.rope_theta is not None and key not in cos_sin:
                    inv_freq = rotary.inverse_frequencies(group.head_dim, group.rope_theta, device)
                    cos_sin[key] = rotary.cos_sin(inv_freq, position_ids)
        return _Context(padding, key_mask, length, cos_sin, {}, device)


def _checked_mask(attention_mask: torch.Tensor, batch: int, length: int, left_only: bool) -> torch.Tensor | None:
    """Padding mask as bool [B, length], or None if nothing is padded."""
    if tuple(attention_mask.shape) != (batch, length):
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}, expected {(batch, length)}")
    mask = attention_mask.bool()
    if bool(mask.all()):
        return None
    starts = (mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0]
    ends_with_padding = ~mask[:, -1]
    if bool((starts > 1).any()) or (left_only and bool(ends_with_padding.any())):
        where = "on the left" if left_only else "on one side"
        raise ValueError(f"attention_mask: padding must be {where} of each sequence and leave at least one token")
    return mask


class HwHForCausalLM(HwHPreTrainedModel, GenerationMixin):
    """Language model over head groups; ``generate()`` works with :class:`~hwh_core.modeling.cache.HwHCache`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (a dict is what the library reads)

    def __init__(self, config: HwHConfig) -> None:
        super().__init__(config)
        self.model = HwHModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def rope_groups(self) -> list[tuple[int, int, AttentionGroup]]:
        """(layer index, group index, module) of the attention groups that rotate q and k."""
        return [entry for entry in self.attention_groups() if entry[2].group.rope_theta is not None]

    def attention_groups(self) -> list[tuple[int, int, AttentionGroup]]:
        """(layer index, group index, module) of all attention groups."""
        return [
            (index, place, module)
            for index, block in enumerate(self.model.layers)
            for place, module in enumerate(block.mixer.groups)
            if isinstance(module, AttentionGroup)
        ]

    def next_token_loss(
        self, inputs: torch.Tensor, targets: torch.Tensor, run_block: Callable[..., torch.Tensor] = run_block
    ) -> torch.Tensor:
        """Mean loss in nats a token, float32; inputs and targets int64 [B, T], targets already shifted by one.

        ``run_block`` runs one block, as :func:`~hwh_core.modeling.block.run_block` does.
        """
        hidden_states, _ = self.model(inputs, run_block=run_block)
        return mean_cross_entropy(hidden_states, self.lm_head.weight, targets)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: HwHCache | None = None,
        past_key_values: HwHCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool = True,
    ) -> HwHOutput | tuple:
        """Logits [B, T, vocab_size]; ``labels`` [B, T] as in the library (-100 is ignored, shifted here).

        ``use_cache`` without a cache makes a new one. ``logits_to_keep``: number of last positions, 0 for all, or
        the positions themselves. ``past_key_values`` is the older name of ``cache``.
        """
        if output_attentions:
            raise ValueError("output_attentions is not available: the attention kernel does not return weights")
        cache = past_key_values if cache is None else cache
        if cache is not None and not isinstance(cache, HwHCache):
            raise TypeError(f"cache: expected HwHCache, got {type(cache).__name__}; leave it out to have one made")
        if cache is None and use_cache:
            cache = HwHCache(self.config.layers)
        hidden_states, collected = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            output_hidden_states=output_hidden_states,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden_states[:, keep])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        output = HwHOutput(loss=loss, logits=logits, cache=cache, hidden_states=collected)
        return output if return_dict else output.to_tuple()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        cache: HwHCache | None = None,
        past_key_values: HwHCache | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Inputs of one generation step: only the tokens that the cache has not seen.

        Positions are left to the forward pass, which derives them from the attention mask; further arguments of
        ``generate`` concern other models.
        """
        cache = past_key_values if cache is None else cache
        if inputs_embeds is not None and cache is None:
            raise ValueError("generate() from inputs_embeds is not supported; give input_ids")
        seen = 0 if cache is None else cache.get_seq_length()
        if attention_mask is not None:
            new = attention_mask.shape[1] - seen
        else:
            new = input_ids.shape[1] - seen
        inputs = {
            "input_ids": input_ids[:, -new:].clone(memory_format=torch.contiguous_format),
            "attention_mask": attention_mask,
            "cache": cache,
            "use_cache": use_cache,
        }
        return inputs if logits_to_keep is None else {**inputs, "logits_to_keep": logits_to_keep}

    def _update_model_kwargs_for_generation(
        self,
        outputs: HwHOutput,
        model_kwargs: dict[str, Any],
        is_encoder_decoder: bool = False,
        num_new_tokens: int = 1,
    ) -> dict[str, Any]:
        if outputs.cache is not None:
            model_kwargs[_CACHE_ARGUMENT] = outputs.cache
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs["attention_mask"] = torch.cat((mask, mask.new_ones((mask.shape[0], num_new_tokens))), dim=-1)
        return model_kwargs


__all__ = ["HwHForCausalLM", "HwHModel", "HwHOutput", "HwHPreTrainedModel"]
