"""Memory of a probe: the estimate from shapes against all bytes that tensors take, counted on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hwh_core
from hwh_core.memory_estimate import Card
from hwh_core.probes.analysis import Example
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.memory import probe_memory, require_memory

BASE = {
    "vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**BASE)),
    "wide feed-forward": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**(BASE | {"intermediate_size": 8192}))),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**BASE, head_dim=64)),
    "gemma1": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**(BASE | {"num_key_value_heads": 4}), head_dim=128)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**BASE, head_dim=64, sliding_window=64)),
}


class Peak(TorchDispatchMode):
    """The most bytes that tensors held at a time, those that were there before left out."""

    def __init__(self, before):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for tensor in filter(torch.is_tensor, tree_leaves(made)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.bytes = max(self.bytes, sum(size for _, size in self.alive.values()))
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(MODELS))
def test_estimate_holds_all_tensors_of_a_probe(name, dtype):
    torch.set_default_dtype(dtype)
    try:
        model = MODELS[name]().eval()
    finally:
        torch.set_default_dtype(torch.float32)
    ids = np.arange(512) % 250 + 5
    sample = Example(ids[:490].tolist(), [(10, 30)], ids[490:].tolist(), [7, 8, 9])
    with Peak([*model.parameters(), *model.buffers()]) as peak:
        hwh_core.probe_model(model, None, [sample], 64, backend="torch", progress=False)
    estimate = probe_memory(model, 512, 64)
    assert peak.bytes <= estimate.total - estimate.weights <= 2 * peak.bytes


def test_an_8b_model_in_bfloat16_fits_a_card_of_24_gb_at_8192_tokens():
    """By shapes alone: Llama 3.1 8B, whose 8.03e9 parameters take two thirds of the card."""
    config = tf.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072,
    )  # fmt: skip
    with torch.device("meta"):
        model = tf.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    need = probe_memory(model, 8192, 128)
    assert need.weights == 2 * 8_030_261_248
    assert need.total < 20e9
    card = Card("a card of 24 GB", 24 * 10**9, 23 * 10**9)
    require_memory(model, 8192, 128, card)
    require_memory(model, 131072, 128, None)
    with pytest.raises(ProbeError, match=r"--length: 131072 tokens need about .* GiB .*a card of 24 GB has 21\.4 GiB"):
        require_memory(model, 131072, 128, card)
