"""What all programs in scripts/ share: settings, logging and errors in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Something that the user can mend; the message names it and says how. Project errors derive from this."""


def load_settings(text_or_path: str) -> dict[str, Any]:
    """Settings of one job: JSON text, or the path of a JSON file. Raises :class:`UserError`."""
    text = text_or_path
    if not text.lstrip().startswith("{"):
        path = Path(text_or_path)
        if not path.is_file():
            raise UserError(f"--settings: {text_or_path!r} is neither a JSON object nor an existing file")
        text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"--settings: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError("--settings: expected a JSON object")
    return value


def run(main: Callable[[], None]) -> None:
    """Run a program's ``main``; errors that a user can mend end in one line on stderr and exit code 1."""
    from .config import ConfigError
    from .files import OutputError

    try:
        main()
    except (UserError, ConfigError, OutputError) as error:
        message = error.strerror if isinstance(error, OutputError) else str(error)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
