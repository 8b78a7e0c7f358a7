"""The committed text of the smoke preset is what its program writes, and is enough."""

import importlib.util
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "fixtures" / "make_text.py"


def test_committed_text_is_reproduced_and_large_enough():
    spec = importlib.util.spec_from_file_location("make_text", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = sorted(module.FOLDER.glob("*.txt"))
    assert len(files) == module.DOCUMENTS
    for number, file in enumerate(files):
        text = file.read_text(encoding="utf-8")
        assert text == module.Writer(number).document()
        assert len(text) > 6_000
    assert sum(file.stat().st_size for file in files) > 200_000
