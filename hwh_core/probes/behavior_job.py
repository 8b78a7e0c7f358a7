"""The job of behaviour scores in the workflow: on facts planted in held-out prose, or on samples of any other kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import BehaviorConfig
from . import jobs
from .behavior import BehaviorScores, behavior_scores
from .errors import ProbeError
from .model_folders import check_model, load_for_probe
from .pretrained import check_length
from .samples import Source, take_samples


def score_samples(
    settings: dict[str, Any], model_folder: Path, documents: Path | None, files: Sequence[Path]
) -> BehaviorScores:
    """QRscore and LDscore of a pretrained model; settings {model, behavior, held_out_prose_source, seed}.

    ``documents`` is the held-out text, which samples ``synthetic`` are made in and no others need. ``files`` are those
    of the kind of samples that ``behavior.samples`` names: its own, or those that were fetched for it. Raises
    :class:`ProbeError` naming what does not fit.
    """
    behavior = BehaviorConfig.model_validate(jobs.setting(settings, "behavior"))
    source = behavior.sample_source()
    if source is None:
        if documents is None:
            raise ProbeError("pretrained.behavior.samples: synthetic needs held-out prose (--documents)")
        check_model(model_folder)
        return jobs.score_behavior(settings, model_folder, documents)
    tokenizer, model = load_for_probe(model_folder, "float32")
    key = "pretrained.behavior"
    check_length(model, behavior.length, f"{key}.length")
    kind, _ = source
    examples, about = take_samples(
        Source(kind, tuple(files)), tokenizer, behavior.length, behavior.num_samples, jobs.setting(settings, "seed"),
        key=f"{key}.samples",
    )  # fmt: skip
    if len(examples) < behavior.num_samples:
        print(f"{key}.num_samples: {len(examples)} samples instead of {behavior.num_samples}; there are no more")
    scores = behavior_scores(
        model, examples, behavior.num_queries, behavior.windows, behavior.sinks, behavior.calibrate
    )
    description = {
        "model": jobs.setting(settings, "model", "name"),
        "seed": settings["seed"],
        "length": behavior.length,
        "default_window": behavior.default_window,
        "default_sinks": behavior.default_sinks,
        "truncation": "gold tokens kept whole, relative start kept (method notes, section 3)",
        **about,
        **scores.description,
    }
    return replace(scores, description=description)
