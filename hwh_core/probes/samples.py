"""Samples of a probe by their kind: windows of text, planted facts, and questions with their evidence."""

from __future__ import annotations

import ast
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.samples import parse_samples
from ..files import atomic_write, sha256_of
from .contexts import Example, document_examples, packed_examples, synthetic_examples
from .errors import ProbeError
from .questions import read_chat_histories, read_questions
from .text import token_windows


@dataclass(frozen=True)
class HubFile:
    """One file of a data set on the hub, pinned to a commit."""

    name: str
    repository: str
    revision: str
    file: str
    sha256: str | None = None


HUB_FILES = {
    "nq": HubFile(
        name="nq",
        repository="sentence-transformers/natural-questions",
        revision="f9e894e1081e206e577b4eaa9ee6de2b06ae6f17",
        file="pair/train-00000-of-00001.parquet",
    ),
    "longmemeval": HubFile(
        name="longmemeval",
        repository="xiaowu0162/longmemeval-cleaned",
        revision="98d7416c24c778c2fee6e6f3006e7a073259d48f",
        file="longmemeval_s_cleaned.json",
        sha256="d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442",
    ),
}


@dataclass(frozen=True)
class Source:
    """A kind of samples and the files that they are taken from, if any were named."""

    kind: str
    files: tuple[Path, ...]


def parse_source(words: list[str]) -> Source:
    """``KIND``, ``KIND:FILE`` or ``KIND:FILE FILE ...``. Raises :class:`ProbeError` naming what was expected."""
    try:
        kind, names = parse_samples(words)
    except ValueError as error:
        raise ProbeError(f"--samples: {error}") from None
    files = tuple(map(Path, names))
    for path in files:
        if not path.is_file():
            raise ProbeError(f"--samples: {path} does not exist")
    return Source(kind, files)


def take_samples(
    source: Source, tokenizer: Any, length: int, count: int, seed: int, key: str = "--samples"
) -> tuple[list[Example], dict[str, Any]]:
    """Up to ``count`` samples of exactly ``length`` tokens, and what is to be told of them.

    ``key`` is the option or the key of a preset that names them, for errors. Raises :class:`ProbeError` where there is
    none, and the errors of the hub.
    """
    about: dict[str, Any] = {"samples": source.kind, "files": [str(path) for path in source.files]}
    files = source.files
    if not files and (pinned := HUB_FILES.get(source.kind)) is not None:
        files = (fetch_hub_file(pinned),)
        about |= {"repository": pinned.repository, "revision": pinned.revision, "files": [pinned.file]}
    counts = {"dropped": 0, "short": 0}
    if source.kind == "text":
        windows = token_windows(read_texts(files), tokenizer, length, count, seed)
        examples = [Example(row, [], [], []) for row in windows.tolist()]
    elif source.kind == "ruler":
        texts = read_texts(files) if files else [noise_haystack(length)]
        examples = synthetic_examples(texts, tokenizer, length, count, seed)
    elif source.kind == "longmemeval":
        examples, counts = document_examples(read_chat_histories(files[0], seed), tokenizer, length, count)
    else:
        examples, counts = packed_examples(read_questions(files), tokenizer, length, count, seed, fill=True)
    if not examples:
        raise ProbeError(
            f"{key}: no sample of {length} tokens ({counts['dropped']} have evidence longer than half of that, or a "
            f"question that leaves it no room, {counts['short']} are shorter); change --length"
        )
    return examples, about | counts


def read_texts(paths: tuple[Path, ...]) -> list[str]:
    """Documents of text files (.txt, or rows with a column ``text``)."""
    from ..data.source_files import file_documents

    return [document["text"] for path in paths for document in file_documents(path, str(path), "--samples", "text")]


def fetch_hub_file(pinned: HubFile) -> Path:
    """A pinned file in the hub's cache; fetched first where it is not there.

    Raises :class:`ProbeError` where it is not the file that was pinned, and the errors of the hub.
    """
    from ..data.source_hub import fetch_file

    path = fetch_file(pinned, pinned.file)
    if pinned.sha256 is not None and (found := sha256_of(path)) != pinned.sha256:
        raise ProbeError(
            f"{pinned.repository}: {pinned.file} has sha256 {found}, expected {pinned.sha256}; remove it from the "
            "hub's cache to fetch it again"
        )
    return path


def keep_hub_file(pinned: HubFile, output: Path) -> None:
    """Copy a pinned file, fetched where it is not in the hub's cache, to ``output``, which then needs no cache."""
    source = fetch_hub_file(pinned)
    with atomic_write(output) as temporary:
        shutil.copyfile(source, temporary)


def noise_haystack(length: int) -> str:
    """RULER's noise, over and over, for at least ``length`` tokens: read from the installed lm-eval, not imported."""
    spec = find_spec("lm_eval")
    path = Path(spec.origin or "").parent / "tasks" / "ruler" / "prepare_niah.py" if spec else Path()
    if not path.is_file():
        raise ProbeError("--samples: ruler needs lm-eval 0.4.13 (requirements/); or name prose: ruler:FILE")
    lines = [
        node.value.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "haystack"
        and isinstance(node.value, ast.Constant)
    ]
    if len(lines) != 1:
        raise ProbeError(f"{path}: has {len(lines)} texts named haystack, expected 1; lm-eval 0.4.13 is needed")
    return "\n".join(lines * (length // len(lines[0].split()) + 1))
