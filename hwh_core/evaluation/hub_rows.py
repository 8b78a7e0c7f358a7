"""Rows from the data sets on the hub that lm-eval's own task files name, each read at one commit.

The task files name no commit. One comes from the preset (``evaluation.rows.revisions``) or, where that gives none, is
the newest at the first fetch. That one is recorded beside the folder of rows, and later fetches read it again, whatever
the hub holds by then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..files import write_json
from .errors import EvaluationError
from .rows import ESSAYS, Row

#: Where RULER's essays lie, and their split.
ESSAYS_SOURCE = ("baber/paul_graham_essays", None, "train")
KEY = "evaluation.rows.revisions"


def source_of(name: str) -> tuple[str, str | None, str]:
    """Repository, configuration and split of a task's rows, or of the essays."""
    from .tasks import hub_source

    return ESSAYS_SOURCE if name == ESSAYS else hub_source(name)


def record_of(output: Path) -> Path:
    """The record of commits that belongs to a folder of rows; it stays when the folder is made anew."""
    return output.with_name(f"{output.name}.revisions.json")


def read_record(path: Path) -> dict[str, str]:
    """Commits by repository, none where nothing is recorded. Raises :class:`EvaluationError` for a damaged record."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(re.fullmatch("[0-9a-f]{40}", commit) for commit in found.values()):
            raise ValueError("not every value is a commit of 40 hexadecimal digits")
    except (ValueError, AttributeError, TypeError) as error:
        raise EvaluationError(
            f"{path} is no record of commits by data set ({error}); mend it, or remove it to record the newest ones"
        ) from None
    return found


def pinned_revisions(repositories: Sequence[str], given: Mapping[str, str], record: Path) -> dict[str, str]:
    """The commit at which each repository is read: the preset's, else the recorded one, else the newest now.

    What was not known before is recorded before anything is read, so that a fetch that is killed goes on with the same
    commits. Raises :class:`EvaluationError` for a commit of a data set that no task reads, for one that differs from
    the recorded one, and where the hub does not say its newest.
    """
    unknown = sorted(set(given) - set(repositories))
    if unknown:
        raise EvaluationError(
            f"{KEY}: no task of this preset reads {unknown[0]!r}; expected one of {', '.join(sorted(repositories))}"
        )
    recorded = read_record(record)
    for repository, commit in sorted(given.items()):
        if recorded.get(repository, commit) != commit:
            raise EvaluationError(
                f"{KEY}: {repository} is pinned to {commit}, but its rows were first read at {recorded[repository]} "
                f"({record}); give that commit, or remove the entry there if other rows are meant"
            )
    newest = {name: _newest(name) for name in repositories if name not in given and name not in recorded}
    if newest:
        write_json(record, {**recorded, **newest})
    return {name: given.get(name) or recorded.get(name) or newest[name] for name in repositories}


def rows_from_hub(
    tasks: Sequence[str], given: Mapping[str, str], record: Path
) -> Iterator[tuple[str, list[Row], str | None]]:
    """Rows of the named tasks, each with a note that names its repository and commit.

    ``given``: commits by repository, from the preset; ``record``: the file that holds those of all others. Raises
    :class:`EvaluationError` naming the data set that cannot be read.
    """
    sources = {name: source_of(name) for name in tasks}
    revisions = pinned_revisions(sorted({repository for repository, *_ in sources.values()}), given, record)
    for name, (repository, subset, split) in sources.items():
        revision = revisions[repository]
        yield name, _read(repository, subset, split, revision, record), f"{repository} at {revision}"


def _newest(repository: str) -> str:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository).sha
    except Exception as error:
        raise _translated(
            error, f"the newest commit of {repository}", f"check the network, or give a commit under {KEY}"
        ) from None


def _read(repository: str, subset: str | None, split: str, revision: str, record: Path) -> list[Row]:
    from datasets import load_dataset

    try:
        return load_dataset(repository, subset, split=split, revision=revision).to_list()
    except Exception as error:
        mend = f"check the network and that the commit is there; commits come from {KEY} and {record}"
        raise _translated(error, f"{repository} at commit {revision}", mend) from None


def _translated(error: Exception, what: str, mend: str) -> Exception:
    """The hub's and the network's errors as :class:`EvaluationError`; any other exception stays what it is."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # The HTTP library under huggingface_hub has changed its name more than once, and its errors are no OSError.
    from_http_library = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests")
    if not isinstance(error, (OSError, HfHubHTTPError, HFValidationError, DatasetsError)) and not from_http_library:
        return error
    reason = (str(error).strip().splitlines() or ["no message"])[0]
    return EvaluationError(f"{what} cannot be read ({type(error).__name__}: {reason}); {mend}")
