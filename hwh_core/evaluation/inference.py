"""Running a causal language model on ragged batches: loading, batches by token budget, greedy generation."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .errors import EvaluationError

#: Models of this project. They run beyond their training length (which their configuration records as
#: ``max_position_embeddings``) with plain extrapolated angles, so no length is too long for them.
OWN_MODEL_TYPES = ("hwh",)
#: Layers of the library's models whose cache holds keys and values.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
#: Models of the library (5.24) that write something else in a batch than alone: padding, or the other prompts, get into
#: their state. Found by trying 22 kinds of models, attention, recurrent and mixed; the others write the same.
ONE_BY_ONE = ("rwkv", "minimax")
#: What a forward pass costs beside its tokens on a CPU, in tokens: measured with SmolLM2-135M on one thread.
CPU_PASS = 48
#: The output layer is given at least so many positions.
LEAST_POSITIONS = 16
#: Positions whose log-softmax is made at once: more would only hold more memory.
SCORED_AT_ONCE = 1024


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
        told = {"local_files_only": True, "trust_remote_code": False}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **told)
        tokenizer = AutoTokenizer.from_pretrained(folder, **told)
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


class Budget(NamedTuple):
    """Tokens that a batch holds at most, padding included, and what another forward pass costs, in tokens."""

    tokens: int
    a_pass: int

    @classmethod
    def on(cls, device: torch.device, tokens: int) -> Budget:
        """On a CPU a pass reads all weights in the time of some tokens, whatever their number; on an accelerator the
        size of a full batch tells what suits it."""
        return cls(tokens, CPU_PASS if device.type == "cpu" else tokens // 32)


def token_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Groups of indices for generation, longest first; padded to its longest a group keeps to ``batch_tokens``.

    A pass for every new token makes another batch cost more than padding does, as much as a full batch or more.
    """
    return cheapest_batches(lengths, Budget(batch_tokens, batch_tokens))


def cheapest_batches(lengths: Sequence[int], budget: Budget, held: int = 0) -> list[list[int]]:
    """Groups of indices, longest first, such that their tokens, padded to the longest of each, and passes cost least.

    With its padding and ``held`` further tokens a sequence, a group keeps to the budget; a single sequence that is
    longer is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    negative, counts = np.unique([-length for length in lengths], return_counts=True)
    distinct, ends = -negative, np.concatenate([[0], np.cumsum(counts)])
    rows = np.maximum(budget.tokens // (distinct + held), 1)
    # The least cost of the longest up to each length, by where the last group begins.
    least, begins = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for last in range(1, len(ends)):
        count = ends[last] - ends[:last]
        costs = least[:last] + count * distinct[:last] - (-count // rows[:last]) * budget.a_pass
        begins[last] = costs.argmin()
        least[last] = costs[begins[last]]
    groups: list[list[int]] = []
    last = len(distinct)
    while last:
        first = begins[last]
        group, size = order[ends[first] : ends[last]], int(rows[first])
        groups[:0] = [group[start : start + size] for start in range(0, len(group), size)]
        last = first
    return groups


def pad(sequences: Sequence[Sequence[int]], fill: int, side: str, device: torch.device) -> torch.Tensor:
    """Token sequences as int64 [batch, longest], padded with ``fill`` on the given side."""
    width = max(map(len, sequences))
    table = torch.full((len(sequences), width), fill, dtype=torch.long)
    for row, tokens in enumerate(sequences):
        start = 0 if side == "right" else width - len(tokens)
        table[row, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return table.to(device)


def _takes(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def cache_argument(model: Any) -> str | None:
    """Under which name the model takes a cache that several tokens can continue; None if there is no such.

    transformers renamed ``past_key_values`` to ``cache``, in the model's output too. Its recurrent layers are only made
    to be continued token by token, so of its models those with nothing but attention count.
    """
    if model.config.model_type not in OWN_MODEL_TYPES:
        kinds = set(getattr(model.config, "layer_types", None) or ())
        if getattr(model, "_is_stateful", False) or not kinds <= ATTENTION_LAYERS:
            return None
    return next((name for name in ("cache", "past_key_values") if _takes(model, name)), None)


@torch.inference_mode()
def cache_of(model: Any, beginnings: Sequence[Sequence[int]]) -> Any:
    """The model's cache after these token sequences, all of one length."""
    options = {"logits_to_keep": 1} if _takes(model, "logits_to_keep") else {}
    with _autocast(model.device):
        output = model(input_ids=pad(beginnings, 0, "right", model.device), use_cache=True, **options)
    return output.cache if "cache" in output else output.past_key_values


@torch.inference_mode()
def logits_at(
    model: Any,
    sequences: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, range]],
    fill: int,
    cache: Any = None,
    rows: Sequence[int] = (),
) -> torch.Tensor:
    """Logits [total length of ``spans``, vocabulary] at these places (sequence, positions) of a batch.

    With ``cache`` each sequence continues one of its rows; it is changed. Padding stands behind every real token, which
    a causal model cannot see, so there is no mask.
    """
    inputs = pad(sequences, fill, "right", model.device)
    if cache is None:
        return _logits_at(model, inputs, spans, {"use_cache": False} if _takes(model, "use_cache") else {})
    cache.batch_select_indices(torch.tensor(rows, device=model.device))
    return _logits_at(model, inputs, spans, {cache_argument(model): cache, "use_cache": True})


def _logits_at(
    model: Any, inputs: torch.Tensor, spans: Sequence[tuple[int, range]], options: dict[str, Any]
) -> torch.Tensor:
    """The output layer sees hidden states of the wanted positions only: with a large vocabulary it is a good part of
    the work, and logits of all positions would be the largest tensor by far."""
    places = np.array(
        [
            np.repeat([row for row, _ in spans], [len(place) for _, place in spans]),
            np.concatenate([np.arange(place.start, place.stop) for _, place in spans]),
        ]
    )
    count = places.shape[1]
    # Fewer positions go through another kernel on a CPU, which is slower and rounds unlike that for whole sequences.
    filled = np.pad(places, ((0, 0), (0, max(0, LEAST_POSITIONS - count))), mode="edge")
    rows, columns = torch.from_numpy(filled).to(inputs.device)
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if layer is None:
        with _autocast(model.device):
            return model(input_ids=inputs, **options).logits[rows, columns][:count]
    hook = layer.register_forward_pre_hook(lambda _, given: (given[0][rows, columns][None],))
    try:
        with _autocast(model.device):
            return model(input_ids=inputs, **options).logits[0, :count]
    finally:
        hook.remove()


def _is_argmax(table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``table.argmax(1) == target``; the largest value is found several times as fast as its place on a CPU."""
    hit = table.gather(1, target[:, None]).squeeze(1) == table.amax(1)
    if hit.any():
        hit[hit.clone()] = table[hit].argmax(1) == target[hit]
    return hit


def score_tokens(logits: torch.Tensor, targets: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability in nats (float64) of each target under ``logits`` [n, vocabulary], and whether it is argmax.

    By log-softmax in float32 (float64 for a model in it), as lm-eval does: over a vocabulary of 49,152 it is off by
    8e-6 nats a token on a CPU, nearly always upward, where ``logsumexp`` would be off by 4e-8.
    """
    wanted = torch.tensor(targets, dtype=torch.long, device=logits.device)
    values, hits = [], []
    for chunk, target in zip(logits.split(SCORED_AT_ONCE), wanted.split(SCORED_AT_ONCE), strict=True):
        table = chunk.to(torch.promote_types(chunk.dtype, torch.float32)).log_softmax(-1)
        values.append(table.gather(1, target[:, None]).squeeze(1).double())
        hits.append(_is_argmax(table, target))
    return torch.cat(values).cpu(), torch.cat(hits).cpu()


@torch.inference_mode()
def generate_greedy(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, fill: int, eos: int | None
) -> list[list[int]]:
    """Greedy continuations of one batch of prompts, left-padded and masked; tokens from ``eos`` on are cut off.

    Models of :data:`ONE_BY_ONE` get one prompt at a time.
    """
    if len(prompts) > 1 and model.config.model_type in ONE_BY_ONE:
        return [generate_greedy(model, [prompt], max_new_tokens, fill, eos)[0] for prompt in prompts]
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
    written = output[:, width:].tolist()
    return [tokens[: tokens.index(eos)] if eos is not None and eos in tokens else tokens for tokens in written]
