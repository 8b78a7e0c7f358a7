"""The probe jobs of the workflow: which model, which samples, which lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ProbeError
from .maps import ProbeMaps

if TYPE_CHECKING:
    from .behavior import BehaviorScores


def setting(settings: dict[str, Any], *keys: str) -> Any:
    """A value of nested settings. Raises :class:`ProbeError` naming the key that is missing."""
    value: Any = settings
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            raise ProbeError(f"--settings: key {'.'.join(keys[: depth + 1])!r} is missing")
        value = value[key]
    return value


def probe_pretrained(settings: dict[str, Any], model_folder: Path, documents: Path) -> ProbeMaps:
    """Maps of a pretrained model on windows of held-out prose; settings {model, probe, held_out_prose_source, seed}."""
    from .measure import measure_maps
    from .pretrained import check_length, load_model, load_tokenizer, training_length
    from .text import prose_documents, token_windows

    probe, seed = setting(settings, "probe"), setting(settings, "seed")
    length, count = setting(settings, "probe", "length"), setting(settings, "probe", "num_samples")
    name = setting(settings, "model", "name")
    texts = prose_documents(documents, setting(settings, "held_out_prose_source"))
    tokenizer, model = load_tokenizer(model_folder), load_model(model_folder)
    check_length(model, length, "pretrained.probe.length")
    samples = token_windows(texts, tokenizer, length, count, seed)
    maps = measure_maps(
        model, None, samples, setting(settings, "probe", "num_queries"), probe.get("backend", "auto"),
        description=f"RFIS and RPD of {name}",
    )  # fmt: skip
    description = {
        **maps.description,
        "model": name,
        "title": settings["model"].get("title", name),
        "training_length": training_length(model),
        "seed": seed,
        "text_source": settings["held_out_prose_source"],
    }
    return replace(maps, description=description)


def probe_controlled(
    settings: dict[str, Any], model_folder: Path, initial_folder: Path, store_folder: Path
) -> Iterator[tuple[float, ProbeMaps]]:
    """(factor, maps) for every factor of the training length, each with the maps at initialisation on the same samples.

    Settings {model, probe, seed}. Lengths beyond the training length are probed with angles that simply go on.
    """
    from hwh_kernels.rfis_rpd import choose_backend, work_elements

    from ..data.loader import sequences_for_probe
    from ..data.store import TokenStore
    from .measure import measure_maps
    from .pretrained import load_model

    seed = setting(settings, "seed")
    name, training_length = setting(settings, "model", "name"), setting(settings, "model", "length")
    factors, count = setting(settings, "probe", "eval_length_factors"), setting(settings, "probe", "num_samples")
    num_queries = setting(settings, "probe", "num_queries")
    store = TokenStore.open(store_folder)
    trained, initial = load_model(model_folder), load_model(initial_folder)
    lengths = [probe_length(factor, training_length, num_queries) for factor in factors]
    groups = [module for _, _, module in trained.attention_groups()]
    elements = sum(
        2 * count * work_elements(module.num_heads, num_queries, length, module.head_dim // 2)
        for length in lengths
        for module in groups
    )
    backend = choose_backend("auto", next(trained.parameters()).device, elements)
    for factor, length in zip(factors, lengths, strict=True):
        samples = sequences_for_probe(store, length, count, seed)
        options = {"num_queries": num_queries, "backend": backend}
        maps = measure_maps(trained, None, samples, description=f"{name}, {length} tokens", **options)
        before = measure_maps(initial, None, samples, description=f"{name} at initialisation", **options)
        yield factor, with_initial(maps, before, settings, factor)


def with_initial(maps: ProbeMaps, before: ProbeMaps, settings: dict[str, Any], factor: float) -> ProbeMaps:
    """Maps of a controlled model with those ``before`` training on the same samples; settings {model, seed}."""
    description = {
        **maps.description,
        "model": settings["model"]["name"],
        "training_length": settings["model"]["length"],
        "eval_length_factor": factor,
        "seed": settings["seed"],
        "model_seed": settings["model"].get("seed"),
        "max_logit_error": max(maps.description["max_logit_error"], before.description["max_logit_error"]),
        "seconds": round(maps.description["seconds"] + before.description["seconds"], 3),
    }
    return replace(maps, rfis_initial=before.rfis, rpd_initial=before.rpd, description=description)


def probe_length(factor: float, training_length: int, num_queries: int) -> int:
    """Tokens of a probe at ``factor`` times the training length. Raises :class:`ProbeError` where it is too short."""
    length = factor * training_length
    if length != int(length):
        raise ProbeError(f"eval_length_factors: {factor:g} times {training_length} tokens is no whole number of tokens")
    if length < num_queries:
        raise ProbeError(
            f"eval_length_factors: {factor:g} times {training_length} tokens leave {int(length)} positions, fewer than "
            f"num_queries {num_queries}; lower num_queries or raise the factor"
        )
    return int(length)


def score_behavior(
    settings: dict[str, Any], model_folder: Path, documents: Path, questions: Path | None = None
) -> BehaviorScores:
    """QRscore and LDscore of a pretrained model; settings {model, behavior, held_out_prose_source, seed}."""
    from .behavior import behavior_scores
    from .contexts import packed_examples, synthetic_examples
    from .pretrained import check_length, load_model, load_tokenizer
    from .questions import read_questions
    from .text import prose_documents

    seed, kind = setting(settings, "seed"), setting(settings, "behavior", "samples")
    behavior = settings["behavior"]
    length, count = setting(settings, "behavior", "length"), setting(settings, "behavior", "num_samples")
    windows, sinks = setting(settings, "behavior", "windows"), setting(settings, "behavior", "sinks")
    for key, values in (("default_window", windows), ("default_sinks", sinks)):
        if setting(settings, "behavior", key) not in values:
            raise ProbeError(f"pretrained.behavior.{key}: {behavior[key]} is not among {values}")
    tokenizer, model = load_tokenizer(model_folder), load_model(model_folder)
    check_length(model, length, "pretrained.behavior.length")
    counts: dict[str, int] = {"dropped": 0, "short": 0}
    if kind == "synthetic":
        texts = prose_documents(documents, setting(settings, "held_out_prose_source"))
        examples = synthetic_examples(texts, tokenizer, length, count, seed)
    elif questions is not None:
        examples, counts = packed_examples(read_questions([questions]), tokenizer, length, count, seed)
        if not examples:
            raise ProbeError(f"{questions}: no question whose context fits into half of {length} tokens")
    else:
        raise ProbeError(
            f"pretrained.behavior.samples: {kind!r} needs a file of questions with contexts (--questions FILE.jsonl); "
            "'synthetic' needs none"
        )
    scores = behavior_scores(
        model, examples, setting(settings, "behavior", "num_queries"), windows, sinks, behavior.get("calibrate", True)
    )
    description = {
        "model": setting(settings, "model", "name"),
        "samples": kind,
        "seed": seed,
        "length": length,
        "default_window": behavior["default_window"],
        "default_sinks": behavior["default_sinks"],
        "truncation": "gold tokens kept whole, relative start kept (method notes, section 3)",
        **counts,
        **scores.description,
    }
    return replace(scores, description=description)
