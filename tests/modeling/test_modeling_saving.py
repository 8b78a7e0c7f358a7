"""A saved model gives the same logits and text in a fresh process, tied and untied; the CPU path never needs fla."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import torch

LOAD = """
import sys, torch
import hwh_core.modeling
from transformers import AutoConfig, AutoModelForCausalLM
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(model).__name__ == "HwHForCausalLM", type(model)
    assert AutoConfig.from_pretrained(folder).layers == model.config.layers
    ids = torch.load(folder + "/ids.pt", weights_only=True)
    with torch.no_grad():
        logits = model(ids).logits
        text = model.generate(ids, max_new_tokens=6, do_sample=False)
    frequencies = [module.inv_freq for _, _, module in model.rope_groups()]
    torch.save({"logits": logits, "inv_freq": frequencies, "text": text}, folder + "/fresh.pt")
assert "fla" not in sys.modules, "the CPU path imported fla"
assert not [name for name in sys.modules if name.startswith("hwh_kernels.") and name.endswith("_triton")], "or a kernel"
"""


def test_logits_are_identical_in_a_fresh_process(make_model, tokens, tmp_path: Path):
    expected = {}
    for name, tied in itertools.product(("transformer", "hwh_std_r", "hwh_swa"), (False, True)):
        model = make_model(name, tie_embeddings=tied)
        folder = tmp_path / f"{name}-{tied}"
        model.save_pretrained(folder)
        torch.save(tokens(2, 40), folder / "ids.pt")
        with torch.no_grad():
            expected[folder] = model(tokens(2, 40)).logits, [m.inv_freq for _, _, m in model.rope_groups()]
            torch.save(model.generate(tokens(2, 40), max_new_tokens=6, do_sample=False), folder / "text.pt")
    command = [sys.executable, "-c", LOAD, *map(str, expected)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for folder, (logits, frequencies) in expected.items():
        fresh = torch.load(folder / "fresh.pt", weights_only=True)
        assert torch.equal(fresh["logits"], logits)
        assert fresh["text"].shape == (2, 46)
        assert torch.equal(fresh["text"], torch.load(folder / "text.pt", weights_only=True))
        assert len(fresh["inv_freq"]) == len(frequencies) > 0
        assert all(torch.equal(a, b) for a, b in zip(fresh["inv_freq"], frequencies, strict=True))


def test_tied_weights_are_stored_once_and_stay_tied(make_model, tmp_path):
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    make_model("hwh_std", tie_embeddings=True).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (not a dict)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_the_readmes_lines_open_a_trained_model(make_model, tmp_path):
    """As they stand there, in a fresh process, with another folder."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    make_model("hwh_std").save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, []))).save_pretrained(tmp_path)
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    (lines,) = (
        block for block in re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S) if "hwh_core.modeling" in block
    )
    lines, replaced = re.subn(r"^folder = .*$", f"folder = {str(tmp_path)!r}", lines, flags=re.M)
    assert replaced == 1
    code = f"{lines}\nprint(type(model).__name__, tokenizer('a')['input_ids'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "HwHForCausalLM [0]\n", done.stderr
