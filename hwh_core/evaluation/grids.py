"""The prompts of a needle grid as a preset describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..config import NiahConfig, NiahGrid
from .haystacks import Haystack
from .niah import NiahGenerator, NiahSample
from .ruler_source import ruler_tasks
from .wording import wording_named


def grid_samples(
    grid: NiahGrid,
    config: NiahConfig,
    tokenizer: Any,
    haystack: Haystack,
    *,
    seed: int,
    add_bos: bool = False,
    unseen_only: bool = False,
    rows: Path | None = None,
) -> list[NiahSample]:
    """All prompts of one grid: chosen depths and exact lengths, or the samples that lm-eval makes.

    ``seed`` and ``unseen_only`` are of the former only; for the others lm-eval has fixed everything, and ``rows`` is
    the folder of evaluation rows, where the sentence splitter lies.
    """
    lengths = grid.lengths or config.lengths
    if grid.fill == "lm_eval":
        from .niah_lm_eval import LmEvalSamples, use_sentence_splitter

        # lm-eval counts white space before the first word as an empty word.
        words = ["", *haystack.words] if haystack.begins_with_space else haystack.words
        if rows is not None:
            use_sentence_splitter(rows)
        maker = LmEvalSamples(ruler_tasks()[grid.variant], tokenizer, words, add_bos)
        samples = maker.make(lengths, grid.samples)
        if len(samples) < grid.samples * len(lengths):
            print(f"{grid.name}: {len(samples)} of {grid.samples * len(lengths)} samples fit, as in lm-eval")
        return samples
    generator = NiahGenerator(
        tokenizer,
        haystack,
        max_new_tokens=config.max_new_tokens,
        seed=seed,
        add_bos=add_bos,
        variant=grid.variant,
        wording=wording_named(grid.wording),
        unseen_only=unseen_only,
    )
    return list(generator.grid(lengths, config.depths, grid.samples or config.samples_per_cell))
