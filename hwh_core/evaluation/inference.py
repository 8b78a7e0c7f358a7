"""Running a causal language model on ragged batches: loading, batches by token budget, greedy generation."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .errors import EvaluationError

#: Models of this project. They run beyond their training length (which their configuration records as
#: ``max_position_embeddings``) with plain extrapolated angles, so no length is too long for them.
OWN_MODEL_TYPES = ("hwh",)


def load_model(folder: str | Path) -> tuple[Any, Any]:
    """Model (float32, evaluation mode, on the accelerator if there is one) and tokenizer of a Hugging Face folder.

    Raises :class:`EvaluationError` if the folder is no model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(folder)
    config = folder / "config.json"
    if not config.is_file():
        raise EvaluationError(f"--model: {folder} is not a model folder in Hugging Face layout (no config.json)")
    if json.loads(config.read_text(encoding="utf-8")).get("model_type") == "hwh":
        import hwh_core.modeling  # noqa: F401  (registers the model class)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise EvaluationError(f"--model: {folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.eval().to(device), tokenizer


def position_limit(model: Any) -> int | None:
    """Longest input in tokens that the model takes, or None where any length is defined."""
    if model.config.model_type in OWN_MODEL_TYPES:
        return None
    return getattr(model.config, "max_position_embeddings", None)


def precision(device: torch.device) -> str:
    """What matrix products run in: float32 on a CPU, bfloat16 (autocast over float32 weights) on an accelerator."""
    return "float32" if device.type == "cpu" else "bfloat16"


def _autocast(device: torch.device) -> contextlib.AbstractContextManager:
    if precision(device) == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Groups of indices, longest first; padded to its longest a group holds at most ``batch_tokens`` tokens.

    A single sequence that is longer than the budget is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def sharing_groups(sequences: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Indices of all sequences, grouped under one that they are equal to or the beginning of."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    groups: dict[int, list[int]] = {}
    host = None
    # In this order a beginning stands right before what continues it, so going backwards the host comes first.
    for index in reversed(order):
        tokens = sequences[index]
        if host is None or sequences[host][: len(tokens)] != tokens:
            host = index
        groups.setdefault(host, []).append(index)
    return groups


def pad(sequences: Sequence[Sequence[int]], fill: int, side: str, device: torch.device) -> torch.Tensor:
    """Token sequences as int64 [batch, longest], padded with ``fill`` on the given side."""
    width = max(map(len, sequences))
    table = torch.full((len(sequences), width), fill, dtype=torch.long)
    for row, tokens in enumerate(sequences):
        start = 0 if side == "right" else width - len(tokens)
        table[row, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return table.to(device)


@torch.inference_mode()
def logits_from(model: Any, sequences: Sequence[Sequence[int]], first: int, fill: int) -> torch.Tensor:
    """Logits [batch, longest - first, vocabulary] at positions ``first`` and later of right-padded sequences.

    Padding stands behind every real token, which a causal model cannot see; so there is no mask. Models that can
    leave out the logits of earlier positions do (with large vocabularies these would be the largest tensor).
    """
    inputs = pad(sequences, fill, "right", model.device)
    kept = inputs.shape[1] - first
    options: dict[str, Any] = {}
    if "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = kept
    with _autocast(model.device):
        logits = model(input_ids=inputs, **options).logits
    return logits[:, -kept:]


def score_tokens(logits: torch.Tensor, targets: Sequence[int]) -> tuple[float, bool]:
    """Summed log-probability (nats) of ``targets`` [n] under ``logits`` [n, vocabulary], and whether each is argmax."""
    table = logits.float()
    wanted = torch.tensor(targets, dtype=torch.long, device=table.device)
    chosen = table.gather(1, wanted[:, None]).squeeze(1)
    log_probability = (chosen - table.logsumexp(1)).double().sum()
    return float(log_probability), bool((table.argmax(1) == wanted).all())


@torch.inference_mode()
def generate_greedy(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, fill: int, eos: int | None
) -> list[list[int]]:
    """Greedy continuations of one batch of prompts, left-padded and masked; tokens from ``eos`` on are cut off."""
    width = max(map(len, prompts))
    inputs = pad(prompts, fill, "left", model.device)
    mask = pad([[1] * len(prompt) for prompt in prompts], 0, "left", model.device)
    with _autocast(model.device):
        output = model.generate(
            input_ids=inputs,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=fill,
        )
    continuations = output[:, width:].tolist()
    return [tokens[: tokens.index(eos)] if eos is not None and eos in tokens else tokens for tokens in continuations]
