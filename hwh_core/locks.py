"""Locks between processes (flock): the kernel releases them when their process ends, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What flock answers on file systems without locks, such as Lustre mounted without the option flock.
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def lock(path: Path, operation: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """Descriptor that holds the lock file ``path``, alone by default, or None if another process is in the way."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, operation)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        # Removed by somebody between opening and locking: the lock would be on a file that nobody else finds.
        os.close(descriptor)


@contextmanager
def only_writer(path: Path, output: Path) -> Iterator[bool]:
    """Hold the lock file ``path`` as the only process that writes ``output``, once no other does; it is removed after.

    Waits, with a word on stderr, for a process that holds it. Yields False on a file system without locks, after a
    warning: there nothing keeps two writers apart.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = lock(path)
        if descriptor is None:
            print(f"{_owner(path)} writes to {output}; waiting for it to end", file=sys.stderr, flush=True)
            descriptor = lock(path, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        print(
            f"warning: {output}: this file system has no locks ({error.strerror}); see to it that no other process "
            "writes there",
            file=sys.stderr,
            flush=True,
        )
        yield False
        return
    try:
        # For the word to others only: a full disk is no reason not to start.
        with suppress(OSError):
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
