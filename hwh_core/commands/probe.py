"""The analysis of the paper for your own model: RFIS, RPD, QRscore, LDscore of all heads, head classes, bands, norms.

MODEL is a Hugging Face folder (safetensors and tokenizer), a .gguf file, or owner/name[@<commit>] on the hub, without
a commit the newest one, which is printed and recorded.
Writes probe.npz, behavior.npz, norms.npz, heads.csv and bands.json. Killed, the same command goes on after the
finished samples.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.pretrained import LD_NUM_SINKS, LD_SINKS, LD_WINDOW, LD_WINDOWS
from ..devices import take_devices
from ..scripting import UserError
from ._options import refuse_seed, writing

if TYPE_CHECKING:
    from ..probes.analysis import ProbeResult

LENGTH = 8192
SAMPLES = "samples"
ARRAYS = ("probe.npz", "behavior.npz", "norms.npz")
TABLES = ("heads.csv", "bands.json")


def add_parser(subparsers: Any) -> None:
    """Register the options of `hwh probe`."""
    parser = subparsers.add_parser(
        "probe", help="RFIS, RPD, QRscore, LDscore, head classes and bands of your own model", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="Hugging Face folder, .gguf file, or owner/name[@<commit>]")
    parser.add_argument(
        "--samples", nargs="+", required=True, metavar="KIND[:FILE]",
        help="ruler[:FILE ...] (planted facts, in prose of your own), squad:FILE ... (questions with their contexts, "
        "among other contexts), nq, longmemeval (from the hub, or with :FILE in their layout), text:FILE ... (without "
        "evidence: no QRscore)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help=f"folder of {', '.join((*ARRAYS, *TABLES))}")
    parser.add_argument("--num-samples", type=int, default=100, help="default: 100, as in the paper")
    parser.add_argument("--length", type=int, help=f"tokens of a sample (default: {LENGTH}, or what the model takes)")
    parser.add_argument("--queries", type=int, default=128, help="last positions measured (default: 128)")
    parser.add_argument("--windows", type=int, nargs="+", default=LD_WINDOWS, help="of LDscore")
    parser.add_argument("--sinks", type=int, nargs="+", default=LD_SINKS, help="first tokens that LDscore leaves out")
    parser.add_argument("--window", type=int, default=LD_WINDOW, help=f"in heads.csv (default: {LD_WINDOW})")
    parser.add_argument("--num-sinks", type=int, default=LD_NUM_SINKS, help=f"in heads.csv (default: {LD_NUM_SINKS})")
    parser.add_argument("--no-calibration", action="store_true", help="leave out calibrated QRscore: half the time")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of weights, q and k; logits are rebuilt in float32 (default: float32 on CPU, the checkpoint's on GPU)",
    )
    parser.add_argument("--seed", type=int, default=0, help="which samples are drawn (default: 0)")
    parser.add_argument(
        "--backend",
        choices=("auto", "triton", "cpu-native", "torch", "reference"),
        default="auto",
        help="default: auto",
    )
    parser.add_argument("--restart", action="store_true", help="begin anew where the folder holds another probe")


def run(args: argparse.Namespace) -> int:
    """Probe the model, classify its heads, and print where the layer means of RPD are highest."""
    with writing(args.out):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from ..config import BandConfig
    from ..gpband.pretrained_heads import Model, Settings, describe_heads, summary
    from ..memory_plan import card_at_hand
    from ..probes.analysis import BehaviorSettings, probe_model, run_settings
    from ..probes.memory import probe_memory, require_memory
    from ..probes.model_folders import load_for_probe
    from ..probes.named_models import find_model, named_in_errors
    from ..probes.pretrained import check_length, training_length
    from ..probes.resume import remove
    from ..probes.sample_files import take_samples_of_files
    from ..probes.samples import parse_source
    from ..probes.unfinished import kept_if_begun
    from ..provenance import write_manifest

    source = parse_source(args.samples)
    for name in ("num_samples", "queries", "length"):
        value = getattr(args, name)
        if value is not None and value < (2 if name == "num_samples" else 1):
            least = "at least 2, for intervals over samples" if name == "num_samples" else "a positive number"
            raise UserError(f"--{name.replace('_', '-')}: {value} is not {least}")
    if args.length == 1:
        raise UserError("--length: 1 is not at least 2; RPD compares tokens with earlier ones")
    _refuse_sizes("window", args.windows, args.window, 1)
    _refuse_sizes("sinks", args.sinks, args.num_sinks, 0)
    refuse_seed(args.seed)
    behavior = BehaviorSettings(
        tuple(args.windows), tuple(args.sinks), args.window, args.num_sinks, not args.no_calibration
    )
    started = time.time()
    take_devices()
    args.model, path = find_model(args.model)

    def length_of(model: Any) -> int:
        length = args.length or min(LENGTH, training_length(model) or LENGTH)
        check_length(model, length, "--length")
        return length

    def check(model: Any) -> None:
        if (need := probe_memory(model, length_of(model), args.queries)) is not None:
            print(f"{args.model}: {need} at the peak", flush=True)
        require_memory(model, length_of(model), args.queries, card_at_hand(0))

    tokenizer, model = load_for_probe(path, args.dtype, check)
    length = length_of(model)
    if args.queries > length:
        raise UserError(f"--queries: {args.queries} is more than --length {length}; give at most that many")
    examples, about = take_samples_of_files(source, tokenizer, length, args.num_samples, args.seed)
    if len(examples) < args.num_samples:
        print(f"{args.samples[0]}: {len(examples)} samples instead of {args.num_samples}; there are no more")
    settings = run_settings(model, examples, args.queries, behavior)
    unfinished = args.out / SAMPLES
    if args.restart:
        remove(unfinished)
    elif _is_finished(args.out, settings):
        print(f"{args.out}: holds this probe already")
        return 0
    name = _name(args.model)
    with kept_if_begun(unfinished), named_in_errors(args.model, model):
        result = probe_model(
            model, tokenizer, examples, args.queries, behavior, args.backend, resume=unfinished, progress=True
        ).describe(seed=args.seed, **about, model=name, title=name)  # fmt: skip
    result.save(args.out)
    options = {key: value if isinstance(value, (int, list)) else str(value) for key, value in vars(args).items()}
    for file in ARRAYS:
        write_manifest(
            args.out / file, inputs=list(source.files), settings=options, seed=args.seed, started=started,
            extra={"backend": result.maps.description["backend"]},
        )  # fmt: skip
    _print_maps(args.out, result)
    if result.maps.every_layer_has_all_heads():
        settings = Settings(model=Model(name=name, title=name), band=BandConfig(), seed=args.seed)
        print(summary(describe_heads(settings, *(args.out / file for file in (*ARRAYS[:2], *TABLES)))))
    else:
        print("no heads.csv and bands.json: the layers of this model hold different numbers of heads")
    remove(unfinished)
    return 0


def _refuse_sizes(kind: str, values: Sequence[int], shown: int, least: int) -> None:
    """Raise :class:`UserError` where LDscore cannot be taken at ``values``, or heads.csv cannot show ``shown``."""
    many, one = {"window": ("--windows", "--window"), "sinks": ("--sinks", "--num-sinks")}[kind]
    for value in values:
        if value < least:
            raise UserError(f"{many}: {value} is not at least {least}")
        if list(values).count(value) > 1:
            raise UserError(f"{many}: {value} stands there twice; give every one once")
    if shown not in values:
        raise UserError(
            f"{one}: {shown}, which heads.csv shows, is not among {many} {' '.join(map(str, values))}; give one of "
            "these, or add it"
        )


def _name(model: str) -> str:
    """A model's name for files and figures."""
    name = Path(model.partition("@")[0]).resolve().name.removesuffix(".gguf")
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]", "", name)[:80] or "model"


def _is_finished(out: Path, settings: dict[str, Any]) -> bool:
    """Whether ``out`` holds the whole probe of these settings. Raises where it holds another."""
    from ..files import read_json
    from ..probes.resume import raise_if_changed

    record = out / "probe.json"
    if not record.is_file():
        return False
    raise_if_changed(str(out), read_json(record).get("settings", {}), settings, "a probe")
    # Finished samples are removed last of all.
    return not (out / SAMPLES).exists()


def _print_maps(out: Path, result: ProbeResult) -> None:
    import numpy as np

    maps = result.maps
    shape = " x ".join(map(str, maps.rpd.shape))
    print(f"{out / 'probe.npz'}: {shape} (samples, layers, heads, frequencies)")
    print(
        f"largest relative error of the rebuilt logits {maps.description['max_logit_error']:.1e}, "
        f"backend {maps.description['backend']}"
    )
    means = np.nanmean(maps.rpd, axis=(0, 2))
    for layer, row in zip(maps.layer_index, means, strict=True):
        peak = int(row.argmax())
        period = 2 * np.pi / maps.inv_freq[peak] if maps.inv_freq[peak] > 0 else float("inf")
        print(
            f"  layer {layer:3d}: RPD is highest at frequency {peak:3d} (period {period:.0f} tokens), {row[peak]:.3g}"
        )
