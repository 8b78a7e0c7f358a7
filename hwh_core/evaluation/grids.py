"""The prompts of a needle grid as a preset describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..config import NiahConfig, NiahGrid
from ..processes import in_processes
from .documents import essay_texts, held_out_prose
from .errors import EvaluationError
from .haystacks import Haystack, prose_haystack
from .niah import NiahGenerator
from .prompts import NiahSample, PromptSet, named_grids
from .ruler_source import ruler_tasks
from .wording import wording_named


class GridInputs(NamedTuple):
    """What all prompts of a preset are made from, beside the grids; ``prose_source`` names the documents to take."""

    tokenizer: Path
    documents: Path | None
    prose_source: str | None
    rows: Path | None
    seed: int
    add_bos: bool
    unseen_only: bool


class _Part(NamedTuple):
    """A piece of work: the prompts of one grid, or those of one length and depth of it."""

    inputs: GridInputs
    grid: NiahGrid
    config: NiahConfig


def make_grids(
    config: NiahConfig,
    inputs: GridInputs,
    *,
    workers: int = 1,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda parts, total: parts,
) -> dict[str, PromptSet]:
    """The prompts of every grid of ``config`` by :func:`named_grids`; the same for any number of ``workers``.

    Raises :class:`EvaluationError` for prompts that cannot be made.
    """
    from ..data.tokenizer import tokenizer_fingerprint

    fingerprint = tokenizer_fingerprint(inputs.tokenizer)
    label = _haystack(config.haystack, inputs.documents, inputs.prose_source, inputs.rows).label
    parts = {name: _parts(inputs, grid, config) for name, grid in named_grids(config).items()}
    names = [name for name, own in parts.items() for _ in own]
    work = [part for own in parts.values() for part in own]
    made: list[list[NiahSample]] = [[] for _ in work]
    for number, samples in progress(in_processes(_make_part, work, workers), len(work)):
        made[number] = samples
    return {
        name: PromptSet(
            [sample for own, samples in zip(names, made, strict=True) if own == name for sample in samples],
            label,
            fingerprint,
        )
        for name in parts
    }


def _parts(inputs: GridInputs, grid: NiahGrid, config: NiahConfig) -> list[_Part]:
    if grid.fill == "lm_eval":
        return [_Part(inputs, grid, config)]
    return [
        _Part(inputs, grid.model_copy(update={"lengths": [length]}), config.model_copy(update={"depths": [depth]}))
        for length in grid.lengths or config.lengths
        for depth in config.depths
    ]


@lru_cache(maxsize=1)
def _haystack(kind: str, documents: Path | None, prose_source: str | None, rows: Path | None) -> Haystack:
    if kind == "held_out_prose":
        if documents is None or prose_source is None:
            raise EvaluationError("--documents and held_out_prose_source are needed for the haystack held_out_prose")
        texts = [document["text"] for document in held_out_prose(documents, prose_source)]
        return prose_haystack(texts, "held-out prose, not RULER essays")
    if rows is None:
        raise EvaluationError("--rows is needed for the haystack essays")
    return prose_haystack(essay_texts(rows), "essays")


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _make_part(part: _Part) -> list[NiahSample]:
    inputs = part.inputs
    haystack = _haystack(part.config.haystack, inputs.documents, inputs.prose_source, inputs.rows)
    return grid_samples(
        part.grid,
        part.config,
        _tokenizer(inputs.tokenizer),
        haystack,
        seed=inputs.seed,
        add_bos=inputs.add_bos,
        unseen_only=inputs.unseen_only,
        rows=inputs.rows,
    )


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
