"""What all programs in scripts/ share: settings, logging and errors in one sentence."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# An operating system that refuses to write is no error of a program.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


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


def start_time(pid: int) -> str | None:
    """When process ``pid`` started (clock ticks since boot), or None when it is gone; tells a reused pid apart."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def end_with_the_workflow(seconds: float = 0.5) -> threading.Thread | None:
    """End this process when the workflow that started it is gone, so that a rerun never meets a second writer.

    The Snakefile names its process in HWH_WORKFLOW_PID. A killed Snakemake leaves its jobs running as orphans; all
    outputs are written atomically and checkpoints too, so ending at any point loses nothing but the step in flight.
    """
    pid = os.environ.get("HWH_WORKFLOW_PID")
    if not pid or not os.path.isdir("/proc"):
        return None
    started = start_time(int(pid))

    def watch() -> None:
        while started is not None and start_time(int(pid)) == started:
            time.sleep(seconds)
        print(f"error: the workflow process {pid} is gone; this job ends", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=watch, name="end-with-the-workflow", daemon=True)
    thread.start()
    return thread


def die_with_the_parent() -> Callable[[], None] | None:
    """``preexec_fn`` of a subprocess that Linux kills when this process dies: it never goes on writing alone."""
    if sys.platform != "linux":
        return None
    # Loaded here and not in the child, where a lock of the loader may be held by a thread that is not there.
    prctl, parent_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(parent_death_signal, signal.SIGKILL)


def run(main: Callable[[], None]) -> None:
    """Run a program's ``main``; errors that a user can mend end in one line on stderr and exit code 1.

    Errors of a model hub and of the network are among them, wherever they come from.
    """
    from . import hub_errors
    from .config import ConfigError
    from .files import OutputError

    end_with_the_workflow()
    try:
        main()
    except (UserError, ConfigError, OutputError) as error:
        message = error.strerror if isinstance(error, OutputError) else hub_errors.with_mend(str(error), error)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _REFUSED:
            sentence = f"cannot use {error.filename or 'a file'}: {error.strerror}"
        elif (found := hub_errors.sentence(error)) is not None:
            sentence = found
        else:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(1)
