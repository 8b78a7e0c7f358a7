"""Numbers of comparable models from other papers, shown below ours in the tables; each row with its source."""

from __future__ import annotations

from dataclasses import dataclass

from .tables import Cell, Table

GDN_PAPER = "arXiv 2412.06464 (Gated DeltaNet): 1.3B parameters, 100B tokens of FineWeb-Edu, context 4096"
TITANS = "arXiv 2501.00663 (Titans), as copied in the SWAT paper: 340M parameters, 15B tokens, context 4096"
TITANS_400M = (
    "arXiv 2501.00663 (Titans), Table 1, read in a public summary that gives these three columns: 400M parameters, 15B "
    "tokens of FineWeb-Edu, context 4096"
)
HYBRID_ANALYSIS = (
    "arXiv 2507.06457, trained on FineWeb-Edu with context 4096; n:1 is n linear layers to one of full attention"
)
OKA = "Oka et al., ICLR 2026, OpenReview PR1PPxvG9Q, read in a public note"
LANGUAGE_TITLES = (
    "Wiki ppl", "LMB ppl", "LMB acc", "PIQA", "Hella.", "Wino.", "ARC-e", "ARC-c", "SIQA", "BoolQ", "Avg (8)"
)  # fmt: skip
RETRIEVAL_TITLES = ("SWDE", "SQuAD", "FDA", "TriviaQA", "NQ", "DROP", "Avg retrieval")
NEEDLE_NOTE = (
    f"Published: RULER's single needles by Gated DeltaNet ({GDN_PAPER}) at 1K, 2K, 4K, 8K: S1 98.4 88.4 91.4 91.8; "
    "S2 100 99.8 92.2 29.6; S3 to 4K 86.6 84.2 27.6."
)
RULER_NOTE = (
    f"Published ({HYBRID_ANALYSIS}): mean over RULER's tasks at 1.3B parameters, 100B tokens: full attention 42.3; "
    "Gated DeltaNet alone 35.6, 24:1 34.1, 12:1 35.2, 6:1 42.5, 3:1 43.6. Elsewhere it has 3:1 at 44.0, and single "
    "needles at 87.5 against 55.9 of full attention; recall at 340M is not reported."
)
HYBRID_NOTE = (
    f"Published ({HYBRID_ANALYSIS}): mean accuracy over ARC-c, ARC-e, Hella., LAMBADA, OpenBookQA and PIQA, which is "
    "none of the averages here. 340M parameters, 20B tokens: Transformer 44.4, Gated DeltaNet 44.2, HGRN2 6:1 45.6; "
    "1.3B parameters, 100B tokens: Transformer 54.8, Gated DeltaNet 24:1 56.5, HGRN2 6:1 56.5."
)
ABLATION_NOTE = (
    "Published (arXiv 2412.06464, Table S.1; 400M parameters, 15B tokens of FineWeb-Edu): Gated DeltaNet and parts of "
    "it, mean of Wiki ppl and LMB ppl / Avg (8): heads of 128 dimensions 27.35 / 47.26, of 64 28.31 / 46.35, of 256 "
    "27.13 / 47.38; without convolution 28.95 / 46.16, without output gate 29.12 / 45.46, without output norm 27.55 / "
    "47.07."
)
NORM_BAND_NOTE = (
    f"Published ({OKA}): frequency group of the largest norm of q and k, mean over heads and layers, which is not the "
    "band of RPD of this table: Gemma 116.68, Qwen3 51.04, Llama-2 53.53, Llama-3 43.43, Phi-3 36.67; trained with "
    "heads of 128 dimensions at L=512: θ=512 60.5, θ=1e4 30.12, θ=5e5 17.00, θ=1e6 15.37."
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
# The nearest in size and tokens to the paper's 380M.
LANGUAGE_400M = _rows(
    "400M (published)",
    TITANS_400M,
    ("Wiki ppl", "LMB ppl", "Avg (8)"),
    {
        "Transformer++": (30.63, 37.37, 45.64),
        "Mamba2": (26.34, 33.19, 46.91),
        "Gated DeltaNet": (25.47, 29.24, 47.26),
        "Gated DeltaNet-H2": (24.19, 28.09, 47.69),
    },
)
LANGUAGE_NEAR_380M = [*LANGUAGE_SMALL, *LANGUAGE_400M]
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
