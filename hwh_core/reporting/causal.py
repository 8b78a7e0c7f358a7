"""Causal checks of one model as they are shown: measures, units, and the rows of their summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import sha256_of
from .results import CAUSAL_COLUMNS, ResultFolder
from .selection import ReportError

SUMMARY, MANIFEST = "causal_summary.csv", "causal.csv.manifest.json"
FIGURE = "fig_causal"
MEASURES = {"loss": "loss (nats/token)", "needle": "needle answer (nats/token)", "exact": "needles answered (share)"}
UNITS = {"heads": "heads off", "rotation": "rotations off"}


def causal_rows(folder: ResultFolder) -> list[dict[str, Any]]:
    """Rows of causal_summary.csv in words; none where the checks were not run.

    Raises :class:`ReportError` where they were run on another probe than the one that lies beside them.
    """
    if not (folder.root / SUMMARY).is_file():
        return []
    _raise_if_made_anew(folder, MANIFEST, SUMMARY)
    return [
        {
            "intervention": row.intervention,
            "places": f"{row.places} {UNITS[row.kind]}",
            "measure": MEASURES[row.measure],
            "baseline": f"{row.baseline:.3f}",
            "change": f"{row.change:+.3f} [{row.change_low:+.3f}, {row.change_high:+.3f}]",
            "random": f"{row.random_change:+.3f} ({row.random_low:+.3f} to {row.random_high:+.3f})",
            "over_random": f"{row.over_random:+.3f} [{row.over_random_low:+.3f}, {row.over_random_high:+.3f}]",
            "samples": row.n_samples,
        }
        for row in folder.table(SUMMARY, CAUSAL_COLUMNS).itertuples()
    ]


def figure_link(folder: ResultFolder) -> str | None:
    """Name of the figure of the checks that lies in the folder; None where there is none.

    Raises :class:`ReportError` where it was drawn from another summary than the one that lies beside it.
    """
    name = f"{FIGURE}.pdf"
    if not (folder.root / name).is_file():
        return None
    folder.path(name)
    _raise_if_made_anew(folder, f"{name}.manifest.json", name)
    return name


def _raise_if_made_anew(folder: ResultFolder, manifest: str, artifact: str) -> None:
    """Raise :class:`ReportError` where a file beside ``artifact`` is not the one that it was made from."""
    for path, sha256 in folder.json(manifest)["inputs"].items():
        beside = folder.root / Path(path).name
        if beside.is_file() and sha256_of(beside) != sha256:
            raise ReportError(
                f"{folder.root / artifact}: {beside.name} was made anew since; run hwh causal again (--restart), or "
                "delete the file"
            )
