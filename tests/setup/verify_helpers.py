"""What the tests of `hwh verify` share."""

from __future__ import annotations

from pathlib import Path

from hwh_core.config import validate_preset
from hwh_core.verification import Verifier

PROGRAM = "requirements/update.py"


def check(results: Path, minimal_preset: dict) -> dict[str, str]:
    """Reasons by file name, of all artifacts that no longer follow."""
    verifier = Verifier(results, validate_preset(minimal_preset, "test"), Path())
    return {f.artifact.name: "; ".join(f.reasons) for f in verifier.check() if not f.follows}
