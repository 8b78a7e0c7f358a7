"""What a preset costs before anything runs: tokens, FLOPs, hours, memory and disk of its jobs, and which are done.

Arithmetic from the preset, speeds from the committed benchmarks. Needs no torch. Not counted, since their sizes are
known only once they are fetched: downloads, pretrained models and their probes, rows of tasks. Probes of trained
models, perplexity of articles and figures take seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chains import chains_of
from .config import NiahConfig, PresetConfig
from .memory_estimate import peak_bytes
from .memory_plan import Planned, planned_trainings, vocabularies
from .reporting import requirements
from .reporting.comparisons import COMPARISONS, table_inputs
from .reporting.selection import ON_DEMAND_FIGURES, OWN_FIGURES, OWN_TABLES
from .scripting import UserError
from .throughput import CPU_CORES, Measurement, expected_speed, flops_per_token

# Bytes a parameter: weights in float32, and a checkpoint of weights and two moments of the optimizer.
WEIGHT_BYTES, CHECKPOINT_BYTES = 4, 12
# Of English text under a vocabulary of thousands of entries, and of documents in Zstandard's level 6.
BYTES_A_TOKEN, COMPRESSION = 4, 0.45
# Tokens a second that one core tokenizes, where benchmarks/results/data.json does not say.
TOKENIZING_SPEED = 200_000
# Generated tokens a second over a batch, and prompt tokens a second, where benchmarks/results/decode.json does not say.
GENERATING_SPEED, READING_SPEED = 150, 100_000
# Prompts of that batch, and parameters of the model, in benchmarks.decode.
DECODED_BATCH, DECODED_PARAMETERS = 8, 380e6


@dataclass(frozen=True)
class Job:
    """One step: ``hours`` of a GPU (``gpu``) or else of a processor core, all of it and what is left of it.

    ``parameters`` and ``memory`` (peak in bytes on the GPU) of trainings; ``disk`` in bytes; ``basis``: what the speed
    rests on.
    """

    name: str
    state: str
    gpu: bool
    tokens: int
    flops: float
    hours: float
    hours_left: float
    disk: int
    parameters: int | None = None
    memory: int | None = None
    tokens_per_second: float | None = None
    basis: str = ""


def text_bytes(preset: PresetConfig) -> int:
    """UTF-8 bytes of text that a preset asks for."""
    limits = [source.max_bytes for source in preset.data.sources if source.kind == "hub" and source.max_bytes]
    return max(preset.data.minimum_bytes, sum(limits))


def model_disk(planned: Planned) -> int:
    """Disk of one training in bytes: weights before and after it, and its checkpoints."""
    checkpoints = planned.training.training.keep_checkpoints * CHECKPOINT_BYTES
    return planned.training.parameters * (2 * WEIGHT_BYTES + checkpoints)


def disk_bytes(preset: PresetConfig) -> int:
    """Rough disk that a preset takes besides downloads: documents, token stores, weights, checkpoints, snapshots."""
    text = text_bytes(preset)
    needs = [model_disk(planned) for planned in planned_trainings(preset)]
    # Weights that are not kept lie there for one model at a time.
    models = sum(needs) if preset.keep_weights else max(needs, default=0)
    if curve := preset.controlled.curve:
        sizes = {p.folder: p.training.parameters for p in planned_trainings(preset)}
        snapshots = sum(sizes[f"controlled/{name}"] for name in curve.models)
        models += snapshots * len(curve.snapshot_steps) * WEIGHT_BYTES
    stores = sum(text // BYTES_A_TOKEN * _token_bytes(size) for size in vocabularies(preset).values())
    return int(2 * COMPRESSION * text) + stores + models


def _token_bytes(vocabulary: int) -> int:
    return 2 if vocabulary <= 1 << 16 else 4


def _content(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _figures(folder: Path, name: str) -> dict[str, float]:
    return {figure["id"]: figure["value"] for figure in _content(folder, name).get("figures", [])}


def _state(done: bool) -> str:
    return "done" if done else "to do"


def data_jobs(preset: PresetConfig, results: Path, benchmarks: Path) -> Iterator[Job]:
    """Documents and token stores; fetching is left out, its time being that of the network."""
    text = text_bytes(preset)
    done = (results / "data" / "documents" / "documents.json").is_file()
    yield Job("data/documents", _state(done), False, 0, 0.0, 0.0, 0.0, int(2 * COMPRESSION * text))
    measured = _figures(benchmarks, "data").get("data.tokenize_tokens_per_second_core")
    speed = measured or TOKENIZING_SPEED
    for name, vocabulary in vocabularies(preset).items():
        tokens = text // BYTES_A_TOKEN
        folders = [results / "data" / name / split for split in ("train", "held_out")]
        done = all((folder / "index.json").is_file() for folder in folders)
        hours = tokens / speed / 3600
        yield Job(
            name=f"data/{name}",
            state=_state(done),
            gpu=False,
            tokens=tokens,
            flops=0.0,
            hours=hours,
            hours_left=0.0 if done else hours,
            disk=tokens * _token_bytes(vocabulary),
            tokens_per_second=speed,
            basis="measured, one core" if measured else "assumed, one core",
        )


def _steps_done(folder: Path, steps: int) -> int:
    """Steps of a training that need not be run again: all with its metrics, else those of its newest checkpoint.

    What a training of another number of steps left is made anew: its metrics, and checkpoints beyond the last step.
    """
    if (folder / "metrics.json").is_file():
        try:
            recorded = _content(folder, "metrics").get("steps", steps)
        except ValueError:
            recorded = None
        return steps if recorded == steps else 0
    found = [re.fullmatch(r"step-(\d+)", entry.name) for entry in (folder / "checkpoints").glob("step-*")]
    reached = [int(match[1]) for match in found if match]
    return max((step for step in reached if step <= steps), default=0)


def training_job(planned: Planned, results: Path, measured: Sequence[Measurement], card: str | None) -> Job:
    """One training on one device. Raises :class:`UserError` for a card whose peak is not known."""
    training, config = planned.training, planned.training.training
    tokens = config.steps * config.tokens_per_step
    speed = expected_speed(training, measured, card)
    done = _steps_done(results / planned.folder, config.steps)
    gpu = config.precision == "bfloat16"
    hours = tokens / speed.tokens_per_second / 3600 * (1 if gpu else CPU_CORES)
    partly = f"step {done} of {config.steps}" if 0 < done < config.steps else None
    return Job(
        name=planned.folder,
        state=partly or _state(done == config.steps),
        gpu=gpu,
        tokens=tokens,
        flops=tokens * flops_per_token(training),
        hours=hours,
        hours_left=hours * (1 - done / config.steps),
        disk=model_disk(planned),
        parameters=training.parameters,
        memory=peak_bytes(training),
        tokens_per_second=speed.tokens_per_second,
        basis=speed.basis,
    )


def probe_job(name: str, results: Path) -> Job:
    """Probes of a pretrained model; its size is known once it is fetched, so only the state is told."""
    done = (results / "pretrained" / name / "bands.json").is_file()
    return Job(f"pretrained/{name}", _state(done), True, 0, 0.0, 0.0, 0.0, 0, basis="not counted")


def _needle_cells(niah: NiahConfig) -> Iterator[tuple[int, int]]:
    """Length and number of the prompts of one length in each grid."""
    for length in niah.lengths:
        yield length, len(niah.depths) * niah.samples_per_cell
    for grid in niah.additional:
        depths = 1 if grid.fill == "lm_eval" else len(niah.depths)
        for length in grid.lengths or niah.lengths:
            yield length, depths * (grid.samples or niah.samples_per_cell)


def needle_prompts(niah: NiahConfig) -> tuple[int, int]:
    """Prompts of all grids of one model, and the tokens that they take with their answers."""
    cells = list(_needle_cells(niah))
    return sum(prompts for _, prompts in cells), sum(length * prompts for length, prompts in cells)


def needle_batches(niah: NiahConfig, batch_tokens: int) -> int:
    """Batches of at most ``batch_tokens`` in which all grids of one model are answered."""
    return sum(-(-prompts // max(1, batch_tokens // length)) for length, prompts in _needle_cells(niah))


def needle_job(preset: PresetConfig, planned: Planned, results: Path, benchmarks: Path, card: str | None = None) -> Job:
    """All needle grids of one model: every prompt is read, and with RULER's metric every answer is generated.

    A token of every answer in a batch takes as long as in the measured one, whatever the batch and the model: it is the
    time to launch the work. Larger models read prompts in proportion to their parameters. Hours are those of the
    measured card; where ``card`` is another, that is said.
    """
    niah, training = preset.evaluation.niah, planned.training
    _, tokens = needle_prompts(niah)
    batches = needle_batches(niah, preset.evaluation.batch_tokens)
    written = batches * niah.max_new_tokens if niah.metric == "ruler_contains" else 0
    kind = "transformer" if training.architecture == "transformer" else "hwh_std"
    speeds = _figures(benchmarks, "decode")
    reading = speeds.get(f"decode.8192_{kind}_prefill_tokens_per_second")
    writing = speeds.get(f"decode.8192_{kind}_batch8_decode_tokens_per_second")
    gpu = training.training.precision == "bfloat16"
    forward = flops_per_token(training) / 3
    if gpu:
        read = tokens / (reading or READING_SPEED) * max(1.0, training.parameters / DECODED_PARAMETERS)
        hours = (read + written * DECODED_BATCH / (writing or GENERATING_SPEED)) / 3600
        basis = f"measured at 380M, {kind}" if reading and writing else "assumed"
        measured_on = _content(benchmarks, "decode").get("card")
        if reading and writing and card not in (None, measured_on):
            basis += f", {measured_on}"
    else:
        # A forward pass is a third of a step; without a batch of its own a generated token costs no more than that.
        hours = CPU_CORES * tokens / (3 * expected_speed(training, []).tokens_per_second) / 3600
        basis = "assumed, two cores"
    done = (results / planned.folder / "niah_cells.csv").is_file()
    return Job(
        name=f"{planned.folder}: needles",
        state=_state(done),
        gpu=gpu,
        tokens=tokens,
        flops=tokens * forward,
        hours=hours,
        hours_left=0.0 if done else hours,
        disk=0,
        basis=basis,
    )


def target_paths(preset: PresetConfig, targets: Iterable[str]) -> list[str]:
    """Files below ``results/<preset>`` that figures and tables (``fig4``, ``table1``, ``band_curve``) are made of.

    Raises :class:`UserError` for a target that is none, or whose models the preset lacks.
    """
    paths: list[str] = []
    for target in targets:
        if match := re.fullmatch(r"(fig|table)(\d+)", target):
            read = requirements.figure_inputs if match[1] == "fig" else table_inputs
            paths += read(preset, int(match[2]))
        elif target.removeprefix("fig_") in (*OWN_FIGURES, *ON_DEMAND_FIGURES):
            paths += requirements.figure_inputs(preset, target.removeprefix("fig_"))
        elif target.removeprefix("table_") in (*OWN_TABLES, *COMPARISONS):
            paths += table_inputs(preset, target.removeprefix("table_"))
        elif target == "claims":
            paths += requirements.claims_inputs(preset)
        else:
            raise UserError(f"target {target!r} is unknown; expected for example fig4, table1 or claims")
    return paths


def target_folders(preset: PresetConfig, targets: Iterable[str]) -> set[str]:
    """Folders of the trainings behind :func:`target_paths`."""
    folders = (planned.folder for planned in planned_trainings(preset))
    return set(chains_of(folders, target_paths(preset, targets)))


def estimate(
    preset: PresetConfig,
    *,
    results: Path,
    benchmarks: Path,
    measured: Sequence[Measurement],
    card: str | None = None,
    targets: Iterable[str] = (),
) -> list[Job]:
    """Jobs of a preset in the order in which they run, or only the trainings and needles that ``targets`` are made of.

    ``results`` is ``results/<preset>``, ``benchmarks`` the folder of the committed benchmark results.
    """
    targets = list(targets)
    chosen = target_folders(preset, targets)
    # All grids of a model are answered in one go.
    needles = {path.rpartition("/")[0] for path in target_paths(preset, targets) if "/niah" in path}
    jobs = [] if targets else list(data_jobs(preset, results, benchmarks))
    for planned in planned_trainings(preset):
        if targets and planned.folder not in chosen:
            continue
        jobs.append(training_job(planned, results, measured, card))
        if planned.folder in needles or (not targets and planned.folder.startswith("hwh/")):
            jobs.append(needle_job(preset, planned, results, benchmarks, card))
    if not targets:
        jobs += [probe_job(model.name, results) for model in preset.pretrained.models]
    return jobs


def waiting(preset: PresetConfig, jobs: Iterable[Job]) -> list[str]:
    """Folders of the trainings among ``jobs`` that are not done: those that must fit the card."""
    folders = {planned.folder for planned in planned_trainings(preset)}
    return [job.name for job in jobs if job.name in folders and job.state != "done"]
