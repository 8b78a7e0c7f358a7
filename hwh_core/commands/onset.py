"""When retrieval emerges in the trainings of a scale with a retrieval mix, from their logs alone.

Compares the losses of two models of one seed, which see equal batches: the difference, by the digits of planted values
that a batch asks for or repeats, says what a model saves a digit by copying. --against is best a model that answers no
needle, and the nearer its other losses are to those of the others, the smaller the errors. Reads train_log.jsonl,
finished or in progress, and the token store; writes onset_<scale>_<against>.csv (all windows, question and repeated
digits apart and joined) and .png, and prints the onset of each model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..scripting import UserError

if TYPE_CHECKING:
    from ..config import PresetConfig
    from ..config.hwh import HwHModel, HwHScale
    from ..data.retrieval_mix import RetrievalMixLoader
    from ..retrieval_onset import Estimate, Onset
    from ..training_logs import TrainingLog

WINDOWS = 11
COLUMNS = ("model", "against", "first_step", "last_step", "regressor", "nats_per_digit", "stderr", "n")
NONE_FOUND = "not within this training"
HEADING = ("model", "retrieves from step", "95% range", "nats a digit", "of questions", "of repeated facts")


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh onset`."""
    parser = subparsers.add_parser(
        "onset", help="when retrieval emerges in training, from the logs of two models or more", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--preset", default="single_gpu", help="name or file of a preset (default: single_gpu)")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="results folder of the preset (default: results/<preset>)"
    )
    parser.add_argument("--scale", required=True, help="name of the scale, for example 35M")
    parser.add_argument("--against", required=True, metavar="MODEL", help="model that the others are compared with")
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL",
        help="models to compare (default: all of the scale with the seed and mix of --against and a log)",
    )  # fmt: skip
    parser.add_argument(
        "--windows", type=int, default=WINDOWS, help=f"equal windows of the training (default: {WINDOWS})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the outputs (default: onset in --root)")


def run(args: argparse.Namespace) -> int:
    """Estimate, write and print."""
    from ..files import errors_name
    from ..progress import progress
    from ..retrieval_onset import count_planted, find_onset, window_edges, window_estimates
    from .doctor import find_presets

    started = time.time()
    (preset,) = find_presets(Path("."), [args.preset])
    root = args.root or Path("results") / preset.preset
    scale = _scale(preset, args.scale)
    against, compared = _models(scale, args.against, args.models)
    folders = {model.name: root / "hwh" / scale.name / model.name for model in (against, *compared)}
    logs, missing = _logs(folders, against.name)
    steps = min(len(log.losses) for log in logs.values())
    try:
        edges = window_edges(steps, args.windows)
    except ValueError as error:
        raise UserError(f"--windows: {error}") from None
    loader = _loader(scale, against, root)
    _check_logs(logs, against.name, scale, loader)
    planted = count_planted(
        loader.mix, loader.words, loader.seed, steps, loader.batch_size,
        lambda numbers: progress(numbers, "planted digits", unit="step"),
    )  # fmt: skip
    base = logs[against.name].losses[:steps]
    estimates = {
        name: window_estimates((log.losses[:steps] - base) * log.tokens_per_step, planted, edges)
        for name, log in logs.items()
        if name != against.name
    }
    joined = {name: [row for row in rows if row.regressor == "both"] for name, rows in estimates.items()}
    if not all(joined.values()):
        raise UserError(
            f"--windows: no window holds enough digits that are taken up again; {args.windows} are too many"
        )
    onsets = {name: find_onset(rows) for name, rows in joined.items()}
    out = args.out or root / "onset"
    with errors_name(out):
        out.mkdir(parents=True, exist_ok=True)
    architectures = {model.name: model.architecture for model in compared if model.name in estimates}
    prefix = out / f"onset_{scale.name}_{against.name}"
    paths = _write(prefix, estimates, joined, onsets, architectures, against, scale, logs, loader, started)
    _print(estimates, onsets, f"Scale {scale.name}, seed {against.seed}, against {against.name}: steps 1 to {steps:,}")
    notes = _notes(logs, missing, steps, loader, onsets, against.name)
    print("\n".join([*notes, *_other_way(joined, against.name)]))
    print("\n".join(map(str, paths)))
    return 0


def _scale(preset: PresetConfig, name: str) -> HwHScale:
    """The scale by name, if it is trained with a mix whose digits can be told from its pairs."""
    scales = {scale.name: scale for scale in preset.hwh.scales}
    if name not in scales:
        raise UserError(f"--scale: preset {preset.preset!r} has no scale {name!r}; expected {_one_of(scales)}")
    mix = scales[name].retrieval_mix
    if mix is None:
        mixed = [scale.name for scale in preset.hwh.scales if scale.retrieval_mix is not None]
        raise UserError(
            f"--scale: scale {name!r} of preset {preset.preset!r} has no retrieval_mix, so no batch asks for a fact; "
            + (f"expected {_one_of(mixed)}" if mixed else "name another preset with --preset")
        )
    if len(set(mix.value_digits)) == 1:
        raise UserError(
            f"--scale: retrieval_mix.value_digits of scale {name!r} is {mix.value_digits}, and values of one length "
            "cannot be told from the words around them; this needs a training with values of several lengths"
        )
    return scales[name]


def _one_of(names: Any) -> str:
    names = list(names)
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _models(scale: HwHScale, against: str, wanted: Sequence[str] | None) -> tuple[HwHModel, list[HwHModel]]:
    """The model of --against and those to compare, which all see its batches."""
    models = {model.name: model for model in scale.models}

    def one(option: str, name: str) -> HwHModel:
        if name not in models:
            raise UserError(f"{option}: scale {scale.name!r} has no model {name!r}; expected {_one_of(models)}")
        if not models[name].retrieval_mix:
            raise UserError(
                f"{option}: {name} is trained without the retrieval_mix of scale {scale.name!r} (retrieval_mix: false) "
                "and sees other batches; name a model with it"
            )
        return models[name]

    base = one("--against", against)
    if wanted is None:
        mixed = [model for model in scale.models if model.retrieval_mix and model.seed == base.seed]
        if len(mixed) == 1:
            raise UserError(
                f"--against: no other model of scale {scale.name!r} has the mix and seed {base.seed} of {against}; "
                "name one of another seed"
            )
        return base, [model for model in mixed if model.name != against]
    chosen = [one("--models", name) for name in dict.fromkeys(wanted)]
    for model in chosen:
        if model.seed != base.seed:
            raise UserError(
                f"--models: {model.name} has seed {model.seed}, but {against} of --against has seed {base.seed}, and "
                "batches are equal within a seed only; name models of one seed"
            )
        if model.name == against:
            raise UserError(f"--models: {against} is the model of --against; name others to compare with it")
    return base, chosen


def _logs(folders: Mapping[str, Path], against: str) -> tuple[dict[str, TrainingLog], list[str]]:
    """Logs by model, that of ``against`` among them, and the models that have none."""
    from ..training_logs import LOG, read_log

    found = {name: read_log(folder) for name, folder in folders.items()}
    logs = {name: log for name, log in found.items() if log is not None}
    missing = [name for name in found if name not in logs]
    where = f"{LOG} (or checkpoints/{LOG})"
    if against in missing:
        raise UserError(f"--against: {folders[against]} holds no {where}; train {against}, or name a model with a log")
    if len(logs) == 1:
        raise UserError(
            f"--models: none of {', '.join(missing)} has a {where} in {folders[against].parent}; train "
            f"one with the seed of {against}, or name another model with --against"
        )
    return logs, missing


def _loader(scale: HwHScale, model: HwHModel, root: Path) -> RetrievalMixLoader:
    """The batches of a model from the store of its scale. Raises :class:`UserError` where it is not there."""
    from ..data.loader import BatchLoader
    from ..data.retrieval_mix import RetrievalMixLoader
    from ..data.store import TokenStore

    data = root / "data" / scale.tokenizer
    for folder, file in ((data / "train", "index.json"), (data / "tokenizer", "")):
        if not (folder / file).exists():
            raise UserError(
                f"--root: {folder} is not there, and without the token store and its tokenizer it is not known what "
                "was planted; make them with snakemake, or name the results folder of the preset"
            )
    store = TokenStore.open(data / "train")
    store.check_tokenizer(data / "tokenizer")
    length = scale.length
    prose = BatchLoader(store, length, scale.training.tokens_per_step // length, model.seed)
    return RetrievalMixLoader(prose, scale.retrieval_mix, data / "tokenizer")


def _check_logs(logs: Mapping[str, TrainingLog], against: str, scale: HwHScale, loader: RetrievalMixLoader) -> None:
    """Raise :class:`UserError` for logs of other sizes, of other batches as far as recorded, and for copies."""
    expected = loader.fingerprint
    for name, log in logs.items():
        if log.tokens_per_step != scale.training.tokens_per_step:
            raise UserError(
                f"{log.path}: {name} was trained on {log.tokens_per_step} tokens a step, but "
                f"hwh.scales.{scale.name}.training.tokens_per_step is {scale.training.tokens_per_step}; name the "
                "preset of that training, or leave the model out with --models"
            )
        if log.batches is not None and log.batches != expected:
            raise UserError(
                f"{log.path}: {name} was trained on other batches (fingerprint {log.batches[:16]}) than "
                f"{loader.store.folder} and the retrieval_mix of scale {scale.name!r} give now ({expected[:16]}); "
                "restore the store, preset and code of that training, or leave the model out with --models"
            )
        base = logs[against]
        steps = min(len(log.losses), len(base.losses))
        if name != against and (log.losses[:steps] == base.losses[:steps]).all():
            raise UserError(
                f"{log.path}: every loss is that of {base.path}, so this is a copy of it; restore the log of {name}, "
                "or leave the model out with --models"
            )


def _write(
    prefix: Path,
    estimates: Mapping[str, Sequence[Estimate]],
    joined: Mapping[str, Sequence[Estimate]],
    onsets: Mapping[str, Onset | None],
    architectures: Mapping[str, str],
    against: HwHModel,
    scale: HwHScale,
    logs: Mapping[str, TrainingLog],
    loader: RetrievalMixLoader,
    started: float,
) -> list[Path]:
    """Write table, figure and the manifest of the table; return table and figure."""
    from dataclasses import asdict

    import pandas as pd

    from ..files import atomic_write
    from ..onset_drawing import draw_onset
    from ..provenance import write_manifest

    rows = [
        {"model": name, "against": against.name, **asdict(row)} for name, found in estimates.items() for row in found
    ]
    table, picture = (prefix.with_name(f"{prefix.name}.{kind}") for kind in ("csv", "png"))
    with atomic_write(table) as temporary:
        pd.DataFrame(rows)[list(COLUMNS)].to_csv(temporary, index=False, float_format="%.8g", lineterminator="\n")
    title = (
        f"What models pay for a planted digit, less what {against.name} pays (scale {scale.name}, seed {against.seed})"
    )
    draw_onset(picture, joined, onsets, architectures, title)
    # Under no key of a preset: `hwh verify` holds settings of these names against it.
    settings = {
        "scale_of_the_logs": scale.name,
        "against": against.name,
        "batches": loader.fingerprint,
        "onsets": {name: None if onset is None else asdict(onset) for name, onset in onsets.items()},
    }
    inputs = [loader.store.folder / "index.json", *(log.path for log in logs.values())]
    write_manifest(
        table, inputs=inputs, settings=settings, started=started, seed=against.seed, beside=[picture],
        modules=["hwh_core/commands/onset.py"],
    )  # fmt: skip
    return [table, picture]


def cells(name: str, estimates: Sequence[Estimate], onset: Onset | None) -> tuple[str, ...]:
    """One row of the printed table; nats a digit are those from the onset on, without one those of all steps."""
    from ..retrieval_onset import saving_from

    numbers = []
    for kind in ("both", "asked", "repeated"):
        first = onset.step if onset else 1
        rows = [row for row in estimates if row.regressor == kind and row.last_step >= first]
        numbers.append("{:+.2f} ± {:.2f}".format(*saving_from(rows, first)) if rows else "-")
    if onset is None:
        return (name, NONE_FOUND, "-", *numbers)
    return (name, f"{onset.step:,}", f"{onset.earliest:,} to {onset.latest:,}", *numbers)


def _print(estimates: Mapping[str, Sequence[Estimate]], onsets: Mapping[str, Onset | None], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(title, soft_wrap=True, highlight=False)
    table = Table()
    for number, heading in enumerate(HEADING):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for name, rows in estimates.items():
        table.add_row(*map(escape, cells(name, rows, onsets[name])))
    console.print(table)


def _notes(
    logs: Mapping[str, TrainingLog],
    missing: Sequence[str],
    steps: int,
    loader: RetrievalMixLoader,
    onsets: Mapping[str, Onset | None],
    against: str,
) -> list[str]:
    """What the numbers are, and what was left out or taken for granted."""
    notes = [
        "Nats a digit ± standard error, from that step on or, without one, in all steps; negative: the model copies "
        "more. -2.30 = -ln 10 is a digit in full."
    ]
    if None in onsets.values():
        notes.append(f"{NONE_FOUND}: this holds as far as {against} does not retrieve itself, which its needles tell.")
    longer = sorted(name for name, log in logs.items() if len(log.losses) > steps)
    if longer:
        shortest = min(logs, key=lambda name: len(logs[name].losses))
        notes.append(
            f"Steps after {steps:,} are not used, since {shortest} has no more: leave it out with --models to use "
            f"those of {', '.join(longer)}."
        )
    running = [name for name, log in logs.items() if not log.finished]
    if running:
        notes.append(f"Still in training: {', '.join(running)}.")
    if missing:
        notes.append(f"Left out, without a training log: {', '.join(missing)}.")
    assumed = [name for name, log in logs.items() if log.batches is None]
    if assumed:
        notes.append(
            f"Without a record of its batches, taken to be those of {loader.store.folder}: {', '.join(assumed)}."
        )
    else:
        notes.append(f"The batches of {loader.store.folder} are those that every training recorded.")
    return notes


def _other_way(joined: Mapping[str, Sequence[Estimate]], against: str) -> list[str]:
    """A line for each model against which ``against`` itself comes to save: it hides the onset of others."""
    from dataclasses import replace

    from ..retrieval_onset import find_onset

    lines = []
    for name, rows in joined.items():
        onset = find_onset([replace(row, nats_per_digit=-row.nats_per_digit) for row in rows])
        if onset is not None:
            lines.append(
                f"{against} itself copies more than {name} from step {onset.step:,} on; compare with a model that "
                "answers no needle."
            )
    return lines
