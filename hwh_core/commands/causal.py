"""Causal checks of your own model: what it loses without heads of a class, or without rotation, beside random sets.

MODEL is the one that `hwh probe MODEL --out DIR` has probed. Takes away the output of retrieval heads, of positional
heads and of the top 5% QR heads, and the rotation of frequencies below the band and in it; measures the loss on prose
and how likely the planted number of a needle prompt is. Writes causal.csv and causal_summary.csv, which
`hwh report DIR` shows, and the figure fig_causal (.pdf, .png, .csv). Killed, the same command goes on after the
finished interventions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config.pretrained import CausalConfig
from ..devices import take_devices
from ..scripting import UserError
from ._options import refuse_seed, writing

PROBE_FILES = ("probe.npz", "probe.json", "heads.csv", "bands.json")
TABLE = "causal.csv"


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh causal`."""
    parser = subparsers.add_parser(
        "causal", help="loss and needle answers without heads of a class or without rotation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="Hugging Face folder, .gguf file, or owner/name[@<commit>]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder that hwh probe wrote")
    parser.add_argument(
        "--text", type=Path, nargs="+", required=True, metavar="FILE",
        help="prose that the model was not trained on (.txt, or rows with a column text): windows and haystacks",
    )  # fmt: skip
    for name, field in CausalConfig.model_fields.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=field.default, metavar="N",
            help=f"{field.description} (default: {field.default})",
        )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="which windows, needles and random sets (default: 0)")
    parser.add_argument("--restart", action="store_true", help="begin anew where the folder holds other checks")


def run(args: argparse.Namespace) -> int:
    """Run the checks and print a line for each."""
    with writing(args.out):
        return _run(args)


def _settings(args: argparse.Namespace) -> CausalConfig:
    try:
        return CausalConfig.model_validate({name: getattr(args, name) for name in CausalConfig.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise UserError(f"--{option}: {first['input']} does not fit ({first['msg']})") from None


def _run(args: argparse.Namespace) -> int:
    from ..files import read_json
    from ..probes.causal import UNFINISHED, CausalChecks, sentences, write_checks
    from ..probes.model_folders import load_for_probe
    from ..probes.named_models import find_model, named_in_errors
    from ..probes.pretrained import check_length
    from ..probes.resume import remove
    from ..probes.samples import read_texts
    from ..probes.unfinished import kept_if_begun
    from ..probes.weights import weights_fingerprint
    from ..reporting.fig_causal import draw_checks
    from ..reporting.results import HEADS_COLUMNS, ResultFolder

    settings, started = _settings(args), time.time()
    refuse_seed(args.seed)
    for name in PROBE_FILES:
        if not (args.out / name).is_file():
            raise UserError(
                f"--out: {args.out} has no {name}; first run hwh probe {args.model} --samples ... --out {args.out} "
                "(models whose layers hold different numbers of heads get no heads.csv, and no checks)"
            )
    for path in args.text:
        if not path.is_file():
            raise UserError(f"--text: {path} does not exist")
    probed = read_json(args.out / "probe.json").get("settings")
    if probed is None:
        raise UserError(f"--out: {args.out} was not written by hwh probe; probe the model first")
    take_devices()
    args.model, path = find_model(args.model)
    tokenizer, model = load_for_probe(path, probed["dtype"], needs_head=True)
    if weights_fingerprint(model) != probed["model"]:
        raise UserError(f"--out: {args.out} holds the probe of another model than {args.model}; name the one probed")
    check_length(model, settings.length, "--length")
    folder = ResultFolder(args.out)
    rotated = int((folder.maps("probe.npz").inv_freq > 0).sum())
    checks = CausalChecks(
        model, tokenizer, folder.table("heads.csv", HEADS_COLUMNS), folder.json("bands.json"),
        read_texts(tuple(args.text)), settings, rotated=rotated, seed=args.seed,
    )  # fmt: skip
    unfinished = args.out / UNFINISHED
    if args.restart:
        remove(unfinished)
    elif _is_finished(args.out, unfinished, checks.settings):
        print(f"{args.out}: holds these checks already")
        return 0
    with kept_if_begun(unfinished), named_in_errors(args.model, model):
        table = checks.table(resume=unfinished)
    summary = write_checks(
        table, args.out / TABLE, inputs=[*folder.used, *args.text], settings=checks.settings, seed=args.seed,
        started=started,
    )  # fmt: skip
    title = read_json(args.out / "probe.json").get("title") or args.out.resolve().name
    figures = draw_checks(args.out, title)
    remove(unfinished)
    print("\n".join(sentences(summary)))
    print("\n".join(map(str, figures)))
    return 0


def _is_finished(out: Path, unfinished: Path, settings: dict[str, Any]) -> bool:
    """Whether ``out`` holds all checks of these settings. Raises where it holds others."""
    from ..files import read_json
    from ..probes.resume import FinishedValues, raise_if_changed

    manifest = out / f"{TABLE}.manifest.json"
    if not (manifest.is_file() and (out / TABLE).is_file()):
        return False
    raise_if_changed(str(out), read_json(manifest)["settings"], settings, FinishedValues.held)
    # Finished interventions are removed last of all.
    return not unfinished.exists()
