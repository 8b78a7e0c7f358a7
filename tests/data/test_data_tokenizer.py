"""Trained and hub tokenizers, their folders and fingerprints."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, processors
from transformers import AutoTokenizer

from hwh_core.data.errors import DataError
from hwh_core.data.tokenizer import (
    load_backend,
    save_hub_tokenizer,
    save_trained,
    tokenizer_fingerprint,
    train_bpe,
    training_texts,
)

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def loaded(data):
    return AutoTokenizer.from_pretrained(data.tokenizer)


def test_the_folder_loads_with_its_special_tokens(loaded):
    assert len(loaded) == 300
    assert (loaded.eos_token, loaded.bos_token, loaded.pad_token) == ("<|endoftext|>", "<|endoftext|>", "<|padding|>")
    assert (loaded.eos_token_id, loaded.pad_token_id) == (0, 1)
    assert loaded("text").input_ids == loaded("text", add_special_tokens=False).input_ids


def test_digits_stand_alone(loaded):
    tokens = loaded.convert_ids_to_tokens(loaded("in 1861, 1861 and 18.5").input_ids)
    assert [token for token in tokens if any(c.isdigit() for c in token)] == list("18611861185")


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(loaded, text):
    assert loaded.decode(loaded(text).input_ids, clean_up_tokenization_spaces=False) == text


def test_backend_and_transformers_agree(loaded, data):
    backend, eos_token_id, vocab_size = load_backend(data.tokenizer)
    assert (eos_token_id, vocab_size) == (loaded.eos_token_id, len(loaded))
    text = " ".join(document["text"] for document in data.documents)
    assert backend.encode(text, add_special_tokens=False).ids == loaded(text).input_ids


def test_training_is_deterministic_to_the_byte(data, tmp_path):
    for name in ("one", "two"):
        save_trained(train_bpe(data.path, vocab_size=300, training_bytes=10**6), tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert (tmp_path / "one/tokenizer.json").read_bytes() == (data.tokenizer / "tokenizer.json").read_bytes()


def test_training_text_is_bounded_and_spread(data):
    everything = list(training_texts(data.path, 10**9))
    assert everything == [document["text"] for document in data.documents]
    some = list(training_texts(data.path, 5_000))
    size = sum(len(text.encode()) for text in some)
    assert 5_000 <= size <= 5_000 + max(len(text.encode()) for text in everything)
    positions = [everything.index(text) for text in some]
    assert positions == sorted(positions)
    assert positions != list(range(len(some)))


@pytest.mark.parametrize(("size", "message"), [(200, "vocab_size 200 is under 258"), (9_000, "gives only .* of 9000")])
def test_a_vocabulary_that_cannot_be_met(data, size, message):
    with pytest.raises(DataError, match=message):
        train_bpe(data.path, vocab_size=size, training_bytes=10**6)


def test_fingerprint_survives_a_copy_beside_a_model_and_sees_changes(loaded, data, tmp_path):
    original = tokenizer_fingerprint(data.tokenizer)
    copy = AutoTokenizer.from_pretrained(data.tokenizer)
    copy(["a", "a longer text"], padding=True, truncation=True, max_length=5)
    copy.save_pretrained(tmp_path / "copy")
    assert tokenizer_fingerprint(tmp_path / "copy") == original
    content = json.loads((tmp_path / "copy/tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (tmp_path / "copy/tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_fingerprint(tmp_path / "copy") != original
    shutil.copytree(data.tokenizer, tmp_path / "end")
    config = json.loads((tmp_path / "end/tokenizer_config.json").read_text())
    (tmp_path / "end/tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|padding|>"}))
    assert tokenizer_fingerprint(tmp_path / "end") != original


def test_unusable_folders(data, tmp_path):
    with pytest.raises(DataError, match=r"holds no tokenizer\.json; build it first"):
        tokenizer_fingerprint(tmp_path)
    shutil.copytree(data.tokenizer, tmp_path / "t")
    (tmp_path / "t/tokenizer_config.json").write_text("{}")
    with pytest.raises(DataError, match="no end-of-text token"):
        load_backend(tmp_path / "t")
    (tmp_path / "t/tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(DataError, match="damaged"):
        load_backend(tmp_path / "t")
    (tmp_path / "t/tokenizer.json").write_text('{"model": ')
    with pytest.raises(DataError, match="damaged"):
        load_backend(tmp_path / "t")


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """Snapshot folder of some/tokenizer in a hub cache that is read without network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--some--tokenizer" / "snapshots" / REVISION


def test_hub_tokenizer_from_the_cache_alone(data, hub_folder, tmp_path):
    shutil.copytree(data.tokenizer, hub_folder)
    save_hub_tokenizer("some/tokenizer", REVISION, tmp_path / "out")
    assert tokenizer_fingerprint(tmp_path / "out") == tokenizer_fingerprint(data.tokenizer)


def test_hub_tokenizer_of_the_llama_kind_is_run_as_its_file_says(hub_folder, tmp_path):
    """Space marks by a normalizer, bytes as fall-back, a first token: AutoTokenizer and the store must agree."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary += ["▁", "a", "b", "▁a", "▁ab", "1"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(vocabulary)},
            merges=[("▁", "a"), ("▁a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    hub_folder.mkdir(parents=True)
    tokenizer.save(str(hub_folder / "tokenizer.json"))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (hub_folder / "tokenizer_config.json").write_text(json.dumps({**config, "auto_map": {"AutoTokenizer": "x.y"}}))
    save_hub_tokenizer("some/tokenizer", REVISION, tmp_path / "out")
    backend, eos_token_id, vocab_size = load_backend(tmp_path / "out")
    assert (eos_token_id, vocab_size) == (2, len(vocabulary))
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "ab a ä11"
    ids = loaded(text, add_special_tokens=False).input_ids
    assert ids == backend.encode(text, add_special_tokens=False).ids
    assert loaded.convert_ids_to_tokens(ids) == ["▁ab", "▁a", "▁", "<0xC3>", "<0xA4>", "1", "1"]


def test_hub_tokenizer_that_cannot_be_had(data, hub_folder, tmp_path):
    with pytest.raises(DataError, match=r"some/tokenizer at revision 0123456789ab: tokenizer\.json cannot") as caught:
        save_hub_tokenizer("some/tokenizer", REVISION, tmp_path / "out")
    assert "\n" not in str(caught.value)
    shutil.copytree(data.tokenizer, hub_folder)
    (hub_folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(DataError, match=f"tokenizer folder {tmp_path / 'out'} has no end-of-text token"):
        save_hub_tokenizer("some/tokenizer", REVISION, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub"]
