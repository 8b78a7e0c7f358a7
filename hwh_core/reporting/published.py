"""Numbers of comparable models from other papers, shown below ours in the tables; each row with its source."""

from __future__ import annotations

from dataclasses import dataclass

from .tables import Cell, Table

GDN_PAPER = "arXiv 2412.06464 (Gated DeltaNet): 1.3B parameters, 100B tokens of FineWeb-Edu, context 4096"
TITANS = "arXiv 2501.00663 (Titans), as copied in the SWAT paper: 340M parameters, 15B tokens, context 4096"
LANGUAGE_TITLES = (
    "Wiki ppl", "LMB ppl", "LMB acc", "PIQA", "Hella.", "Wino.", "ARC-e", "ARC-c", "SIQA", "BoolQ", "Avg (8)"
)  # fmt: skip
RETRIEVAL_TITLES = ("SWDE", "SQuAD", "FDA", "TriviaQA", "NQ", "DROP", "Avg retrieval")
NEEDLE_NOTE = (
    f"Published: RULER's single needles by Gated DeltaNet ({GDN_PAPER}) at 1K, 2K, 4K, 8K: S1 98.4 88.4 91.4 91.8; "
    "S2 100 99.8 92.2 29.6; S3 to 4K 86.6 84.2 27.6."
)


@dataclass(frozen=True)
class Published:
    """One model of another paper: its size as the tables name it, its name, values by column, and the source."""

    scale: str
    model: str
    values: dict[str, float]
    source: str


def _rows(scale: str, source: str, titles: tuple[str, ...], models: dict[str, tuple[float, ...]]) -> list[Published]:
    return [Published(scale, name, dict(zip(titles, row, strict=True)), source) for name, row in models.items()]


LANGUAGE_LARGE = _rows(
    "1.3B (published)",
    GDN_PAPER,
    LANGUAGE_TITLES,
    {
        "Transformer++": (18.53, 18.32, 42.60, 70.02, 50.23, 53.51, 68.83, 35.10, 40.66, 57.09, 52.25),
        "Gated DeltaNet": (16.42, 12.17, 46.65, 72.25, 55.76, 57.45, 71.21, 38.39, 40.63, 60.24, 55.32),
        "Gated DeltaNet-H1": (16.07, 12.12, 47.73, 72.57, 56.53, 58.40, 71.75, 40.10, 41.40, 63.21, 56.40),
        "Samba": (16.13, 13.29, 44.94, 70.94, 53.42, 55.56, 68.81, 36.17, 39.96, 62.11, 54.00),
    },
)
LANGUAGE_SMALL = _rows(
    "340M (published)",
    TITANS,
    LANGUAGE_TITLES,
    {
        "Transformer++": (31.52, 41.08, 30.76, 62.98, 34.76, 50.53, 45.21, 24.05, 36.81, 58.24, 42.92),
        "Gated DeltaNet": (27.01, 30.94, 34.11, 63.08, 38.12, 51.60, 55.28, 26.77, 34.89, 59.54, 45.42),
    },
)
RETRIEVAL_LARGE = _rows(
    "1.3B (published)",
    f"{GDN_PAPER}; prompts of 2K",
    RETRIEVAL_TITLES,
    {
        "Transformer++": (29.5, 38.0, 52.2, 58.3, 22.5, 21.6, 37.0),
        "Gated DeltaNet": (25.4, 34.8, 23.7, 60.0, 20.0, 19.8, 30.6),
        "Gated DeltaNet-H1": (35.6, 39.7, 52.0, 60.1, 24.6, 22.2, 39.0),
    },
)


def add_published(table: Table, rows: list[Published]) -> None:
    """Rows of other papers below ours, and a note with their sources."""
    for row in rows:
        cells = {title: Cell(None, published=value, source=row.source) for title, value in row.values.items()}
        empty = {title: Cell(None, published="") for title in table.columns if title not in cells}
        table.add((row.scale, row.model), {**cells, **empty})
    sources = "; ".join(dict.fromkeys(f"{row.scale.split()[0]}: {row.source}" for row in rows))
    table.notes.append(f"Rows marked published are other papers' models, for comparison only. {sources}.")
