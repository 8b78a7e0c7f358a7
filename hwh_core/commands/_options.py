"""Options that several subcommands share: the folder that one writes, and the seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..locks import only_writer
from ..scripting import UserError

# Generators of numpy take no negative seed; a preset takes the same range.
SEEDS = range(2**32)


def refuse_seed(seed: int) -> None:
    """Raise :class:`UserError` for a seed that no generator takes."""
    if seed not in SEEDS:
        raise UserError(f"--seed: {seed} is not between 0 and {SEEDS.stop - 1}; choose another")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Hold the folder ``--out`` as the only command that writes there. Raises :class:`UserError` where it cannot be."""
    folder = out.resolve()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out: {there} is a file; name a folder, which is made where it does not exist")
    with only_writer(folder.with_name(f".{folder.name}.lock"), out):
        yield
