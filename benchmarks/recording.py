"""What all benchmarks share: timing a function, and writing figures to benchmarks/results/<name>.json with a table.

A file holds ``card``, ``versions``, ``date``, ``command`` and ``figures``. It is written at once at the end, so that a
benchmark that fails leaves the results of its last whole run as they were.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch

from hwh_core.files import write_json
from hwh_core.provenance import package_versions

RESULTS = Path(__file__).parent / "results"
LOG_WIDTH = 160


class Figure(TypedDict):
    """One measured number.

    ``against``: what the value is held against, a peer, a bound or a number in the same unit. ``spread``:
    interquartile range, in the unit of ``value``. ``sizes``: sizes of what was measured. ``detail``: anything else
    that a reader needs to judge it.
    """

    id: str
    value: float | int | None
    unit: str
    against: str | float | int | None
    spread: NotRequired[float]
    sizes: NotRequired[dict[str, Any]]
    detail: NotRequired[Any]


class Timing(NamedTuple):
    """Median and interquartile range of repeated runs, in seconds."""

    median: float
    spread: float


def interquartile_range(values: Sequence[float]) -> float:
    """Distance of the first from the third quartile; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def median_seconds(function: Callable[[], Any], repeats: int = 10, warmup: int = 3) -> Timing:
    """Time of one call of ``function``: by events on the current CUDA device, by the clock where there is none.

    The card is waited for once, after all repeats, so that waiting is in no measurement. Raises ValueError for fewer
    than one repeat.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats = {repeats} and warmup = {warmup}: expected at least 1 and at least 0")
    for _ in range(warmup):
        function()
    if not torch.cuda.is_available():
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - started)
        return Timing(statistics.median(seconds), interquartile_range(seconds))
    torch.cuda.synchronize()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(end) / 1000 for start, end in events]
    return Timing(statistics.median(seconds), interquartile_range(seconds))


def card() -> str:
    """Name of the device that benchmarks run on: the first CUDA device, or CPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"


def result_path(name: str, output: str | Path | None = None) -> Path:
    """Where results of a benchmark go: ``output`` itself if it ends in .json, else <name>.json in that folder."""
    output = RESULTS if output is None else Path(output)
    return output if output.suffix == ".json" else output / f"{name}.json"


def record(name: str, figures: Sequence[Figure], command: str, output: str | Path | None = None) -> Path:
    """Write the figures of benchmark ``name``, print them as a table and return the path of the file.

    ``command`` is the line that measures them again; ``output`` a folder (None: benchmarks/results) or a .json file.
    Raises ValueError if an id occurs twice, and for NaN or infinite values.
    """
    content = {
        "card": card(),
        "versions": package_versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "figures": list(figures),
    }
    return write_result(name, content, output)


def write_result(name: str, content: dict[str, Any], output: str | Path | None = None) -> Path:
    """As :func:`record`, with card, versions, date and command in ``content``: of figures measured elsewhere."""
    ids = [figure["id"] for figure in content["figures"]]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ValueError(f"figures: id {twice[0]!r} occurs twice; every figure needs an id of its own")
    path = result_path(name, output)
    write_json(path, content)
    print_table(name, content["figures"], content["card"])
    print(f"wrote {path}", flush=True)
    return path


def print_table(name: str, figures: Sequence[Figure], device: str) -> None:
    """Print figures of a device as a table: id, value with spread, unit, and what they are held against."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name} on {device}", title_justify="left")
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("against", overflow="fold")
    for figure in figures:
        value = _number(figure["value"])
        if figure.get("spread"):
            value += f" ± {_number(figure['spread'])}"
        table.add_row(figure["id"], value, figure["unit"], _number(figure["against"]))
    console = Console(highlight=False, markup=False)
    # In a log nobody can widen the window, and folded ids cannot be searched for.
    console.width = console.width if console.is_terminal else LOG_WIDTH
    console.print(table)


def _number(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
