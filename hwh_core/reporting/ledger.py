"""The claims ledger: every claim of the paper with its number, tolerance, interval, verdict and evidence."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import PresetConfig
from ..files import atomic_write, write_json
from ..provenance import write_manifest
from . import (
    band_emergence,
    claims_controlled,
    claims_hybrid_1_4b,
    claims_hybrid_380m,
    claims_numeric,
    claims_pretrained,
    claims_synthetic,
    head_influence,
    hybrid_scales,
    requirements,
    selection,
)
from .claim_model import Claim, ClaimRecord, not_testable, record
from .results import Results

if TYPE_CHECKING:
    from rich.table import Table as RichTable

CLAIMS: list[Claim] = [
    *claims_numeric.CLAIMS,
    *claims_synthetic.CLAIMS,
    *claims_controlled.CLAIMS,
    *claims_pretrained.CLAIMS,
    *claims_hybrid_380m.CLAIMS,
    *claims_hybrid_1_4b.CLAIMS,
]
DATA_FILES = ("templates/claims.md.jinja",)
VERDICTS = ("reproduced", "not_reproduced", "inconclusive", "not_testable")
SCALE_TITLES = {
    "N": "arithmetic and definitions",
    "S": "synthetic heads",
    "C": "controlled Transformers",
    "W": "published weights",
    "M": "hybrid family, 380M",
    "B": "hybrid family, 1.4B",
}
SMOKE_NOTE = "smoke preset: its models are too small to test anything; no claim is read from them"


def claims_of(preset: PresetConfig) -> list[Claim]:
    """The claims of the registry; those about needles in a trained wording where the preset has such needles."""
    asked = hybrid_scales.trained_grid(preset) is not None
    return [claim for claim in CLAIMS if asked or not claim.id.endswith(hybrid_scales.TRAINED)]


def evaluate(results: Results) -> list[ClaimRecord]:
    """Test every claim of :func:`claims_of` on the files of ``results``, in the order of the registry.

    Raises :class:`hwh_core.reporting.selection.ReportError` when a file of the preset is missing or damaged: a claim is
    not testable only because its models are not part of the preset.
    """
    records = []
    for claim in claims_of(results.preset):
        measured = claim.scale != "N"
        smoke = results.preset.preset == "smoke"
        outcome = not_testable(SMOKE_NOTE) if smoke and measured else claim.evaluate(results)
        records.append(record(claim, outcome))
    return records


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ends(ci: list[float | None] | None) -> str:
    if ci is None:
        return ""
    low, high = ("-∞" if ci[0] is None else _number(ci[0])), ("∞" if ci[1] is None else _number(ci[1]))
    return f" [{low}, {high}]"


def ours_text(entry: ClaimRecord, separator: str = "; ", most: int | None = None) -> str:
    """Our numbers with their intervals (exact numbers without), at most ``most`` parts."""
    exact = entry.n_seeds == 0 and entry.scale in ("N", "S")
    if entry.ours is None:
        return "-"
    if not isinstance(entry.ours, dict):
        return _number(entry.ours) + ("" if exact else _ends(entry.ci))
    ci = entry.ci if isinstance(entry.ci, dict) else {}
    lines = [f"{label}: {_number(value)}{'' if exact else _ends(ci.get(label))}" for label, value in entry.ours.items()]
    if most is not None and len(lines) > most:
        rest = len(lines) - most
        lines = [*lines[:most], f"and {rest} more part{'s' * (rest > 1)}"]
    return separator.join(lines)


def counts(records: list[ClaimRecord]) -> dict[str, Counter]:
    """Number of verdicts by scale letter."""
    found: dict[str, Counter] = {letter: Counter() for letter in SCALE_TITLES}
    for entry in records:
        found[entry.scale][entry.verdict] += 1
    return found


def models_tried(results: Results) -> list[dict[str, Any]]:
    """What was trained: rows of name, kind, parameters, tokens and held-out loss, from each metrics.json."""
    preset = results.preset
    names = [(f"controlled/{m.name}", "controlled Transformer") for m in preset.controlled.models]
    names += [
        (
            f"hwh/{s.name}/{m.name}",
            f"{m.architecture}, scale {s.name}" + ("" if m.retrieval_mix else ", control without the retrieval mix"),
        )
        for s in preset.hwh.scales
        for m in s.models
    ]
    rows = []
    for folder, kind in names:
        metrics = results.json(f"{folder}/metrics.json")
        rows.append(
            {
                "model": folder,
                "kind": kind,
                "parameters": metrics.get("parameters"),
                "tokens": metrics.get("tokens"),
                "held_out_loss": metrics.get("held_out_loss"),
            }
        )
    return rows


def deviations(preset: PresetConfig) -> list[str]:
    """In what the preset differs from the paper's protocol: data, sizes, tokens, samples."""
    lines = [f"Training text: {', '.join(source.name for source in preset.data.sources)} (the paper: FineWeb-Edu)."]
    shape, training, probe = preset.controlled.shape, preset.controlled.training, preset.controlled.probe
    if preset.controlled.models:
        tokens = training.steps * training.tokens_per_step
        lengths = sorted({model.length for model in preset.controlled.models})
        lines.append(
            f"Controlled models: {shape.num_layers} layers, width {shape.hidden_size}, lengths {lengths}, "
            f"{tokens:,} tokens each, probed with {probe.num_samples} samples and {probe.num_queries} queries (the "
            "paper: lengths 2048 and 4096; its sizes are not in the text that was available)."
        )
    for scale in preset.hwh.scales:
        tokens = scale.training.steps * scale.training.tokens_per_step
        seeds = sorted({model.seed for model in scale.models})
        size = f"{scale.shape.num_layers} layers, width {scale.shape.hidden_size}, context {scale.length}"
        lines.append(
            f"Scale {scale.name} (claim scale {scale.claim_scale}): {size}, {tokens:,} tokens, seeds {seeds} (the "
            "paper: 380M on 15B tokens and 1.4B on 100B, context 2048)."
        )
        if mix := selection.mix_note(scale):
            names = [model.name for model in selection.controls(scale)]
            trained = any(grid.wording == "trained" for grid in preset.evaluation.niah.additional)
            but = " Those stand in Table 2 and decide the rows ending in -trained." if trained else ""
            lines.append(f"Scale {scale.name}: {mix}.{but} Controls without the mix: {', '.join(names) or 'none'}.")
    if preset.pretrained.models:
        weights, titles = preset.pretrained.probe, [model.title for model in preset.pretrained.models]
        scores = preset.pretrained.behavior
        lines.append(
            f"Published weights: {', '.join(titles)}; RFIS and RPD on {weights.num_samples} samples of "
            f"{weights.length} tokens, last {weights.num_queries} queries; QRscore and LDscore on {scores.num_samples} "
            f"of {scores.length}, last {scores.num_queries} (the paper: Qwen3, Llama3.1, Gemma; 100 samples)."
        )
    niah = preset.evaluation.niah
    lines.append(
        f"Needle grid: lengths {niah.lengths}, depths {niah.depths}, {niah.samples_per_cell} prompts a cell, haystack "
        f"{niah.haystack}, metric {niah.metric} (the paper: RULER NIAH-Single-2 to 8192 tokens, 11 depths)."
    )
    absent = [f"Figure {n}" for n in selection.FIGURE_NUMBERS if selection.missing_for_figure(preset, n)]
    absent += [f"Table {n}" for n in selection.TABLE_NUMBERS if selection.missing_for_table(preset, n)]
    if absent:
        lines.append(f"Not drawn, since this preset has no models for them: {', '.join(absent)}.")
    return lines


def markdown(records: list[ClaimRecord], results: Results) -> str:
    """The readable report."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown, escaped by the filter
    )
    environment.filters["md"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    environment.filters["ours"] = lambda entry: ours_text(entry, "<br>")
    return environment.get_template("claims.md.jinja").render(
        records=records,
        counts=counts(records),
        verdicts=VERDICTS,
        scales=SCALE_TITLES,
        preset=results.preset,
        trained=hybrid_scales.trained_grid(results.preset),
        deviations=deviations(results.preset),
        tried=models_tried(results),
        beyond=[*band_emergence.notes(results), *head_influence.notes(results)],
    )


COLOURS = {"reproduced": "green", "not_reproduced": "red", "inconclusive": "yellow", "not_testable": "dim"}


def printed_table(records: list[ClaimRecord]) -> RichTable:
    """The table that ends a run: the testable claims, those of several parts cut to two; the rest is counted."""
    from rich.table import Table
    from rich.text import Text

    tested = [entry for entry in records if entry.verdict != "not_testable"]
    rest = len(records) - len(tested)
    table = Table(title="Claims of the paper", caption=f"{rest} further claims are not testable with this preset")
    for title in ("claim", "statement", "ours", "verdict"):
        fixed = title in ("claim", "verdict")
        table.add_column(title, ratio=None if fixed else 3, no_wrap=fixed, overflow="ignore" if fixed else "fold")
    # A column that may not wrap still shrinks in a narrow terminal unless it has a least width.
    table.columns[0].min_width = max((len(entry.id) for entry in tested), default=5)
    table.columns[-1].min_width = max(len(name) for name in VERDICTS)
    for entry in tested:
        verdict = Text(entry.verdict.replace("_", " "), style=COLOURS[entry.verdict])
        table.add_row(entry.id, Text(entry.statement), Text(ours_text(entry, "\n", most=2)), verdict)
    return table


def write(results: Results, output: str | Path) -> list[ClaimRecord]:
    """Evaluate all claims and write ``output`` (claims.json), claims.md beside it and the manifest; return the records.

    Raises :class:`hwh_core.reporting.selection.ReportError` for a missing or damaged file of the preset.
    """
    started = time.time()
    output = Path(output)
    if output.suffix != ".json":
        raise selection.ReportError(f"--output: {output} must end in .json; claims.md is written beside it")
    for name in requirements.claims_inputs(results.preset):
        results.path(name)
    records = evaluate(results)
    report = output.with_suffix(".md")
    with atomic_write(report) as temporary:
        temporary.write_text(markdown(records, results), encoding="utf-8")
    write_json(output, [entry.model_dump(mode="json") for entry in records])
    settings = {"preset": results.preset.preset, "claims": len(records)}
    write_manifest(output, inputs=results.used, settings=settings, started=started, beside=[report])
    return records
