"""Needle prompts, and the file that holds those of one grid: made once for a tokenizer, answered by every model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..config import NiahConfig, NiahGrid
from ..files import atomic_write
from .errors import EvaluationError

_ABOUT = b"hwh_niah_prompts"


@dataclass(frozen=True)
class NiahSample:
    """One prompt. Tokens: ``prompt`` (with its beginning token, if any) and ``answer`` right after it.

    ``needle_distances``: tokens from the first of each needle that is asked for to the end of the prompt, in the order
    of ``values``. ``fill_error``: tokens by which prompt and room for the answer fall short of ``length``. ``depth`` in
    percent; None where it was not chosen.
    """

    length: int
    depth: int | None
    sample: int
    prompt: list[int]
    answer: list[int]
    values: tuple[str, ...]
    needle_distances: tuple[int, ...]
    fill_error: int

    @property
    def needle_distance(self) -> int:
        """Distance of the needle that is furthest back: without it the answer is not complete."""
        return max(self.needle_distances)

    @property
    def name(self) -> str:
        """How errors name it."""
        return sample_name(self.length, self.depth, self.sample)


def sample_name(length: int, depth: int | None, sample: int) -> str:
    """How errors name a sample."""
    return f"NIAH sample {sample} at length {length}" + ("" if depth is None else f", depth {depth}%")


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one grid, what the results call their haystack, and the fingerprint of their tokenizer."""

    samples: list[NiahSample]
    haystack: str
    tokenizer_fingerprint: str


def named_grids(config: NiahConfig) -> dict[str, NiahGrid]:
    """The grids by the names of their files: ``niah``, the paper's, and ``niah_<variant>_<wording>``, the others."""
    others = {f"niah_{grid.name}": grid for grid in config.additional}
    return {"niah": NiahGrid(variant=config.variant, wording="ruler"), **others}


def write_prompts(prompts: PromptSet, path: str | Path) -> None:
    """Write ``path`` (.parquet): a row a prompt with the fields of :class:`NiahSample`."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    tokens = arrow.list_(arrow.int32())
    types = {"prompt": tokens, "answer": tokens, "needle_distances": tokens, "values": arrow.list_(arrow.string())}
    about = {"haystack": prompts.haystack, "tokenizer_fingerprint": prompts.tokenizer_fingerprint}
    names = [field.name for field in fields(NiahSample)]
    schema = arrow.schema(
        [(name, types.get(name, arrow.int32())) for name in names], metadata={_ABOUT: json.dumps(about).encode()}
    )
    table = arrow.Table.from_pylist([asdict(sample) for sample in prompts.samples], schema=schema)
    with atomic_write(path) as temporary:
        parquet.write_table(table, temporary, compression="zstd")


def read_prompts(path: str | Path) -> PromptSet:
    """What :func:`write_prompts` wrote. Raises :class:`EvaluationError` if ``path`` is no such file."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as error:
        raise EvaluationError(f"{path} cannot be read as needle prompts ({str(error).splitlines()[0]})") from None
    metadata = table.schema.metadata or {}
    if _ABOUT not in metadata:
        raise EvaluationError(f"{path} holds no needle prompts; scripts/build_niah_prompts.py makes them")
    rows = table.to_pylist()
    for row in rows:
        row["values"], row["needle_distances"] = tuple(row["values"]), tuple(row["needle_distances"])
    return PromptSet([NiahSample(**row) for row in rows], **json.loads(metadata[_ABOUT]))


def require_tokenizer(prompts: Sequence[PromptSet], model: str | Path) -> None:
    """Raise :class:`EvaluationError` unless the tokenizer in the folder ``model`` is the one that made the prompts."""
    from ..data.tokenizer import tokenizer_fingerprint

    fingerprint = tokenizer_fingerprint(model)
    for found in {each.tokenizer_fingerprint for each in prompts} - {fingerprint}:
        raise EvaluationError(
            f"--prompts: made with another tokenizer (fingerprint {found[:12]}) than that of {model} "
            f"({fingerprint[:12]}); make them with the model's: scripts/build_niah_prompts.py --tokenizer {model}"
        )
