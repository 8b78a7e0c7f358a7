"""Models as users name them on the command line: found or fetched, and named in what is said of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..hub_errors import from_hub
from .errors import LogitMismatchError, ProbeError, UnsupportedModelError
from .observers import adapter_for
from .pretrained import HUB_MODEL, locate_model

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?")


def find_model(model: str) -> tuple[str, Path]:
    """A model's full name and where it lies: a folder, a .gguf file, or ``owner/name[@revision]`` on the hub.

    A name without commit is that of the newest commit of ``main``, or of the branch or tag ``revision``; which one that
    is is asked once, printed, and part of the full name. Raises :class:`ProbeError` naming what was expected.
    """
    named = None if Path(model).exists() or model.endswith(".gguf") else HUB_NAME.fullmatch(model)
    if named is None and not Path(model).exists():
        raise ProbeError(
            f"{model}: no such folder or .gguf file, and no name of a model on the hub; give one of these, owner/name "
            f"(its newest commit), or owner/name@<commit> with the 40 hexadecimal digits of {_commits('owner/name')}"
        )
    if named is not None and not HUB_MODEL.fullmatch(model):
        repository, revision = named[1], named[2] or "main"
        commit = newest_commit(repository, revision)
        print(f"{model}: taken at the newest commit of {revision}, {repository}@{commit}", flush=True)
        model = f"{repository}@{commit}"
    try:
        return model, locate_model(model)
    except ProbeError as error:
        # Written for a preset, whose key it names.
        message = str(error).removeprefix("source.repository: ")
        raise ProbeError(message.replace(", or use a source of kind 'folder'", ", or name a folder")) from None


def newest_commit(repository: str, revision: str) -> str:
    """Commit of a branch or tag on the hub. Raises :class:`ProbeError`, also where the hub cannot be asked."""
    from huggingface_hub import HfApi, constants

    mend = f"give {repository}@<commit> with the 40 hexadecimal digits that stand on {_commits(repository)}"
    if constants.HF_HUB_OFFLINE:
        raise ProbeError(
            f"{repository}: no such folder or .gguf file, and HF_HUB_OFFLINE=1 keeps the hub from saying which commit "
            f"{revision} is; {mend}"
        )
    try:
        commit = HfApi().model_info(repository, revision=revision).sha
    except Exception as error:
        if not from_hub(error) and not isinstance(error, OSError):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ProbeError(
            f"{repository}: no such folder or .gguf file, and the hub did not say which commit {revision} is "
            f"({reason}); check the network, or {mend}"
        ) from None
    if not HUB_MODEL.fullmatch(f"{repository}@{commit}"):
        raise ProbeError(f"{repository}: the hub named {commit!r} as commit of {revision}; give the commit itself")
    return str(commit)


def _commits(repository: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repository}/commits/main"


@contextmanager
def named_in_errors(name: str, model: Any) -> Iterator[None]:
    """Errors of a capture with the model's name, and in words of a user where it holds no rotary frequencies."""
    try:
        yield
    except (UnsupportedModelError, LogitMismatchError) as error:
        kind = type(model).__name__
        reason = str(error).removeprefix(f"model {kind}: ").removeprefix("model: ")
        known = isinstance(error, LogitMismatchError) or not hasattr(model, "base_model")
        if known or adapter_for(model).frequency_tables(model):
            raise type(error)(f"{name} ({kind}): {reason}") from None
        raise type(error)(
            f"{name} ({kind}): has no rotary position embedding that can be read: the loaded model holds no "
            "frequencies (inv_freq), and RFIS and RPD are measured of these; name a model with RoPE (in detail: "
            f"{reason})"
        ) from None
