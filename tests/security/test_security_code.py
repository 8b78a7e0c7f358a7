"""No foreign code runs: none that comes with a model, none in a pickle, and no call that could is in our sources."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hwh_core.data import store as token_store
from hwh_core.data.errors import DataError
from hwh_core.evaluation import inference
from hwh_core.evaluation.errors import EvaluationError
from hwh_core.files import sha256_of, write_json
from hwh_core.gpband.errors import BandError
from hwh_core.gpband.maps import read_npz
from hwh_core.probes import pretrained
from hwh_core.probes.errors import ProbeError
from hwh_core.training.checkpoint import CheckpointFolder

ROOT = Path(__file__).resolve().parents[2]
UNPICKLING = ("pickle", "joblib", "dill", "shelve", "marshal")
SOURCES = ("hwh_core", "scripts", "bundle", "benchmarks", "kernels", "requirements")


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.fixture
def mark(tmp_path):
    """A file that hostile code makes; nothing may have."""
    path = tmp_path / "hacked"
    yield path
    assert not path.exists()


def test_the_hostile_pickle_is_one(tmp_path):
    pickle.loads(pickle.dumps(Hostile(tmp_path / "made")))
    assert (tmp_path / "made").exists()


def model_with_code(folder: Path, mark: Path, model_type: str) -> Path:
    """A model folder whose configuration asks for code that lies beside it."""
    folder.mkdir()
    names = {"AutoConfig": "C", "AutoModelForCausalLM": "M", "AutoTokenizer": ["T", None]}
    auto_map = {key: "evil.C" if name == "C" else "evil.M" for key, name in names.items()}
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    config = {"model_type": model_type, "auto_map": auto_map, "architectures": ["M"]}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil.T", None]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("model_type", ["evil", "llama"])
@pytest.mark.parametrize(
    ("load", "error"),
    [
        (pretrained.load_model, ProbeError),
        (pretrained.load_tokenizer, ProbeError),
        (inference.load_model, EvaluationError),
    ],
)
def test_code_beside_a_model_is_not_run(tmp_path, mark, monkeypatch, load, error, model_type):
    """Nor is anybody asked whether it should be."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with pytest.raises(error):
        load(model_with_code(tmp_path / "model", mark, model_type))


def test_weights_in_a_pickle_are_not_unpickled(tmp_path, mark):
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 8,
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | sizes))
    torch.save({"model.embed_tokens.weight": Hostile(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(ProbeError, match="safetensors"):
        pretrained.load_model(folder)
    with pytest.raises(EvaluationError, match="safetensors"):
        inference.load_model(folder)


def test_a_checkpoint_is_not_unpickled(tmp_path, mark):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", {}, 1)
    folder = checkpoints.save(1, 0.0, {"w": torch.zeros(2)}, {})
    torch.save({"adamw": Hostile(mark)}, folder / "optimizer.pt")
    state = json.loads((folder / "state.json").read_text())
    state["sha256"]["optimizer.pt"] = sha256_of(folder / "optimizer.pt")
    write_json(folder / "state.json", state)
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        checkpoints.load_latest()


def test_arrays_are_not_unpickled(tmp_path, mark):
    hostile = np.array([Hostile(mark)], dtype=object)
    np.savez(tmp_path / "probe.npz", rfis=hostile)
    with pytest.raises(BandError, match="allow_pickle=False"):
        read_npz(tmp_path / "probe.npz", ("rfis",))
    folder = tmp_path / "store"
    folder.mkdir()
    np.save(folder / "documents.npy", hostile)
    (folder / "tokens.bin").write_bytes(bytes(2))
    sizes = {"dtype": "uint16", "tokens": 1, "documents": 0}
    write_json(folder / "index.json", {"format": token_store.FORMAT, "version": token_store.VERSION} | sizes)
    with pytest.raises(DataError, match=r"documents\.npy is damaged .*Python objects"):
        token_store.TokenStore.open(folder)


def calls(tree: ast.AST):
    """Name of what is called, as written, with its keywords, of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: word.value for word in node.keywords}


def keyword(words: dict, name: str) -> object:
    value = words.get(name)
    return value.value if isinstance(value, ast.Constant) else None


def complaints(path: Path) -> list[str]:
    """Calls and imports in a source that can run what a file says."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [
            f"imports {name}"
            for name in names
            if name.split(".")[0] in ("pickle", "joblib", "dill", "shelve", "marshal")
        ]
    for name, words in calls(tree):
        last = name.rpartition(".")[2]
        unsafe = (
            name in ("eval", "exec", "os.system", "os.popen")
            or last in ("read_pickle", "unsafe_load", "extractall", "full_load")
            or (name == "torch.load" and keyword(words, "weights_only") is not True)
            or (name == "np.load" and keyword(words, "allow_pickle") is not False)
            or (name == "yaml.load")
            or keyword(words, "shell") is True
            or keyword(words, "trust_remote_code") is True
            or (name == "jinja2.Environment" and keyword(words, "autoescape") is None)
        )
        found += [f"calls {name}"] if unsafe else []
    return found


def test_no_source_of_ours_can_run_what_a_file_says():
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    assert {str(path): found for path in files if (found := complaints(path))} == {}


def test_models_and_tokenizers_are_loaded_without_their_code():
    """Every call of from_pretrained on an Auto class says so, in its own words or in a dict that it is given."""
    for path in (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, words in calls(tree):
            if name.startswith("Auto") and name.endswith(".from_pretrained"):
                told = keyword(words, "trust_remote_code") is False or None in words
                assert told, f"{path}: {name} without trust_remote_code=False"
