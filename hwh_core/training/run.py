"""One training from settings and token stores to a model folder with its records."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from ..data.loader import BatchLoader
from ..files import atomic_directory, atomic_write, read_json, write_json
from ..modeling import HwHForCausalLM, build_model
from ..provenance import write_manifest
from .checkpoint import CheckpointFolder
from .compilation import delta_net_backend
from .distributed import Workers, start_workers, stop_workers
from .flops import model_flops_per_token, model_flops_utilization
from .inputs import Inputs, Paths
from .settings import TrainSettings, run_fingerprint
from .snapshots import Snapshots
from .trainer import Outcome, Trainer, held_out_loss

HELD_OUT_WINDOWS = 64
# Windows are drawn with this seed whatever the model's, so that all models of a length are compared on the same text.
HELD_OUT_SEED = 0


def train(inputs: Inputs, paths: Paths) -> int:
    """Train one model; returns the exit code (0, or 128 + signal when stopped on request).

    Writes ``model``, ``initial``, ``train_log.jsonl``, where the settings ask for them ``snapshots``, ``metrics.json``
    and, last, the manifest of all but the snapshots below ``paths.output``, then deletes the checkpoints. Raises
    project errors for sizes or for checkpoints that do not fit, and for a loss that is not finite.
    """
    started = time.time()
    workers = start_workers()
    try:
        return _train(inputs, paths, workers, started)
    finally:
        stop_workers(workers)


def _train(inputs: Inputs, paths: Paths, workers: Workers, started: float) -> int:
    settings, loader, store = inputs.settings, inputs.loader, inputs.loader.store
    model_settings, training = settings.model, settings.training
    length = model_settings.length
    fingerprint = run_fingerprint(settings, loader.fingerprint, store.vocab_size)
    checkpoints = CheckpointFolder(paths.checkpoints, fingerprint, training.keep_checkpoints)
    model = build_model(
        model_settings.shape.model_dump(),
        model_settings.architecture,
        model_settings.rope_theta,
        model_settings.qk_norm,
        length,
        store.vocab_size,
        model_settings.seed,
    )
    model.config.eos_token_id = model.generation_config.eos_token_id = store.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = store.eos_token_id

    snapshots = None
    if settings.snapshot_steps is not None:
        snapshots = Snapshots(paths.checkpoints / "snapshots", settings.snapshot_steps, fingerprint)
    if not workers.is_first:
        if workers.any(False):
            return 0
        outcome = Trainer(model, loader, training, length, checkpoints, workers, snapshots).run()
        workers.wait()
        return outcome.exit_code or 0

    with checkpoints.locked():
        # By the training that was waited for, or by an earlier call; a workflow removes what it wants made anew. All
        # processes hear of it here, or the others would wait for a training that never starts.
        if workers.any(_is_finished(paths.output, fingerprint, snapshots)):
            print(f"{paths.output} is finished; delete {paths.output / 'metrics.json'} to train anew", file=sys.stderr)
            return 0
        save_model(model, paths.tokenizer, paths.output / "initial")
        trainer = Trainer(model, loader, training, length, checkpoints, workers, snapshots)
        outcome = trainer.run()
        if outcome.exit_code is not None:
            print(f"stopped after step {outcome.rows[-1]['step']}; run it again to go on", file=sys.stderr)
            workers.wait()
            return outcome.exit_code
        held_out_loader = BatchLoader(inputs.held_out, length, 1, HELD_OUT_SEED)
        count = min(HELD_OUT_WINDOWS, held_out_loader.num_windows)
        windows = BatchLoader(inputs.held_out, length, count, HELD_OUT_SEED).batch(0)
        loss = held_out_loss(model, windows, trainer.micro_rows, trainer.autocast)
        metrics = _metrics(settings, model, outcome, workers, loss, count) | {"fingerprint": fingerprint}
        metrics["damaged_checkpoints"] = checkpoints.damaged()
        save_model(model, paths.tokenizer, paths.output / "model")
        with atomic_write(paths.output / "train_log.jsonl") as temporary:
            shutil.copyfile(checkpoints.log_path, temporary)
        if snapshots is not None:
            snapshots.copy_to(paths.output / "snapshots")
        write_json(paths.output / "metrics.json", metrics)
        write_manifest(
            paths.output / "model",
            inputs=[paths.store / "index.json", paths.held_out / "index.json", paths.tokenizer],
            settings=settings.written(),
            seed=model_settings.seed,
            beside=[paths.output / name for name in ("metrics.json", "train_log.jsonl", "initial")],
            extra={
                "fingerprint": fingerprint,
                "delta_net_backend": metrics["delta_net_backend"],
                "delta_net_check": metrics["delta_net_check"],
                "damaged_checkpoints": metrics["damaged_checkpoints"],
            },
            started=started,
        )
        checkpoints.remove()
        if snapshots is not None:
            snapshots.remove()
    workers.wait()
    return 0


def _is_finished(output: Path, fingerprint: dict[str, str], snapshots: Snapshots | None) -> bool:
    metrics, manifest = output / "metrics.json", output / "model.manifest.json"
    finished = metrics.is_file() and manifest.is_file() and read_json(metrics).get("fingerprint") == fingerprint
    # Snapshots that were removed once they had been probed come back only by training again.
    return finished and (snapshots is None or not snapshots.missing(output / "snapshots"))


def save_model(model: HwHForCausalLM, tokenizer: Path, folder: Path) -> None:
    """Write a Hugging Face folder with the tokenizer's files; the folder appears only when it is complete."""
    if not sys.stderr.isatty():
        disable_progress_bar()
    with atomic_directory(folder) as temporary:
        model.save_pretrained(temporary)
        for file in sorted(tokenizer.iterdir()):
            if file.is_file():
                shutil.copyfile(file, temporary / file.name)


def _metrics(
    settings: TrainSettings, model: HwHForCausalLM, outcome: Outcome, workers: Workers, loss: float, windows: int
) -> dict[str, Any]:
    config, training = model.config, settings.training
    flops = model_flops_per_token(
        config.layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        length=settings.model.length,
    )
    cuda = workers.device.type == "cuda"
    device_name = torch.cuda.get_device_name(workers.device) if cuda else None
    speed = outcome.tokens_per_second()
    return {
        "train_loss": outcome.train_loss(),
        "held_out_loss": loss,
        "held_out_windows": windows,
        "retrieval_mix": settings.retrieval_mix and settings.retrieval_mix.model_dump(mode="json"),
        "steps": training.steps,
        "tokens": training.steps * training.tokens_per_step,
        "tokens_per_second": speed,
        "flops_per_token": flops,
        "mfu": model_flops_utilization(flops, speed, device_name, workers.world_size),
        "peak_memory_bytes": _peak_memory(workers),
        "parameters": model.num_parameters(),
        "seconds": outcome.seconds,
        "device": device_name or "cpu",
        "devices": workers.world_size,
        "parts": outcome.parts(),
        "compiled": outcome.compiled,
        "cuda_graph": outcome.cuda_graph,
        "delta_net_backend": delta_net_backend(model, workers.device),
        "delta_net_check": outcome.delta_net_check,
    }


def _peak_memory(workers: Workers) -> int:
    if workers.device.type == "cuda":
        return torch.cuda.max_memory_allocated(workers.device)
    import resource

    # Linux counts in kibibytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
