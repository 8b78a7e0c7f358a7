"""What went wrong on the way from a model hub, in one sentence with a mend; other errors stay what they are.

Errors are told apart by the names of their classes: the hub's library has changed the HTTP library under it more than
once, and none of them is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp", "hf_xet")
# Others of its errors are about configs and files on this machine.
HUB_ERRORS = {
    "HfHubHTTPError", "HFValidationError", "HfUriError", "OfflineModeIsEnabled", "EntryNotFoundError",
    "FileMetadataError", "XetDownloadError", "LocalTokenNotFoundError", "RevisionResolutionError",
}  # fmt: skip
HUB = "https://huggingface.co"
TOKEN = "a token in HF_TOKEN (made on the hub under Settings, Access Tokens)"


def from_hub(error: BaseException) -> bool:
    """Whether an error is one of the hub's library or of the HTTP libraries under it."""
    library = type(error).__module__.partition(".")[0]
    if library == "huggingface_hub":
        return bool(HUB_ERRORS & _kinds(error))
    if library in HTTP_LIBRARIES:
        return True
    # hf_xet is no Python: what it cannot do is a RuntimeError that is raised in the file of the hub's library.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return type(error) is RuntimeError and raised_in.partition(".")[0] == "huggingface_hub"


def sentence(error: BaseException) -> str | None:
    """An error of the hub or the network as one sentence; None for every other one."""
    if not from_hub(error):
        return None
    where = _page(error) or _address(error) or "the hub"
    return f"{where}: could not be read ({_reason(error)}); {_mend(error) or _AGAIN}"


def with_mend(message: str, error: BaseException) -> str:
    """A project's message that ends in ``(reason); mend`` with the mend that the hub's error behind it asks for.

    Unchanged where the error has none behind it, or one that the message suits already.
    """
    told, bracket, _ = message.rpartition("); ")
    for behind in _behind(error):
        if bracket and from_hub(behind) and (mend := _mend(behind)) is not None:
            return f"{told}); {mend}"
    return message


_AGAIN = (
    "the connection failed or was cut: check the network and give the same command again, which goes on with the "
    "files that are there"
)


def _mend(error: BaseException) -> str | None:
    """What helps against an error whose kind says it, else None."""
    kinds = _kinds(error)
    page = _page(error) or f"its page on {_endpoint()}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "GatedRepoError" in kinds:
        return f"it is gated: accept its licence on {page}, wait where the owner grants it by hand, and give {TOKEN}"
    if "RevisionNotFoundError" in kinds:
        return f"{page} is there, but has no such revision: give one of those on {page}/commits/main"
    if "HFValidationError" in kinds or "HfUriError" in kinds:
        return "the name is malformed: expected owner/name of letters, digits, '-', '_' and '.'"
    if kinds & {"UnsupportedProtocol", "InvalidURL", "MissingSchema", "FileMetadataError"}:
        return f"what stands at {_endpoint()} is no model hub: check HF_ENDPOINT, and proxies between"
    if "LocalTokenNotFoundError" in kinds:
        return f"give {TOKEN}"
    if "OfflineModeIsEnabled" in kinds:
        return "HF_HUB_OFFLINE=1 keeps it from the network: fetch it first where there is one, or unset the variable"
    if "DisabledRepoError" in kinds:
        return "the hub has switched it off: take another"
    if "RemoteEntryNotFoundError" in kinds:
        return f"{page} has no such file at this revision: check its name and the revision"
    if "RepositoryNotFoundError" in kinds:
        return f"there is none of that name, or it is private: check the name, or, for a private one, give {TOKEN}"
    if status in (401, 403):
        return f"the hub did not accept the token, or it does not reach so far: give {TOKEN}"
    if status == 429:
        return f"the hub was asked too often: wait some minutes and give the same command again, or give {TOKEN}"
    if isinstance(status, int) and status >= 500:
        return "the hub has trouble of its own: give the same command again later"
    return None


def _kinds(error: BaseException) -> set[str]:
    """Names of the class of an error and of all that it derives from."""
    return {kind.__name__ for kind in type(error).__mro__}


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Errors that led to this one, from the nearest on; ``raise ... from None`` hides them, but keeps them there."""
    seen = {id(error)}
    following = error.__cause__ or error.__context__
    while following is not None and id(following) not in seen:
        yield following
        seen.add(id(following))
        following = following.__cause__ or following.__context__


def _endpoint() -> str:
    constants = sys.modules.get("huggingface_hub.constants")
    return str(getattr(constants, "ENDPOINT", HUB))


def _page(error: BaseException) -> str | None:
    """Page of the repository that an error is about."""
    name, kind = getattr(error, "repo_id", None), getattr(error, "repo_type", None)
    if name is None:
        return None
    return "/".join((_endpoint(), *((f"{kind}s",) if kind in ("dataset", "space") else ()), name))


def _address(error: BaseException) -> str | None:
    """The address without its query, which may hold a signature."""
    try:
        return str(error.request.url).partition("?")[0]  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises where none was set
        return None


def _reason(error: BaseException) -> str:
    """Class and first line of an error."""
    line = next(iter(str(error).strip().splitlines()), "no message")
    return f"{type(error).__name__}: {line.rstrip('.')[:300]}"
