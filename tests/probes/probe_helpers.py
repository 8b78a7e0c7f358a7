"""Small models of our own class for the tests of the probes."""

from __future__ import annotations

import argparse
import json

import numpy as np

from hwh_core.modeling import build_model

VOCABULARY = 300
SHAPE = {
    "num_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "attention_head_dim": 16,
    "num_attention_heads": 3,
    "gate": True,
    "initializer_range": 0.3,
}

HYBRID_SHAPE = {
    "num_layers": 4,
    "hidden_size": 64,
    "attention_head_dim": 8,
    "gdn_head_dim": 8,
    "num_attention_heads": None,
}


def controlled_model(seed: int = 0, qk_norm: bool = True, architecture: str = "transformer", **changes):
    """A model of our own class with logits far from 0."""
    return build_model(SHAPE | changes, architecture, 10000.0, qk_norm, 64, VOCABULARY, seed).eval()


def parsed(command, *arguments):
    """Arguments of a subcommand as its parser gives them."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest="command"))
    return parser.parse_args(list(map(str, arguments)))


def gguf_of(model, tokenizer, path, factors=None, **keys) -> None:
    """A GGUF file of a Llama with the layout that converters write: rotary rows of q and k interleaved.

    ``factors`` divide its frequencies, as files of Llama 3.1 tell; ``keys`` are further values by their key.
    """
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    tokens = [tokenizer.convert_ids_to_tokens(i) or f"<{i}>" for i in range(config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(
        [" ".join(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]
    )
    writer.add_eos_token_id(tokenizer.eos_token_id or 0)
    for key, value in keys.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(key.replace("_", "."), value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(factors, np.float32))
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        values = tensor.numpy().astype(np.float32)
        parts = name.split(".")
        if parts[1] == "layers":
            own = names[".".join(parts[3:-1])]
            if own in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if own == "attn_q" else config.num_key_value_heads
                values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
            writer.add_tensor(f"blk.{parts[2]}.{own}.weight", values)
        else:
            writer.add_tensor(
                {"embed_tokens": "token_embd", "norm": "output_norm"}.get(parts[1], "output") + ".weight", values
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
