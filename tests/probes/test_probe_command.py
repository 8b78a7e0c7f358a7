"""`hwh probe`: one command from a model to head classes, which goes on where it was killed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf
from probe_helpers import HYBRID_SHAPE, VOCABULARY, controlled_model, parsed
from torch.multiprocessing.reductions import StorageWeakRef

import hwh_core
from hwh_core.commands import probe
from hwh_core.probes import analysis, behavior
from hwh_core.probes.behavior import behavior_scores
from hwh_core.probes.capture import stream_layers
from hwh_core.probes.errors import ProbeError
from hwh_core.probes.measure import measure_maps
from hwh_core.probes.norms import ARRAYS as NORM_ARRAYS
from hwh_core.probes.norms import measure_norms
from hwh_core.probes.pretrained import load_model, load_tokenizer
from hwh_core.probes.samples import Source, take_samples
from hwh_core.scripting import UserError

SMALL = ("--num-samples", 3, "--length", 160, "--queries", 8, "--windows", 8, 16, "--window", 8, "--sinks", 1, 4)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"context": f"The river {n} is long under bridge {n}.", "question": f"Which river {n}?"} for n in range(9)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def run(*arguments) -> int:
    return probe.run(parsed(probe, "probe", *arguments))


def arrays(folder):
    found = {}
    for name in ("probe.npz", "behavior.npz", "norms.npz"):
        with np.load(folder / name) as file:
            found |= {key: file[key] for key in file.files}
    return found


def test_one_command_writes_maps_scores_and_classes(random_llama, questions, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(random_llama, "--samples", f"squad:{questions}", "--out", out, *SMALL) == 0
    printed = capsys.readouterr().out
    assert "layer   1: RPD is highest at frequency" in printed
    assert "heads {'retrieval':" in printed
    names = {"probe.npz", "behavior.npz", "norms.npz", "heads.csv", "bands.json"}
    assert {p.name for p in out.iterdir()} == names | {f"{n}.manifest.json" for n in names} | {
        "probe.json", "behavior.json", "norms.json", "heads.parquet",
    }  # fmt: skip
    # The same as each part on its own.
    model, tokenizer = load_model(random_llama), load_tokenizer(random_llama)
    examples, _ = take_samples(Source("squad", (questions,)), tokenizer, 160, 3, 0)
    prompts = np.array([example.prompt() for example in examples])
    maps = measure_maps(model, None, prompts, 8, progress=False)
    norms = measure_norms(model, prompts, 8, progress=False)
    scores = behavior_scores(model, examples, 8, [8, 16], [1, 4], progress=False)
    found = arrays(out)
    norm_arrays = {name: getattr(norms, name) for name in NORM_ARRAYS}
    for name, value in (maps.arrays() | scores.arrays() | norm_arrays).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-7, err_msg=name)
    heads = pd.read_csv(out / "heads.csv")
    assert len(heads) == 2 * 6
    np.testing.assert_allclose(heads["qr"], scores.qr.mean(axis=0).ravel(), rtol=1e-4)
    about = json.loads((out / "probe.json").read_text())
    assert (about["samples"], about["num_samples"], about["training_length"]) == ("squad", 3, 4096)
    assert json.loads((out / "behavior.json").read_text())["default_window"] == 8
    assert run(random_llama, "--samples", f"squad:{questions}", "--out", out, *SMALL) == 0
    assert "holds this probe already" in capsys.readouterr().out


def test_packed_questions_with_line_separators_give_the_same(random_llama, tmp_path):
    """As a plain file gives with these characters as escapes; the manifest names the file that was given."""
    rows = [{"context": f"The river {n}\u2028is long.", "question": f"Which river {n}?"} for n in range(9)]
    plain, packed = tmp_path / "plain.jsonl", tmp_path / "rows.jsonl.gz"
    plain.write_text("\n".join(map(json.dumps, rows)))
    packed.write_bytes(gzip.compress("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()))
    for path in (plain, packed):
        assert run(random_llama, "--samples", f"squad:{path}", "--out", tmp_path / path.stem, *SMALL) == 0
    one, two = arrays(tmp_path / "plain"), arrays(tmp_path / "rows.jsonl")
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert json.loads((tmp_path / "rows.jsonl" / "probe.json").read_text())["files"] == [str(packed)]


def test_a_killed_probe_goes_on_after_its_finished_samples(random_llama, questions, tmp_path, monkeypatch, capsys):
    one = analysis._probe_one
    calls = []

    def killed_at_the_third(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return one(*arguments)

    command = (random_llama, "--samples", f"squad:{questions}", *SMALL, "--out")
    run(*command, tmp_path / "whole")
    monkeypatch.setattr(analysis, "_probe_one", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(*command, tmp_path / "out")
    assert not (tmp_path / "out" / "probe.npz").exists()
    # A changed setting is refused before anything is measured.
    monkeypatch.setattr(analysis, "_probe_one", None)
    with pytest.raises(UserError, match=r"length was 160, is 128.*--restart"):
        run(*command, tmp_path / "out", "--length", 128)
    left = []
    monkeypatch.setattr(analysis, "_probe_one", lambda *arguments: left.append(1) or one(*arguments))
    capsys.readouterr()
    assert run(*command, tmp_path / "out") == 0
    assert len(left) == 1
    assert "going on after 2 finished samples of 3" in capsys.readouterr().err
    assert not (tmp_path / "out" / "samples").exists()
    whole, out = arrays(tmp_path / "whole"), arrays(tmp_path / "out")
    for name in whole:
        np.testing.assert_array_equal(whole[name], out[name], err_msg=name)


def test_another_model_or_setting_is_refused_or_begins_anew(random_llama, questions, tmp_path):
    out = tmp_path / "out"
    command = (random_llama, "--samples", f"squad:{questions}", "--out", out, *SMALL)
    run(*command)
    model, tokenizer = load_model(random_llama), load_tokenizer(random_llama)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] += 0.01
    model.save_pretrained(tmp_path / "changed")
    tokenizer.save_pretrained(tmp_path / "changed")
    changed = (tmp_path / "changed", *command[1:])
    with pytest.raises(UserError, match=r"out: holds a probe with other settings or another model \(model was"):
        run(*changed)
    with pytest.raises(UserError, match=r"num_queries was 8, is 4"):
        run(*command, "--queries", 4)
    before = arrays(out)["rpd"]
    assert run(*changed, "--restart") == 0
    assert not np.array_equal(before, arrays(out)["rpd"])


def test_text_without_evidence_has_no_qr_score(random_llama, corpus, tmp_path):
    text, out = tmp_path / "mine.txt", tmp_path / "out"
    text.write_text("\n".join(corpus.texts), encoding="utf-8")
    assert run(random_llama, "--samples", f"text:{text}", "--out", out, *SMALL) == 0
    found = arrays(out)
    assert np.isnan(found["qr"]).all()
    assert np.isfinite(found["ld"]).all()
    assert json.loads((out / "behavior.json").read_text())["undefined"]["qr_scores"] == 3 * 2 * 6
    assert json.loads((out / "bands.json").read_text())["validation"] is None
    assert pd.read_csv(out / "heads.csv")["qr"].isna().all()


def test_layers_with_other_frequencies_have_bands_of_their_own(corpus, questions, tmp_path):
    """Gemma 3: windowed layers rotate with another base than the others."""
    tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = tf.Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, sliding_window=64, layer_types=kinds, initializer_range=0.2,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tf.Gemma3ForCausalLM(config).save_pretrained(tmp_path / "gemma3")
    tokenizer.save_pretrained(tmp_path / "gemma3")
    out = tmp_path / "out"
    assert run(tmp_path / "gemma3", "--samples", f"squad:{questions}", "--out", out, *SMALL) == 0
    found = arrays(out)
    local, full = 1e4 ** -(np.arange(16) / 16), 1e6 ** -(np.arange(16) / 16)
    np.testing.assert_allclose(found["layer_inv_freq"], [local, full, local, full], rtol=1e-5)
    np.testing.assert_allclose(found["inv_freq"], full, rtol=1e-5)
    bands = json.loads((out / "bands.json").read_text())
    assert bands["bands_of_layers"] == [1, 3]
    assert [row["layer"] for row in bands["band"]["layers"]] == [1, 3]
    [other] = bands["other_frequencies"]
    assert [row["layer"] for row in other["band"]["layers"]] == [0, 2]
    assert other["band"]["search_range"][0] > 0
    heads = pd.read_csv(out / "heads.csv")
    assert heads["layer"].tolist() == np.repeat(range(4), 4).tolist()


def test_our_own_models_are_probed(corpus, questions, tmp_path):
    """A controlled model in its folder; hybrids whose layers hold other numbers of heads get maps but no classes."""
    tokenizer = tf.AutoTokenizer.from_pretrained(corpus.tokenizer)
    for name, model in (
        ("controlled", controlled_model(attention_head_dim=8, num_attention_heads=4)),
        ("hybrid", controlled_model(architecture="hwh_std_r", **(HYBRID_SHAPE | {"num_layers": 8}))),
    ):
        model.config.max_position_embeddings = 256
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        out = tmp_path / f"{name}_out"
        assert run(tmp_path / name, "--samples", f"squad:{questions}", "--out", out, *SMALL) == 0
        found = arrays(out)
        assert np.isfinite(found["qr"]).any()
        np.testing.assert_array_equal(np.isnan(found["q_norm"]), np.isnan(found["rpd"]))
        assert (out / "heads.csv").is_file() == (name == "controlled")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--queries", 65, "--length", 64), "--queries: 65 is more than --length 64"),
        (("--num-samples", 1), "--num-samples: 1 is not at least 2"),
        (("--length", 0), "--length: 0 is not a positive number"),
        (("--length", 9000), "more than the 4096 positions"),
        (("--length", 1, "--queries", 1), "--length: 1 is not at least 2"),
        (("--window", 99), "--window: 99, which heads.csv shows, is not among --windows"),
        (("--num-sinks", 3), "--num-sinks: 3, which heads.csv shows, is not among --sinks"),
        (("--windows", 8, 8, "--window", 8), "--windows: 8 stands there twice"),
        (("--windows", 0, 8, "--window", 8), "--windows: 0 is not at least 1"),
        (("--sinks", -1, 4, "--num-sinks", 4), "--sinks: -1 is not at least 0"),
        (("--seed", -1), "--seed: -1 is not between 0 and 4294967295"),
        (("--backend", "triton", "--length", 300), "backend: triton needs float32 on a CUDA device"),
    ],
)
def test_options_that_do_not_fit_are_named(random_llama, tmp_path, options, named):
    with pytest.raises(UserError, match=named):
        run(random_llama, "--samples", "ruler", "--out", tmp_path / "out", *SMALL, *options)


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_file_in_place_of_the_folder_is_named(random_llama, tmp_path, inside):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"--out: .*taken is a file; name a folder"):
        run(random_llama, "--samples", "ruler", "--out", tmp_path / "taken" / inside, *SMALL)
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            "none/there",
            r"none/there: no such folder .* give none/there@<commit> with the 40 .*/none/there/commits/main",
        ),
        ("owner/name@main", r"which commit main is; give owner/name@<commit> with the 40 hexadecimal digits"),
        ("not/there/model", r"no such folder or \.gguf file.*owner/name@<commit>.*owner/name/commits/main"),
        ("none/there.gguf", r"none/there\.gguf: no such folder or \.gguf file"),
        ("rows.jsonl", r"rows\.jsonl: is no \.gguf file"),
    ],
)
def test_models_that_are_not_there_are_named(questions, tmp_path, monkeypatch, model, named):
    """What a hub says of such names is tested with one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=named):
        run(model, "--samples", "ruler", "--out", tmp_path / "out")


def saved(config, folder, corpus):
    """Folder of a random model of a config with the corpus' tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tf.AutoTokenizer.from_pretrained(corpus.tokenizer).save_pretrained(folder)
    return folder


NO_ROPE = {
    "gpt2": tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY),
    "opt": tf.OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=VOCABULARY,
        word_embed_proj_dim=32,
    ),
    "mamba": tf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY, state_size=4),
    "bloom": tf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCABULARY),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ROPE)
def test_a_model_without_rope_is_told_so_and_leaves_nothing(random_llama, corpus, questions, tmp_path, name):
    folder, out = saved(NO_ROPE[name], tmp_path / name, corpus), tmp_path / "out"
    command = ("--samples", f"squad:{questions}", "--out", out, *SMALL)
    with pytest.raises(UserError, match=rf"{name} \(\w+\): has no rotary position embedding that can be read"):
        run(folder, *command)
    assert not out.exists()
    assert run(random_llama, *command) == 0, "the next model needs no --restart"


@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        (
            "gpt-oss",
            tf.GptOssConfig(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                intermediate_size=48, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2,
                vocab_size=VOCABULARY,
            ),
            "uses 's_aux'",
        ),
        (
            "falcon",
            tf.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY),
            "it rotates q and k twice",
        ),
    ],
)  # fmt: skip
def test_a_model_with_rope_that_is_refused_is_named(corpus, questions, tmp_path, name, config, reason):
    folder, out = saved(config, tmp_path / name, corpus), tmp_path / "out"
    with pytest.raises(UserError, match=rf"^\S*{name} \({type(config).__name__[:-6]}ForCausalLM\): .*{reason}"):
        run(folder, "--samples", f"squad:{questions}", "--out", out, *SMALL)
    assert not out.exists()


def test_what_was_killed_before_its_first_sample_is_no_other_probe(random_llama, questions, tmp_path):
    """Settings alone, as a killed process leaves them, are in nobody's way; finished samples are kept from others."""
    samples = tmp_path / "out" / "samples"
    samples.mkdir(parents=True)
    (samples / "settings.json").write_text('{"model": "another"}')
    (samples / ".00000.tmp").mkdir()
    assert run(random_llama, "--samples", f"squad:{questions}", "--out", tmp_path / "out", *SMALL) == 0
    samples = tmp_path / "other" / "samples"
    (samples / "00000").mkdir(parents=True)
    (samples / "settings.json").write_text('{"model": "another"}')
    with pytest.raises(UserError, match="model was another"):
        run(random_llama, "--samples", f"squad:{questions}", "--out", tmp_path / "other", *SMALL)
    assert (samples / "00000").is_dir()


@pytest.mark.parametrize("tensor", ["model.layers.1.self_attn.q_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(random_llama, questions, tmp_path, tensor, value):
    model, tokenizer = load_model(random_llama), load_tokenizer(random_llama)
    with torch.no_grad():
        model.get_parameter(tensor).view(-1)[3] = value
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "broken")
    with pytest.raises(UserError, match=rf"1 of \d+ weights in {tensor} are NaN or infinite"):
        run(tmp_path / "broken", "--samples", f"squad:{questions}", "--out", tmp_path / "out", *SMALL)
    assert not (tmp_path / "out").exists()


def test_half_precision_keeps_the_models_type(random_llama, questions, tmp_path):
    out = tmp_path / "out"
    assert run(random_llama, "--samples", f"squad:{questions}", "--out", out, *SMALL, "--dtype", "bfloat16") == 0
    about = json.loads((out / "probe.json").read_text())
    assert about["settings"]["dtype"] == "bfloat16"
    assert 1e-6 < about["max_logit_error"] < 3e-2
    whole = load_model(random_llama)
    assert next(whole.parameters()).dtype == torch.float32


def test_the_function_is_the_command(random_llama, questions, tmp_path):
    model, tokenizer = load_model(random_llama), load_tokenizer(random_llama)
    examples, _ = take_samples(Source("squad", (questions,)), tokenizer, 160, 3, 0)
    settings = analysis.BehaviorSettings((8, 16), (1, 4), 8, 4)
    result = hwh_core.probe_model(model, tokenizer, examples, 8, settings, progress=False)
    assert set(result) == {
        "rfis", "rpd", "inv_freq", "null", "sample_weight", "layer_index", "qr", "qr_calibrated", "ld", "windows",
        "sinks", "q_norm", "k_norm", "scaling",
    }  # fmt: skip
    assert result["rpd"].shape == (3, 2, 6, 4)
    run(random_llama, "--samples", f"squad:{questions}", "--out", tmp_path / "out", *SMALL)
    for name, value in arrays(tmp_path / "out").items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)
    texts = hwh_core.probe_model(model, tokenizer, ["the river of winter"] * 2, 2, settings, progress=False)
    assert np.isnan(texts["qr"]).all()
    with pytest.raises(ProbeError, match="all samples must be equally long"):
        hwh_core.probe_model(model, tokenizer, [examples[0], analysis.Example([5, 6], [], [], [])], 2, progress=False)


def test_a_folder_of_finished_samples_holds_nothing_else(random_llama, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    model = load_model(random_llama)
    with pytest.raises(ProbeError, match="holds other files"):
        hwh_core.probe_model(model, None, np.ones((2, 20), int), 4, resume=tmp_path, progress=False)


def test_a_probe_that_was_killed_as_it_began_begins_again(random_llama, tmp_path):
    (tmp_path / ".settings.json.tmp.json").write_text('{"model')
    model = load_model(random_llama)
    result = hwh_core.probe_model(model, None, np.ones((2, 20), int), 4, resume=tmp_path, progress=False)
    assert result["rpd"].shape[0] == 2


def test_importing_the_package_loads_no_torch():
    code = "import hwh_core, sys; assert 'torch' not in sys.modules; assert callable(hwh_core.probe_model)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_one_layers_q_and_k_are_held_at_a_time(monkeypatch):
    """When a layer is measured, q and k of the layers before it are gone, also in the calibration's pass."""
    model = controlled_model(num_layers=5)
    ids = np.arange(60)[None].repeat(2, 0) + 5
    examples = [analysis.Example(row[:50].tolist(), [(10, 14)], row[50:].tolist(), [7, 8, 9]) for row in ids]
    seen, held = [], []

    def watched(model, ids, num_queries, consume, nope):
        def one(layer):
            held.append(sum(not storage.expired() for storage in seen))
            seen.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in (layer.q, layer.k))
            consume(layer)

        stream_layers(model, ids, num_queries, one, nope)

    monkeypatch.setattr(analysis, "stream_layers", watched)
    monkeypatch.setattr(behavior, "stream_layers", watched)
    hwh_core.probe_model(model, None, examples, 8, progress=False)
    assert held == [0] * (2 * 2 * 5), "2 samples, 2 passes, 5 layers"
