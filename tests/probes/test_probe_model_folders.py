"""Models that cannot be probed: each ends in one sentence that says what is the matter and what to do."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf
from probe_helpers import controlled_model, gguf_of, parsed

from hwh_core.commands import causal, probe
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.model_folders import check_model, load_for_probe
from hwh_core.probes.pretrained import load_model, load_tokenizer
from hwh_core.scripting import UserError

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
CODE = {"AutoConfig": "configuration_my.MyConfig", "AutoModelForCausalLM": "modeling_my.MyModel"}


def t5():
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=300, d_model=32, d_ff=48, num_layers=1, num_heads=4))


def bart():
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
             (("layers", 1), ("attention_heads", 4), ("ffn_dim", 32))}  # fmt: skip
    return tf.BartForConditionalGeneration(tf.BartConfig(vocab_size=300, d_model=32, **sizes))


def llava():
    vision = tf.CLIPVisionConfig(**VISION, projection_dim=16)
    config = tf.LlavaConfig(text_config=tf.LlamaConfig(**TEXT), vision_config=vision, image_token_id=3)
    return tf.LlavaForConditionalGeneration(config)


def vit():
    return tf.ViTForImageClassification(tf.ViTConfig(**VISION))


@pytest.fixture
def saved(random_llama, tmp_path):
    """Save a model beside the tokenizer of random_llama; gives the folder."""

    def save(model) -> Path:
        model.save_pretrained(tmp_path / "model")
        load_tokenizer(random_llama).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


@pytest.fixture
def changed(random_llama, tmp_path):
    """A copy of random_llama whose folder was changed."""

    def copy(change: Callable[[Path], None]) -> Path:
        folder = shutil.copytree(random_llama, tmp_path / "model")
        change(folder)
        return folder

    return copy


def config_with(**values) -> Callable[[Path], None]:
    """Keys of config.json changed; ``...`` takes one out."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | values
        config = {key: value for key, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))

    return change


def config_is(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text)


def refused_by_the_commands(folder: Path, corpus, tmp_path, named: str) -> None:
    """`hwh probe` ends in one line that names what is the matter, and writes nothing."""
    text = tmp_path / "mine.txt"
    text.write_text("\n\n".join(corpus.texts))
    options = ("--num-samples", 2, "--length", 64, "--queries", 8)
    arguments = parsed(probe, "probe", folder, "--samples", f"text:{text}", "--out", tmp_path / "out", *options)
    with pytest.raises(UserError, match=named) as refused:
        probe.run(arguments)
    assert "\n" not in str(refused.value)
    assert "fetch or train" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (t5, r"T5ForConditionalGeneration is an encoder-decoder; only decoder-only .* name one of these"),
        (bart, r"BartForConditionalGeneration is an encoder-decoder"),
        (llava, r"LlavaForConditionalGeneration wraps a language model with other parts \(text_config, vision_config\)"
                r".*name the text-only model"),
        (vit, r"ViTForImageClassification is no causal language model"),
    ],
)  # fmt: skip
def test_models_of_another_kind_are_named(model, named, saved, corpus, tmp_path):
    refused_by_the_commands(saved(model()), corpus, tmp_path, named)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (config_with(model_type="mine", auto_map=CODE), r"'mine' needs code of its own \(auto_map in config\.json\), "
                                                        r"which is never run; use a copy"),
        (config_with(model_type="mine"), r"transformers [\d.]+ does not know model_type 'mine' of config\.json"),
        (config_with(model_type=...), r"config\.json has no model_type; take it anew"),
        (config_is('{"model_type": '), r"config\.json is not valid JSON \(Expecting value.*\); take it anew"),
        (config_is(""), r"config\.json is not valid JSON"),
        (config_is("[1]"), r"config\.json holds list, expected a JSON object"),
        (config_with(num_attention_heads="four"), r"config\.json does not describe a model \(.*num_attention_heads"),
        (config_with(num_hidden_layers=None), r"config\.json does not describe a model \(.*num_hidden_layers"),
        (config_with(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
         r"scales rotary frequencies by 'spiral', which transformers does not know; expected one of default, "),
        (config_with(hidden_size=96), r"its weights have other shapes than config\.json says"),
        (config_with(num_hidden_layers=3), r"its files hold no weights for model\.layers\.2\.\S+ and 8 more"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has config\.json but no \.safetensors file"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
         r"holds its weights as pytorch_model\.bin, which can carry code and are not read; save the model anew"),
        (lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
         r"is an adapter without its model; merge it"),
    ],
)  # fmt: skip
def test_folders_that_do_not_fit_are_named(change, named, changed, corpus, tmp_path):
    refused_by_the_commands(changed(change), corpus, tmp_path, named)


def test_code_that_comes_with_a_model_is_not_run(changed, corpus, tmp_path):
    folder = changed(config_with(model_type="mine", auto_map=CODE))
    for name in ("configuration_my.py", "modeling_my.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    refused_by_the_commands(folder, corpus, tmp_path, "needs code of its own")
    assert not (tmp_path / "ran").exists()


def test_a_gguf_file_of_an_encoder_decoder_is_named(random_llama, tmp_path, monkeypatch):
    gguf = tmp_path / "llama.gguf"
    gguf_of(load_model(random_llama), load_tokenizer(random_llama), gguf)
    check_model(gguf)
    config = tf.T5Config(architectures=["T5ForConditionalGeneration"])
    monkeypatch.setattr(tf.AutoConfig, "from_pretrained", lambda *_, **__: config)
    with pytest.raises(ProbeError, match=r"llama\.gguf: T5ForConditionalGeneration is an encoder-decoder"):
        check_model(gguf)


def test_a_damaged_gguf_file_is_named(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF, but no more")
    with pytest.raises(ProbeError, match=r"x\.gguf: its header does not describe a model"):
        check_model(tmp_path / "x.gguf")


def test_models_that_can_be_read_still_are(random_llama, saved, tmp_path):
    """A wrapper of which transformers knows the language model, our own class, and a model without its output."""
    vision = tf.SiglipVisionConfig(**VISION)
    gemma = tf.Gemma3Config(text_config=tf.Gemma3TextConfig(**TEXT), vision_config=vision, mm_tokens_per_image=4)
    for model in (tf.Gemma3ForConditionalGeneration(gemma), controlled_model()):
        folder = saved(model)
        read = load_for_probe(folder, "float32", needs_head=True)[1]
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(dict(read.named_parameters())[name], parameter, msg=name)
        shutil.rmtree(folder)
    folder = saved(tf.LlamaModel(tf.LlamaConfig(**TEXT)))
    assert load_for_probe(folder, "float32")[1].config.num_hidden_layers == 2
    with pytest.raises(ProbeError, match=r"its files hold no weights for lm_head\.weight; config\.json is of another"):
        load_for_probe(folder, "float32", needs_head=True)


def test_causal_checks_and_the_workflow_name_them_too(saved, tmp_path, monkeypatch, capsys):
    folder = saved(t5())
    out = tmp_path / "out"
    out.mkdir()
    for name in causal.PROBE_FILES:
        (out / name).write_text('{"settings": {"dtype": "float32"}}')
    with pytest.raises(UserError, match="is an encoder-decoder"):
        causal.run(parsed(causal, "causal", folder, "--out", out, "--text", ROOT / "README.md"))
    documents = tmp_path / "documents"
    settings = {
        "fetch_pretrained": {"kind": "folder", "path": str(folder)},
        "probe_pretrained": {},
    }
    for name, given in settings.items():
        program = ROOT / "scripts" / f"{name}.py"
        arguments = ["--settings", json.dumps(given), "--output", tmp_path / name]
        if name != "fetch_pretrained":
            arguments += ["--model", folder, "--documents", documents]
        monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        with pytest.raises(SystemExit):
            runpy.run_path(str(program), run_name="__main__")
        assert "T5ForConditionalGeneration is an encoder-decoder" in capsys.readouterr().err
