"""Train one model (controlled Transformer or member of the hybrid family) from a token store."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hwh_core.architectures import layers_of_shape
from hwh_core.devices import take_devices
from hwh_core.memory_estimate import training_of
from hwh_core.memory_plan import card_at_hand, require_memory
from hwh_core.scripting import load_settings, run
from hwh_core.training.inputs import Paths, open_inputs
from hwh_core.training.kernel_warm_up import start_warm_up
from hwh_core.training.settings import TrainSettings


def warm_up(settings: TrainSettings) -> None:
    """Let side processes compile this training's kernels; the first process of a machine starts them."""
    model, training = settings.model, settings.training
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    layers = layers_of_shape(
        model.shape.model_dump(), model.architecture, rope_theta=model.rope_theta, qk_norm=model.qk_norm
    )
    tokens = training.tokens_per_step // int(os.environ.get("WORLD_SIZE", "1"))
    rows = min(training.micro_batch_tokens or tokens, tokens) // model.length
    start_warm_up(layers, rows, model.length, training.precision)


def main() -> None:
    """Command line; exits with 128 + signal when stopped by SIGTERM or SIGINT after saving a checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Start it with torchrun to train on several GPUs. Given again after a stop, it goes on from the last "
        "checkpoint.",
    )
    parser.add_argument("--settings", required=True, help="JSON text or file: {model: {...}, training: {...}}")
    parser.add_argument("--store", required=True, type=Path, help="folder of the training token store")
    parser.add_argument("--held-out", required=True, type=Path, help="folder of the held-out token store")
    parser.add_argument("--tokenizer", required=True, type=Path, help="folder of the tokenizer of both stores")
    parser.add_argument("--output", required=True, type=Path, help="folder of model, initial, train_log, metrics")
    parser.add_argument("--checkpoints", required=True, type=Path, help="folder of checkpoints, deleted at the end")
    arguments = parser.parse_args()
    paths = Paths(
        store=arguments.store,
        held_out=arguments.held_out,
        tokenizer=arguments.tokenizer,
        output=arguments.output,
        checkpoints=arguments.checkpoints,
    )
    inputs = open_inputs(load_settings(arguments.settings), paths)
    devices = take_devices()
    training = training_of(inputs.settings, inputs.vocab_size, int(os.environ.get("WORLD_SIZE", "1")))
    require_memory(str(arguments.output), training, card_at_hand(int(os.environ.get("LOCAL_RANK", "0"))))

    if devices:
        warm_up(inputs.settings)
    # Imported only now: torch takes seconds, and what can be refused is refused before.
    from hwh_core.training.run import train

    code = train(inputs, paths)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    run(main)
