"""Writes workflow/schemas/config.schema.json anew: ``python -m hwh_core.config``."""

from __future__ import annotations

import json
from pathlib import Path

from . import json_schema


def main() -> None:
    """Write workflow/schemas/config.schema.json anew."""
    target = Path(__file__).resolve().parents[2] / "workflow" / "schemas" / "config.schema.json"
    target.write_text(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
