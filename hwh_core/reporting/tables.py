"""Tables as data: cells with our number, its interval and the paper's number, written as CSV, Markdown and TeX."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..files import atomic_write
from ..provenance import write_manifest
from .comparisons import refuse_if_missing
from .intervals import PERCENT, combine
from .selection import TableId, table_name

if TYPE_CHECKING:
    from .results import Results
    from .task_scores import SeedValues

DATA_FILES = ("templates/table.*.jinja",)
NOT_RUN = "not run"
# Numbers from here on are shown without decimals, in groups of three digits.
MANY = 1e5


@dataclass(frozen=True)
class Cell:
    """One cell: ours (None: not run) with a 95% interval where there is one, and the paper's value where known.

    ``published``: the value of another paper's model, in a row of its own.
    """

    ours: float | str | None
    low: float | None = None
    high: float | None = None
    n_seeds: int = 0
    n: int = 0
    paper: float | str | None = None
    source: str = ""
    digits: int = 2
    published: float | str | None = None

    def number(self, value: float | str) -> str:
        """A number with the cell's digits, one of six digits or more without decimals, a text as it is."""
        if isinstance(value, str):
            return value
        return f"{value:,.0f}" if abs(value) >= MANY else f"{value:.{self.digits}f}"

    @property
    def text(self) -> str:
        """``ours [low, high] (paper x)`` with the parts that exist."""
        if self.published is not None:
            return self.number(self.published)
        if self.ours is None:
            shown = NOT_RUN
        else:
            shown = self.number(self.ours)
            if self.low is not None and self.high is not None:
                shown += f" [{self.number(self.low)}, {self.number(self.high)}]"
        return shown if self.paper is None else f"{shown} (paper {self.number(self.paper)})"


@dataclass
class Table:
    """A table: ``rows`` are pairs of labels (one a label column) and cells by column title."""

    number: TableId
    title: str
    label_names: list[str]
    columns: list[str]
    rows: list[tuple[tuple[str, ...], dict[str, Cell]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, labels: tuple[str, ...], cells: dict[str, Cell]) -> None:
        """Append a row; columns without a cell are not run.

        Raises ``ValueError`` for labels or columns unknown and for a number of the paper without its source.
        """
        if len(labels) != len(self.label_names) or not set(cells) <= set(self.columns):
            raise ValueError(f"table {self.number}: row {labels} with {sorted(cells)} does not fit {self.columns}")
        for column, cell in cells.items():
            if cell.paper is not None and not cell.source:
                raise ValueError(f"table {self.number}: row {labels}, {column}: the paper's value has no source")
        self.rows.append((labels, {column: cells.get(column, Cell(None)) for column in self.columns}))

    def paper_sources(self) -> list[str]:
        """One note a source of the paper's numbers: where they stand there, and which columns they fill here."""
        filled: dict[str, set[str]] = {}
        for _, cells in self.rows:
            for column, cell in cells.items():
                if cell.paper is not None:
                    filled.setdefault(cell.source, set()).add(column)
        return [
            f"The paper's values of {', '.join(column for column in self.columns if column in found)}: {source}."
            for source, found in filled.items()
        ]

    def long(self) -> pd.DataFrame:
        """One line per cell: labels, column, ours, ci_low, ci_high, n_seeds, n, paper, published, source of these."""
        lines = [
            {
                **dict(zip(self.label_names, labels, strict=True)),
                "column": column,
                "ours": NOT_RUN if cell.ours is None and cell.published is None else cell.ours,
                "ci_low": cell.low,
                "ci_high": cell.high,
                "n_seeds": cell.n_seeds,
                "n": cell.n,
                "paper": cell.paper,
                "paper_source": cell.source or None,
                "published": cell.published or None,
            }
            for labels, cells in self.rows
            for column, cell in cells.items()
        ]
        return pd.DataFrame(lines)


def seeds_cell(
    values: SeedValues, *, digits: int = 2, paper: float | str | None = None, source: str = "", percent: bool = True
) -> Cell:
    """A cell from values by seed: mean, 95% interval over seeds and rows, counts. Empty values: not run.

    Ends of percentages are cut to 0 and 100. Other values are perplexities: their mean and interval are those of the
    logarithm, as in the ledger, since an interval around a perplexity itself would reach below 0.
    """
    if not values:
        return Cell(None, paper=paper, source=source, digits=digits)
    if percent:
        interval = combine([v.value for v in values.values()], [v.stderr for v in values.values()]).within(PERCENT)
    else:
        logs = [v.logarithm() for v in values.values()]
        interval = combine([v.value for v in logs], [v.stderr for v in logs]).map(math.exp)
    return Cell(
        interval.estimate,
        interval.low,
        interval.high,
        n_seeds=len(values),
        n=sum(v.n for v in values.values()),
        paper=paper,
        source=source,
        digits=digits,
    )


TEX_SPECIALS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "θ": r"$\theta$", "≤": r"$\le$", "×": r"$\times$",
    "±": r"$\pm$", "−": r"$-$", "–": "--", "√": r"$\surd$",
}  # fmt: skip


def tex_escape(text: str) -> str:
    """Text that TeX prints as it stands."""
    return "".join(TEX_SPECIALS.get(character, character) for character in str(text))


def render(table: Table, kind: str, preset: str) -> str:
    """The table as ``md`` or ``tex``."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown and TeX, each escaped by its own filter
    )
    environment.filters["tex"] = tex_escape
    environment.filters["md"] = lambda text: str(text).replace("|", "\\|")
    return environment.get_template(f"table.{kind}.jinja").render(
        table=table, notes=[*table.paper_sources(), *table.notes], preset=preset
    )


def write_table_files(table: Table, prefix: str | Path, results: Results, started: float) -> list[Path]:
    """Write ``prefix`` + .csv, .md, .tex and the manifest of the CSV; return the three paths."""
    prefix = Path(prefix)
    paths = [prefix.with_name(f"{prefix.name}.{kind}") for kind in ("md", "tex", "csv")]
    for path in paths[:2]:
        with atomic_write(path) as temporary:
            temporary.write_text(render(table, path.suffix[1:], results.preset.preset), encoding="utf-8")
    with atomic_write(paths[2]) as temporary:
        table.long().to_csv(temporary, index=False, float_format="%.8g", lineterminator="\n")
    settings = {"table": table.number, "preset": results.preset.preset, **table.settings}
    modules = [f"hwh_core/reporting/{table_name(table.number)}.py"]
    write_manifest(paths[2], inputs=results.used, settings=settings, started=started, beside=paths[:2], modules=modules)
    return paths


def make_and_write(number: TableId, results: Results, prefix: str | Path) -> list[Path]:
    """Make table ``number`` from the files of ``results`` and write it.

    Raises :class:`hwh_core.reporting.selection.ReportError` when the preset lacks its models or a file is missing.
    """
    from importlib import import_module

    refuse_if_missing(results.preset, number)
    started = time.time()
    table = import_module(f"{__package__}.{table_name(number)}").make(results)
    return write_table_files(table, prefix, results, started)
