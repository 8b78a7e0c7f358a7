"""Task files of our own, in lm-eval's format; also a folder for its ``--include_path``."""

from pathlib import Path

# The files name its functions: an edit there is an edit of the code that an evaluation runs.
from . import completion  # noqa: F401

FOLDER = Path(__file__).parent
