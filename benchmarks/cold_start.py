"""Cold start of a training: seconds from the start of a process to the end of its first step, with empty caches.

A fresh process, with Triton's and Inductor's caches in an empty folder, trains HwH-std of the single_gpu preset (8
layers of width 512, bfloat16) through the project's trainer: imports, check of the Gated DeltaNet kernels, compilation,
step. The operating system's cache of files is left alone. Writes benchmarks/results/cold_start.json. ``--autotune``
measures the same without the shipped launch configurations, ``--quick`` a small model, also on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRESET = Path(__file__).parents[1] / "config" / "single_gpu.yaml"
SCALE, ARCHITECTURE = "35M", "hwh_std"
VOCAB_SIZE = 16384
TARGET_SECONDS = 60.0
QUICK_SHAPE = {
    "num_layers": 8, "hidden_size": 64, "intermediate_size": 128, "attention_head_dim": 8, "gdn_head_dim": 8,
    "conv_size": 4, "gate": True,
}  # fmt: skip


class Moments:
    """Seconds since ``origin`` on the system's monotonic clock, which all processes share."""

    def __init__(self, origin: float) -> None:
        self._last = origin
        self._origin = origin
        self.parts: dict[str, float] = {}

    def part(self, name: str) -> None:
        """Everything since the part before is ``name``."""
        now = time.monotonic()
        self.parts[name] = now - self._last
        self._last = now

    def total(self) -> float:
        """Seconds from the origin to the end of the last part."""
        return self._last - self._origin


def measure(origin: float, folder: Path, quick: bool) -> dict[str, Any]:
    """In the fresh process: train two steps; returns ``parts`` and ``total`` in seconds, and how the steps ran."""
    moments = Moments(origin)
    from hwh_core.architectures import layers_of_shape
    from hwh_core.config import load_preset
    from hwh_core.devices import visible_devices
    from hwh_core.training.kernel_warm_up import start_warm_up

    scale = next(scale for scale in load_preset(PRESET).hwh.scales if scale.name == SCALE)
    training = scale.training
    if not quick and visible_devices():
        # As scripts/train.py does it.
        layers = layers_of_shape(scale.shape.model_dump(), ARCHITECTURE, qk_norm=scale.qk_norm)
        start_warm_up(layers, training.tokens_per_step // scale.length, scale.length, training.precision)
    moments.part("settings")
    import numpy as np
    import torch

    from hwh_core.modeling import build_model
    from hwh_core.training.checkpoint import CheckpointFolder
    from hwh_core.training.distributed import start_workers
    from hwh_core.training.trainer import Trainer

    moments.part("import")
    shape, length, vocab_size = scale.shape.model_dump(), scale.length, VOCAB_SIZE
    if quick:
        shape, length, vocab_size = QUICK_SHAPE, 64, 256
        training = training.model_copy(update={"tokens_per_step": 128, "steps": 10, "precision": "float32"})
    rope_theta = next(model.rope_theta for model in scale.models if model.architecture == ARCHITECTURE)
    model = build_model(shape, ARCHITECTURE, rope_theta, scale.qk_norm, length, vocab_size, 0)

    class Loader:
        """Random tokens, other ones at every step."""

        def batch(self, step: int) -> np.ndarray:
            rows = training.tokens_per_step // length
            return np.random.default_rng(step).integers(vocab_size, size=(rows, length + 1))

    workers = start_workers()
    trainer = Trainer(model, Loader(), training, length, CheckpointFolder(folder, {}, 1), workers)
    moments.part("model")
    on_fla = any(module.uses_fla(workers.device) for module in model.modules() if hasattr(module, "uses_fla"))
    if on_fla:
        from hwh_kernels.gated_delta_rule_fla import import_fla

        import_fla("fla.ops.gated_delta_rule.chunk", workers.device)
        moments.part("import_fla")
    first = trainer.run_step(0)
    if workers.device.type == "cuda":
        torch.cuda.synchronize()
    moments.part("first_step")
    second = trainer.run_step(1)
    check = trainer.delta_net_check
    parts = moments.parts
    if check is not None:
        parts["self_check"] = check["seconds"]
    # What is left of the first step beside the check and a step as the second one is: compilation and recording.
    compilation = parts["first_step"] - parts.get("self_check", 0.0) - second["seconds"]
    parts["compile"] = max(compilation, 0.0)
    return {
        "total": moments.total(),
        "parts": parts,
        "detail": {
            "losses": [first["loss"], second["loss"]],
            "second_step_seconds": second["seconds"],
            "compiled": trainer.compiled,
            "cuda_graph": getattr(trainer, "cuda_graph", False),
            "delta_net_check": check,
        },
    }


def run_fresh(quick: bool, autotune: bool) -> dict[str, Any]:
    """Start the fresh process with empty caches and return what it measured. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLA_")}
        for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
            environment[variable] = str(folder / variable.lower())
        if autotune:
            environment["FLA_CACHE_MODE"] = "disabled"
        result = folder / "result.json"
        command = [sys.executable, "-m", "benchmarks.cold_start", "--fresh", str(result)]
        command += ["--origin", repr(time.monotonic())] + ["--quick"] * quick
        finished = subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], check=False)
        if finished.returncode:
            raise RuntimeError(f"the fresh process ended with code {finished.returncode}; its messages are above")
        return json.loads(result.read_text(encoding="utf-8"))


def figures_of(result: dict[str, Any], prefix: str, quick: bool) -> list[dict[str, Any]]:
    """Figures of one fresh process: the total with its detail, then its parts."""
    sizes = {"quick": True} if quick else {"preset": PRESET.stem, "scale": SCALE, "architecture": ARCHITECTURE}
    total = {
        "id": prefix,
        "value": round(result["total"], 3),
        "unit": "s",
        "against": None if quick else TARGET_SECONDS,
        "sizes": sizes,
        "detail": result["detail"],
    }
    parts = [
        {"id": f"{prefix}.{name}", "value": round(seconds, 3), "unit": "s", "against": None}
        for name, seconds in result["parts"].items()
    ]
    return [total, *parts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m benchmarks.cold_start",
    )
    parser.add_argument("--quick", action="store_true", help="a small model, also on a CPU")
    parser.add_argument("--autotune", action="store_true", help="without the shipped launch configurations (minutes)")
    # In words of its own: benchmarks.recording imports torch, whose import is part of what is measured.
    parser.add_argument(
        "--output", type=Path, help="folder or .json file; default benchmarks/results (--quick: quick/)"
    )
    parser.add_argument("--fresh", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--origin", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.fresh is not None:
        result = measure(options.origin, options.fresh.parent / "checkpoints", options.quick)
        options.fresh.write_text(json.dumps(result), encoding="utf-8")
        return
    from benchmarks.recording import output_of, record

    flags = "".join(f" --{name}" for name in ("quick", "autotune") if getattr(options, name))
    if not options.quick:
        import torch

        if not torch.cuda.is_available():
            sys.exit(
                "error: benchmarks.cold_start needs a CUDA device, and torch sees none; --quick also runs on a CPU"
            )
    try:
        result = run_fresh(options.quick, options.autotune)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    name = "cold_start_autotune" if options.autotune else "cold_start"
    prefix = "gdn.cold_start_autotune_s" if options.autotune else "gdn.cold_start_s"
    output = output_of(options.output, options.quick)
    record(name, figures_of(result, prefix, options.quick), f"python -m benchmarks.cold_start{flags}", output)


if __name__ == "__main__":
    main()
