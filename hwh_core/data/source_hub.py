"""Documents of a data set on a Hugging Face hub, pinned to a revision.

Files are fetched one by one through ``huggingface_hub`` into its cache, so an interrupted download goes on where it
stopped, ``HF_HUB_OFFLINE=1`` works from the cache alone, and no second copy in another format is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from .errors import DataError
from .patterns import path_matches
from .source_files import ENDINGS, file_documents


def hub_documents(source: Any) -> Iterator[dict[str, str]]:
    """Documents of a ``hub`` source, files in the order of their names, until ``max_bytes`` of text are reached.

    Raises :class:`DataError` when the repository, revision, subset or split cannot be had.
    """
    names = list_files(source)
    chosen = split_files(names, _configs(source, names), source)
    text_bytes = 0
    for name in chosen:
        for document in file_documents(fetch_file(source, name), name, source.name, source.text_column):
            yield document
            text_bytes += len(document["text"].encode("utf-8"))
            if source.max_bytes is not None and text_bytes >= source.max_bytes:
                return


def _hub_error(source: Any, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or ["no message"])[0]
    return DataError(
        f"source {source.name!r}: {source.repository} at revision {source.revision[:12]} cannot be read "
        f"({type(error).__name__}: {reason}); check the names, the network and, offline, that "
        f"it was fetched into the hub cache before"
    )


def list_files(source: Any) -> list[str]:
    """Names of all files of the pinned revision; offline, of those that the local cache holds."""
    import huggingface_hub
    from huggingface_hub import constants

    try:
        if not constants.HF_HUB_OFFLINE:
            api = huggingface_hub.HfApi()
            return sorted(api.list_repo_files(source.repository, revision=source.revision, repo_type="dataset"))
        folder = Path(
            huggingface_hub.snapshot_download(
                source.repository, revision=source.revision, repo_type="dataset", local_files_only=True
            )
        )
    except Exception as error:
        raise _translated(source, error) from None
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _translated(source: Any, error: Exception) -> Exception:
    """The hub's and the network's errors as :class:`DataError`; any other exception stays what it is."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    known = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)
    # The HTTP library under huggingface_hub has changed its name more than once, and its errors are no OSError.
    from_http_library = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests")
    return _hub_error(source, error) if isinstance(error, known) or from_http_library else error


def fetch_file(source: Any, name: str) -> Path:
    """One file of the pinned revision, in the hub's cache; fetched first where it is not there."""
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.hf_hub_download(source.repository, name, revision=source.revision, repo_type="dataset")
        )
    except Exception as error:
        raise _translated(source, error) from None


def _configs(source: Any, names: list[str]) -> list[dict[str, Any]]:
    """The subsets that the data set's README declares in its front matter, or an empty list."""
    if "README.md" not in names:
        return []
    text = fetch_file(source, "README.md").read_text(encoding="utf-8")
    front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.S)
    if front is None:
        return []
    try:
        data = yaml.safe_load(front[1])
    except yaml.YAMLError:
        raise DataError(
            f"source {source.name!r}: the front matter of README.md in {source.repository} is no YAML"
        ) from None
    return list(data.get("configs") or []) if isinstance(data, dict) else []


def split_files(names: list[str], configs: list[dict[str, Any]], source: Any) -> list[str]:
    """The data files of ``source.subset`` and ``source.split`` among ``names``, sorted.

    As the hub does it: by the ``configs`` of the README if there are any, else by the name of the split as a word of
    the path (and the subset as a folder). Raises :class:`DataError` when nothing fits.
    """
    data = [name for name in names if name.endswith(ENDINGS)]
    if configs:
        subset = source.subset or next(
            (entry["config_name"] for entry in configs if entry.get("default")),
            configs[0].get("config_name", "default"),
        )
        chosen = [entry for entry in configs if entry.get("config_name") == subset]
        if not chosen:
            known = ", ".join(str(entry.get("config_name")) for entry in configs[:8])
            raise DataError(f"source {source.name!r}: {source.repository} has no subset {subset!r} (it has {known})")
        patterns = _patterns(chosen[0], source.split)
        found = [name for name in data if any(path_matches(name, pattern) for pattern in patterns)]
    else:
        word = re.compile(rf"(?:^|[/_.-]){re.escape(source.split)}(?:[/_.-]|$)")
        found = [name for name in data if word.search(name)]
        if source.subset:
            found = [name for name in found if source.subset in PurePosixPath(name).parts[:-1]]
    if not found:
        raise DataError(
            f"source {source.name!r}: no data file of {source.repository} belongs to subset {source.subset!r}, split "
            f"{source.split!r}; correct subset or split (files are, for example, {', '.join(data[:4]) or 'none'})"
        )
    return sorted(found)


def _patterns(config: dict[str, Any], split: str) -> list[str]:
    entries = config.get("data_files") or []
    folder = str(config.get("data_dir", "")).strip("/")
    if isinstance(entries, str):
        entries = [{"split": "train", "path": entries}]
    if isinstance(entries, dict):
        entries = [{"split": key, "path": value} for key, value in entries.items()]
    patterns: list[str] = []
    for entry in entries:
        entry = {"split": "train", "path": entry} if isinstance(entry, str) else entry
        if entry.get("split", "train") == split:
            paths = entry.get("path", [])
            patterns += [paths] if isinstance(paths, str) else list(paths)
    if folder and not entries:
        patterns = [f"**/{split}*", f"**/{split}/**", "**"] if split == "train" else [f"**/{split}*", f"**/{split}/**"]
    return [f"{folder}/{pattern}" if folder else pattern for pattern in patterns]
