"""Table 1: perplexity and commonsense accuracy of Transformer, GDN, Inter and HwH-std."""

from __future__ import annotations

import pandas as pd

from .comparable import raise_if_tasks_mixed
from .paper_values import TABLE_1_VALUES
from .published import HYBRID_NOTE, LANGUAGE_LARGE, LANGUAGE_NEAR_380M, add_published
from .results import Results
from .selection import ARCHITECTURE_TITLES, MAIN_ARCHITECTURES, architectures_of, models_of
from .tables import Table
from .tasktables import LANGUAGE_COLUMNS, language_cells, language_notes, seeds_note


def make(results: Results) -> Table:
    """All scales of the preset; rows of the paper whose scale was not run keep the paper's value.

    Raises :class:`hwh_core.reporting.selection.ReportError` where the scales were evaluated on other rows.
    """
    table = Table(1, "Language modelling and commonsense", ["scale", "architecture"], LANGUAGE_COLUMNS)
    everything = []
    for scale in results.preset.hwh.scales:
        present = set(architectures_of(scale))
        models = models_of(scale, MAIN_ARCHITECTURES)
        if not models:
            continue
        scores = results.scores(scale, models)
        everything.append(scores.assign(model=scale.name + "/" + scores["model"]))
        for name in MAIN_ARCHITECTURES:
            claim_scale = scale.claim_scale if name in present else "none"
            table.add((scale.name, ARCHITECTURE_TITLES[name]), language_cells(scores, name, claim_scale))
        table.notes.append(seeds_note(scale, MAIN_ARCHITECTURES))
    if everything:
        raise_if_tasks_mixed(pd.concat(everything), "all scales")
    run = {scale.claim_scale for scale in results.preset.hwh.scales}
    for scale_name, name in dict.fromkeys((key[0], key[1]) for key in TABLE_1_VALUES):
        if scale_name not in run:
            empty = results_without_scores()
            table.add((f"{scale_name} (paper)", ARCHITECTURE_TITLES[name]), language_cells(empty, name, scale_name))
    table.notes = [*language_notes(table), *table.notes]
    add_published(table, [*LANGUAGE_NEAR_380M, *LANGUAGE_LARGE])
    table.notes.append(HYBRID_NOTE)
    return table


def results_without_scores():
    """An empty score table: every column of a scale that was not run."""
    return pd.DataFrame(columns=["architecture", "task", "metric", "seed", "value", "stderr", "n"])
