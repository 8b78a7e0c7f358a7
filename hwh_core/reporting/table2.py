"""Table 2: real-world retrieval and needle tasks (1.4B in the paper)."""

from __future__ import annotations

from ..config import NiahConfig
from . import task_scores
from .needle_grids import additional_note, grid_title
from .paper_values import SUMMARY
from .published import NEEDLE_NOTE, RETRIEVAL_LARGE, RULER_NOTE, add_published
from .results import Results
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES, controls, models_of, scale_for
from .tables import Cell, Table, seeds_cell
from .tasktables import retrieval_cells, retrieval_columns, retrieval_notes, seeds_note


def make(results: Results) -> Table:
    """Retrieval tasks and the mean over depth of the needle grids by length.

    Models without the retrieval mix of the scale follow in rows of their own.
    """
    preset = results.preset
    scale = scale_for(preset, "1.4B")
    niah = preset.evaluation.niah
    groups = [(name, ARCHITECTURE_TITLES[name], models_of(scale, [name])) for name in MAIN_ARCHITECTURES]
    for name in dict.fromkeys(model.architecture for model in controls(scale)):
        title = f"{ARCHITECTURE_TITLES.get(name, name)}, no retrieval mix"
        groups.append((name, title, [model for model in controls(scale) if model.architecture == name]))
    members = [model for _, _, models in groups for model in models]
    # Checks, before anything is compared, that all models answered the same rows and the same prompts.
    everything = results.scores(scale, members)
    for grid in (None, *niah.additional):
        results.cells(scale, members) if grid is None else results.additional_cells(scale, members, grid)
    grids = {f"NIAH-S2 grid @{length}": (None, length) for length in sorted(niah.lengths)}
    for grid in niah.additional:
        for length in grid.lengths or additional_lengths(niah, scale.length):
            grids[f"{grid_title(grid)} @{length}"] = (grid, length)
    title = "Real-world retrieval and needle in a haystack"
    table = Table(2, title, ["scale", "architecture"], [*retrieval_columns(everything), *grids])
    for name, label, models in groups:
        if not models:
            # As in Table 1, the paper's four stand in every preset.
            table.add((scale.name, label), {})
            continue
        scores = results.scores(scale, models)
        row = retrieval_cells(scores, name)
        cells = {grid: results.additional_cells(scale, models, grid) for grid in niah.additional}
        cells[None] = results.cells(scale, models)
        for text, (grid, length) in grids.items():
            values = task_scores.needle_values(cells[grid], name, lambda n, wanted=length: n == wanted)
            # The paper's zeros are of RULER's tasks, so not of other wordings.
            known = grid is None or grid.wording == "ruler"
            row[text] = _grid_cell(values, scale.claim_scale if known else "none", name, length)
        table.add((scale.name, label), row)
    table.notes = [
        *retrieval_notes(everything),
        f"NIAH-S2 grid: RULER's wording, {niah.metric}, haystack {niah.haystack}, mean over depths {niah.depths}.",
        seeds_note(scale, MAIN_ARCHITECTURES),
    ]
    if niah.additional:
        table.notes.append(additional_note(niah.additional))
    add_published(table, RETRIEVAL_LARGE)
    table.notes += [NEEDLE_NOTE, RULER_NOTE]
    table.settings = {"scale": scale.name}
    return table


def additional_lengths(niah: NiahConfig, training_length: int) -> list[int]:
    """Lengths of the additional grids that the table shows: half, once, twice and four times the training length.

    All lengths where the grid has none of these.
    """
    shown = [n for n in sorted(niah.lengths) if 2 * n in {f * training_length for f in (1, 2, 4, 8)}]
    return shown or sorted(niah.lengths)


# The summary: "Transformer scores zero on all NIAH tasks at 4K".
def _grid_cell(values: task_scores.SeedValues, claim_scale: str, architecture: str, length: int) -> Cell:
    if (claim_scale, architecture, length) == ("1.4B", "transformer", 4096):
        return seeds_cell(values, paper=0.0, source=f"{SUMMARY} of Table 2", digits=1)
    return seeds_cell(values, digits=1)
