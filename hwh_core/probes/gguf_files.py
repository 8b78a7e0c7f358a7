"""Models in GGUF files, read by transformers; here: that no scaling of rotary frequencies in the file is lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ProbeError, UnsupportedModelError

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of the published Llama 3.1, 3.2 and 3.3 models, which differ in their factor alone."""

FACTORS = "rope_freqs.weight"
PART_OF_MANY = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def load_gguf(path: Path, dtype: Any) -> Any:
    """The causal language model of a GGUF file, its weights dequantised to ``dtype`` (a torch type).

    transformers reads the RoPE base of a file but no scaling of its frequencies. Llama 3's is put into the config where
    the file's factors are exactly that; any other is refused. Raises :class:`ProbeError`.
    """
    if PART_OF_MANY.search(path.name):
        raise ProbeError(f"{path}: is one part of several; join them into one .gguf file, or use a safetensors folder")
    try:
        import gguf
        from transformers import AutoConfig, AutoModelForCausalLM

        # Other files may lie beside it, with code among them.
        told = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(path.parent, **told)
        reader = gguf.GGUFReader(path)
        factors = frequency_factors(reader, path)
        if factors is not None:
            config.rope_parameters = llama3_parameters(factors, config, path)
        model = AutoModelForCausalLM.from_pretrained(path.parent, config=config, dtype=dtype, **told)
    except ImportError as error:
        raise ProbeError(f"{path.name}: reading GGUF needs the packages gguf and accelerate ({error})") from None
    return model


def frequency_factors(reader: Any, path: Path) -> np.ndarray | None:
    """What the file divides each unscaled frequency by [F], or None for 1.

    Raises :class:`UnsupportedModelError` for scalings that are told in another way (YaRN, linear, longrope).
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    lost = [name for name in tensors if name.startswith("rope_factors_")]
    for name, field in reader.fields.items():
        if name.endswith((".rope.scaling.type", ".rope.scale_linear")):
            value = field.contents()
            if value not in ("none", 1.0):
                lost.append(f"{name} = {value}")
    if lost:
        raise UnsupportedModelError(
            f"{path}: scales its rotary frequencies ({', '.join(lost)}), which is not read from GGUF files; use the "
            "model's safetensors"
        )
    if FACTORS not in tensors:
        return None
    factors = np.asarray(tensors[FACTORS].data, dtype=np.float64)
    return None if (factors == 1).all() else factors


def llama3_parameters(factors: np.ndarray, config: Any, path: Path) -> dict[str, Any]:
    """``rope_parameters`` of a config whose Llama 3 scaling divides the unscaled frequencies by ``factors`` [F]."""
    import copy

    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = config.rope_parameters["rope_theta"]
    parameters = {"rope_type": "llama3", "rope_theta": theta, "factor": float(factors.max()), **LLAMA3}
    scaled = copy.deepcopy(config)
    scaled.rope_parameters = parameters
    found = ROPE_INIT_FUNCTIONS["llama3"](scaled, "cpu")[0].double().numpy()
    unscaled = float(theta) ** (-np.arange(found.size) / found.size)
    if factors.shape != found.shape or not np.allclose(unscaled / found, factors, rtol=1e-4):
        raise UnsupportedModelError(
            f"{path}: {FACTORS} holds factors from {factors.min():g} to {factors.max():g} that are not those of Llama "
            "3.1 to 3.3; use the model's safetensors"
        )
    return parameters
