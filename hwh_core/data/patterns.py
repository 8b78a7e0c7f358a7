"""Glob patterns for members of archives and files of commits."""

from __future__ import annotations

import re
from functools import cache


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = []
    position = 0
    while position < len(pattern):
        if pattern.startswith("**/", position):
            pieces.append("(?:[^/]+/)*")
            position += 3
        elif pattern.startswith("**", position):
            pieces.append(".*")
            position += 2
        elif pattern[position] == "*":
            pieces.append("[^/]*")
            position += 1
        elif pattern[position] == "?":
            pieces.append("[^/]")
            position += 1
        else:
            pieces.append(re.escape(pattern[position]))
            position += 1
    return re.compile("".join(pieces) + r"\Z", re.DOTALL)


def path_matches(path: str, pattern: str) -> bool:
    """Whether the whole ``path`` fits ``pattern``: ``*`` and ``?`` stay within a folder, ``**`` crosses folders.

    Unlike ``fnmatch``, ``*/*.md`` means exactly two levels. Brackets have no special meaning.
    """
    return _compiled(pattern).match(path) is not None
