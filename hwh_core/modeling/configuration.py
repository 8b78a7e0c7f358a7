"""Hugging Face configuration of a model over head groups."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from ..heads import ArchitectureError, LayerSpec, layer_width, layers_from_dicts


class HwHConfig(PretrainedConfig):
    """Sizes and head groups of a model.

    ``layer_groups``: one list of head-group dicts a layer (``hwh_core.heads.layers_to_dicts``). The width of a layer
    may differ from ``hidden_size``; the output projection maps one to the other. ``max_position_embeddings`` is the
    training length; longer inputs run with plain extrapolated angles. ``architecture`` is a label, nothing is read
    from it. ``delta_net_backend``: auto, torch or fla.
    """

    model_type = "hwh"
    keys_to_ignore_at_inference = ("cache", "past_key_values")

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 1024,
        intermediate_size: int = 2560,
        layer_groups: list[list[dict[str, Any]]] | None = None,
        max_position_embeddings: int = 2048,
        rms_norm_eps: float = 1e-6,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        architecture: str | None = None,
        delta_net_backend: str = "auto",
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        if layer_groups is None:
            # The library builds a default instance to compare with when it writes config.json.
            layer_groups = [[{"kind": "full_attention", "heads": hidden_size // 64, "head_dim": 64}]]
        layers = layers_from_dicts(layer_groups)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.layer_groups = layer_groups
        self.num_hidden_layers = len(layers)
        self.mixer_width = layer_width(layers[0])
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self.architecture = architecture
        self.delta_net_backend = delta_net_backend
        for derived in ("num_hidden_layers", "mixer_width"):
            stored = kwargs.pop(derived, None)
            if stored is not None and stored != getattr(self, derived):
                raise ArchitectureError(
                    f"model config: {derived} = {stored} contradicts layer_groups, which give {getattr(self, derived)}"
                )
        super().__init__(
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )

    @property
    def layers(self) -> list[LayerSpec]:
        """The layers as head groups."""
        return layers_from_dicts(self.layer_groups)
