"""Hugging Face model over head groups.

Importing this package registers :class:`HwHConfig` and :class:`HwHForCausalLM` with the library's Auto classes, so that
``AutoModelForCausalLM.from_pretrained(folder)`` loads a saved model in a fresh process.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from .build import build_model
from .cache import HwHCache
from .configuration import HwHConfig
from .model import HwHForCausalLM

AutoConfig.register(HwHConfig.model_type, HwHConfig, exist_ok=True)
AutoModelForCausalLM.register(HwHConfig, HwHForCausalLM, exist_ok=True)

__all__ = ["HwHCache", "HwHConfig", "HwHForCausalLM", "build_model"]
