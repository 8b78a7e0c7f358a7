"""What samples of a probe are called, in presets and by ``hwh probe --samples``: KIND, or KIND:FILE and more files."""

from __future__ import annotations

from collections.abc import Sequence

SAMPLE_KINDS = ("text", "ruler", "squad", "nq", "longmemeval")


def parse_samples(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Kind and paths of ``KIND``, ``KIND:FILE`` or ``KIND:FILE FILE ...``.

    Raises ValueError saying what is expected.
    """
    kind, colon, first = words[0].partition(":")
    files = (*([first] if colon else []), *words[1:])
    if kind not in SAMPLE_KINDS or (colon and not first):
        raise ValueError(f"{words[0]!r} is unknown; expected one of {', '.join(SAMPLE_KINDS)}, or KIND:FILE")
    if kind in ("text", "squad") and not files:
        raise ValueError(f"{kind} needs files: {kind}:FILE")
    if kind == "longmemeval" and len(files) > 1:
        raise ValueError("longmemeval takes one file")
    return kind, files
