"""What all benchmarks share: timing a function, and writing figures to benchmarks/results/<name>.json with a table.

A file holds ``card``, ``versions``, ``date``, ``command`` and ``figures``. It is written at once at the end, so that a
benchmark that fails leaves the results of its last whole run as they were. One of several cases writes what it has to
<name>_part.json after each of them (:class:`Kept`); parts are joined by the ids of their figures (:func:`joined`).
"""

from __future__ import annotations

import datetime
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch

from hwh_core.files import read_json, write_json
from hwh_core.provenance import package_versions
from hwh_core.scripting import UserError

RESULTS = Path(__file__).parent / "results"
# Where runs of tiny sizes write (`--quick`): in RESULTS they would replace what tables and estimated hours rest on.
QUICK_RESULTS = RESULTS / "quick"
OUTPUT_HELP = "folder or .json file (default: benchmarks/results, with --quick benchmarks/results/quick)"
LOG_WIDTH = 160
Content = dict[str, Any]


class Figure(TypedDict):
    """One measured number.

    ``against``: what the value is held against, a peer, a bound or a number in the same unit. ``spread``:
    interquartile range, in the unit of ``value``. ``sizes``: sizes of what was measured. ``detail``: anything else
    that a reader needs to judge it. ``date``: where it was measured before the newest of its file.
    """

    id: str
    value: float | int | None
    unit: str
    against: str | float | int | None
    spread: NotRequired[float]
    sizes: NotRequired[dict[str, Any]]
    detail: NotRequired[Any]
    date: NotRequired[str]


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


def command_again(module: str, arguments: Sequence[str], named: Mapping[str, str]) -> str:
    """The line that measures the same again with ``benchmarks.<module>``.

    Where folders lie on one machine says nothing to another: they are given by the names of ``named``, which has their
    paths as keys, and where the result went is left out.
    """
    kept, given = [], iter(arguments)
    for value in given:
        if value == "--output":
            next(given, None)
        elif not value.startswith("--output="):
            option, sign, path = value.partition("=")
            kept.append(f"{option}={named[path]}" if sign and path in named else named.get(value, value))
    return " ".join([f"python -m benchmarks.{module}", *map(shlex.quote, kept)])


def card() -> str:
    """Name of the device that benchmarks run on: the first CUDA device, or CPU."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"


def result_path(name: str, output: str | Path | None = None) -> Path:
    """Where results of a benchmark go: ``output`` itself if it ends in .json, else <name>.json in that folder."""
    output = RESULTS if output is None else Path(output)
    return output if output.suffix == ".json" else output / f"{name}.json"


def output_of(given: Path | None, quick: bool) -> Path | None:
    """Where a run writes for its option ``--output``: what is given, else with ``quick`` a folder of its own."""
    return QUICK_RESULTS if given is None and quick else given


def record(name: str, figures: Sequence[Figure], command: str, output: str | Path | None = None) -> Path:
    """Write the figures of benchmark ``name``, print them as a table and return the path of the file.

    ``command`` is the line that measures them again; ``output`` a folder (None: benchmarks/results) or a .json file.
    Raises ValueError if an id occurs twice, and for NaN or infinite values.
    """
    return write_result(name, content_of(figures, command), output)


def content_of(figures: Sequence[Figure], command: str) -> Content:
    """A result of this machine and day."""
    return {
        "card": card(),
        "versions": package_versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "figures": list(figures),
    }


def write_result(name: str, content: Content, output: str | Path | None = None) -> Path:
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


class Kind(NamedTuple):
    """A benchmark of several cases.

    ``alike``: the ``sizes`` that must be equal in all of its figures that have them. ``derive``: the figures with those
    that follow from others, made anew. ``complete``: whether these figures are all cases.
    """

    name: str
    alike: Sequence[str] = ()
    derive: Callable[[Sequence[Figure]], list[Figure]] = list
    complete: Callable[[Sequence[Figure]], bool] = lambda figures: True


def read_result(path: Path) -> Content:
    """A result file. Raises UserError if it is none."""
    try:
        content = read_json(path)
        if all(key in content for key in ("card", "versions", "date", "command")):
            [figure["id"] for figure in content["figures"]]
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path}: expected a result file of a benchmark")


def joined(parts: Sequence[tuple[str, Content]], alike: Sequence[str] = (), again: bool = False) -> Content:
    """One result of several, each given with what errors call it; figures are joined by id.

    ``alike`` as in :class:`Kind`; with ``again`` a later part may replace figures of an earlier one. Raises UserError
    for parts that do not belong together: of other cards, versions, benchmarks or sizes, or with the same figure.
    """
    first_name, first = parts[0]
    figures: dict[str, tuple[str, Figure]] = {}
    sizes: dict[str, tuple[str, Any]] = {}
    for name, part in parts:
        for key in ("card", "versions"):
            if part[key] != first[key]:
                raise UserError(f"{name} has another {key} than {first_name}; join parts of one kind of machine")
        for figure in part["figures"]:
            for key in alike:
                if key not in figure.get("sizes", {}):
                    continue
                value = figure["sizes"][key]
                other, expected = sizes.setdefault(key, (name, value))
                if value != expected:
                    raise UserError(
                        f"{name} has another {key} than {other}; their figures cannot be compared, so measure one of "
                        "them again with the settings and the data of the other"
                    )
            if figure["id"] in figures and not again:
                raise UserError(f"{figure['id']} stands in {figures[figure['id']][0]} and in {name}; give it once")
            figures[figure["id"]] = (name, figure)
    commands = dict.fromkeys(command for _, part in parts for command in part["command"].split("; "))
    dates = {name: part["date"] for name, part in parts}
    newest = max(dates.values())
    return first | {
        "date": newest,
        "command": "; ".join(commands),
        "figures": [
            figure if dates[name] == newest else {"date": dates[name]} | figure for name, figure in figures.values()
        ],
    }


def join_files(kind: Kind, module: str, paths: Sequence[Path]) -> Content:
    """One result of part files of ``benchmarks.<module>``, as its ``--join`` makes it. Raises UserError."""
    try:
        parts = [(str(path), read_result(path)) for path in paths]
        for name, part in parts:
            if f"python -m benchmarks.{module} " not in f"{part['command']} ":
                raise UserError(f"{name}: expected a result file of benchmarks.{module}")
        content = joined(parts, kind.alike)
    except UserError as error:
        raise UserError(f"--join: {error}") from None
    return content | {"figures": kind.derive(content["figures"])}


def join(kind: Kind, module: str, paths: Sequence[Path], output: str | Path | None = None) -> Path:
    """Write :func:`join_files` to <name>.json, or to <name>_part.json where cases are missing."""
    content = join_files(kind, module, paths)
    name = kind.name if kind.complete(content["figures"]) else f"{kind.name}_part"
    return write_result(name, content, output)


class Kept:
    """Figures of a benchmark of several cases: on the disk after every case, so that a run cut off keeps them.

    They stand in <name>_part.json until all are there. A run of some cases goes on with the file that it finds, and
    with a .json file as ``output`` that is the file; ``fresh``, a run of all, replaces it. ``sizes``: those of
    ``kind.alike`` in the figures that will come. Raises UserError before anything is measured where the file that is
    there does not go with it.
    """

    def __init__(
        self,
        kind: Kind,
        command: str,
        output: str | Path | None = None,
        *,
        fresh: bool,
        sizes: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind, self.command = kind, command
        self.whole = result_path(kind.name, output)
        named = output is not None and Path(output).suffix == ".json"
        self.path = self.whole if named and not fresh else self.whole.with_name(f"{self.whole.stem}_part.json")
        self.before = [] if fresh or not self.path.is_file() else [(str(self.path), read_result(self.path))]
        self.own: dict[str, Figure] = {}
        self.content = content_of([], command)
        expected: Any = {"id": "", "sizes": dict(sizes or {})}
        try:
            joined([*self.before, ("this run", self.content | {"figures": [expected]})], kind.alike, again=True)
        except UserError as error:
            raise UserError(f"{error}, or move {self.path} away") from None

    @property
    def figures(self) -> list[Figure]:
        """All that is there so far."""
        return self.content["figures"]

    def add(self, figures: Sequence[Figure]) -> None:
        """Write the file anew with these figures, in place of those of the same ids."""
        if not figures:
            return
        new = {figure["id"]: figure for figure in figures}
        self.own = {name: figure for name, figure in self.own.items() if name not in new} | new
        own = content_of(list(self.own.values()), self.command)
        content = joined([*self.before, ("this run", own)], self.kind.alike, again=True)
        self.content = content | {"figures": self.kind.derive(content["figures"])}
        write_json(self.path, self.content)

    def end(self, whole: bool = False) -> Path | None:
        """Print the table and return the path of the file: <name>.json, and no part any more, if all cases are there.

        ``whole``: as if they were, though some failed. None where there is no figure.
        """
        if not self.figures:
            return None
        whole = whole or self.kind.complete(self.figures)
        path = write_result(self.kind.name, self.content, self.whole if whole else self.path)
        if path != self.path:
            self.path.unlink(missing_ok=True)
        return path


def record_each(
    name: str, measurements: Iterable[Sequence[Figure]], command: str, output: str | Path | None = None
) -> list[Figure]:
    """As :func:`record` for figures that are measured one group after the other: what was measured is kept."""
    kept = Kept(Kind(name), command, output, fresh=True)
    for figures in measurements:
        kept.add(figures)
    kept.end()
    return kept.figures


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
