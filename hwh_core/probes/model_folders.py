"""What is the matter with a model that cannot be probed, told before its weights are read: one sentence and a mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ProbeError
from .pretrained import load_model, load_tokenizer, weights_folder
from .weights import check_loaded, check_weights

CONFIG, ADAPTER = "config.json", "adapter_config.json"
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")


def load_for_probe(
    path: Path, dtype: str, check: Callable[[Any], None] | None = None, *, needs_head: bool = False
) -> tuple[Any, Any]:
    """Tokenizer and model of a Hugging Face folder or a .gguf file, as :func:`load_model` gives it.

    ``check`` is given the model while it is still in the memory of the CPU; ``needs_head``: its logits are read, not
    its attention alone. Raises :class:`ProbeError` for models that cannot be probed, naming what is in the way, and
    for weights that are missing, of another shape, NaN or infinite.
    """
    check_model(path)

    def check_all(model: Any) -> None:
        check_loaded(model, needs_head)
        check_weights(model)
        if check is not None:
            check(model)

    try:
        return load_tokenizer(path), load_model(path, dtype=dtype, check=check_all)
    except RuntimeError as error:
        # What transformers says of weights whose shapes are not those that config.json asks for.
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ProbeError(
            f"{path}: its weights have other shapes than {CONFIG} says; take both from one source"
        ) from None


def check_model(path: Path) -> None:
    """Raise :class:`ProbeError` where a folder or .gguf file holds no causal language model that can be loaded.

    Folders are those of :func:`hwh_core.probes.pretrained.fetch_model`, or any in Hugging Face layout. No weights are
    read and no code of the model is run.
    """
    import transformers

    import hwh_core.modeling  # noqa: F401 (registers our own model class)

    path = Path(path)
    told = {"local_files_only": True, "trust_remote_code": False}
    if path.is_file():
        folder, named = path.parent, {"gguf_file": path.name}
    else:
        _refuse_adapter(path)
        folder, named = weights_folder(path), {}
        _check_type(path, _read_config(folder))
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **named, **told)
    except ImportError:
        # Packages that reading a .gguf file needs; loading it says which.
        return
    except Exception as error:  # of every kind: validators of configs raise their own
        raise ProbeError(
            f"{path}: {CONFIG if not named else 'its header'} does not describe a model ({_line(error)}); take it anew "
            "from where the model came"
        ) from None
    _check_kind(path, config)
    _check_rotation(path, config)
    if not named and not any(folder.glob("*.safetensors")):
        others = sorted(file.name for pattern in OTHER_WEIGHTS for file in folder.glob(pattern))
        if others:
            raise ProbeError(
                f"{path}: holds its weights as {', '.join(others)}, which can carry code and are not read; save the "
                "model anew with save_pretrained, which writes .safetensors"
            )
        raise ProbeError(f"{path}: has {CONFIG} but no .safetensors file; put the weights beside it")


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # errors of JSON and Unicode
        raise ProbeError(f"{file} is not valid JSON ({_line(error)}); take it anew from where the model came") from None
    if not isinstance(config, dict):
        raise ProbeError(f"{file} holds {type(config).__name__}, expected a JSON object; take it anew")
    return config


def _refuse_adapter(path: Path) -> None:
    if (path / ADAPTER).is_file() and not (path / CONFIG).is_file():
        raise ProbeError(
            f"{path}: is an adapter without its model; merge it into the model (merge_and_unload of peft), save that "
            "with save_pretrained, and name its folder"
        )


def _check_type(path: Path, config: dict[str, Any]) -> None:
    """Raise where transformers does not know the type of a config, or only with code that comes with the model."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if kind in CONFIG_MAPPING:
        return
    if config.get("auto_map"):
        raise ProbeError(
            f"{path}: model type {kind!r} needs code of its own (auto_map in {CONFIG}), which is never run; use a copy "
            "in a layout that transformers has itself, which the model's page may link, or the model in memory with "
            "hwh_core.probe_model"
        )
    if kind is None:
        raise ProbeError(f"{path}: {CONFIG} has no model_type; take it anew from where the model came")
    raise ProbeError(
        f"{path}: transformers {transformers.__version__} does not know model_type {kind!r} of {CONFIG}; correct it, "
        "or use a copy in a layout that this version has"
    )


def _check_kind(path: Path, config: Any) -> None:
    """Raise for models that are no causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    name = (config.architectures or [config.model_type])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise ProbeError(
            f"{path}: {name} is an encoder-decoder; only decoder-only language models with rotary position embedding "
            "can be probed: name one of these"
        )
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    if config.sub_configs:
        raise ProbeError(
            f"{path}: {name} wraps a language model with other parts ({', '.join(sorted(config.sub_configs))}), and "
            "transformers does not load that one alone; name the text-only model that it was made from"
        )
    raise ProbeError(
        f"{path}: {name} is no causal language model; only these, with rotary position embedding, can be probed"
    )


def _check_rotation(path: Path, config: Any) -> None:
    """Raise for a scaling of rotary frequencies that transformers does not know."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known = ("default", *ROPE_INIT_FUNCTIONS)
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    # Where layers rotate with frequencies of their own there is one such entry for each kind of layer.
    for entry in (parameters, *parameters.values()):
        kind = entry.get("rope_type", "default") if isinstance(entry, dict) else "default"
        if kind not in known:
            raise ProbeError(
                f"{path}: {CONFIG} scales rotary frequencies by {kind!r}, which transformers does not know; expected "
                f"one of {', '.join(known)}"
            )


def _line(error: Exception) -> str:
    """An error in one line: the first that says something."""
    return " ".join(str(error).split())[:200] or type(error).__name__
