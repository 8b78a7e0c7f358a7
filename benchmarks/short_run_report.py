"""Figures of benchmarks.short_run, their drawing, and the joining of parts that ran on two cards."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording import Figure, Kind
from benchmarks.short_run_training import Result
from hwh_core.data.loader import BatchLoader
from hwh_core.data.store import TokenStore
from hwh_core.files import atomic_write
from hwh_core.reporting.selection import ARCHITECTURE_TITLES
from hwh_core.reporting.style import LINE_STYLES, METADATA, TEXT_WIDTH, colours_of, use_style

CURVE_POINTS = 150
# Nats. Sums of bfloat16 products in another order move a mean over thousands of tokens by less than a tenth of this;
# a weight that is lost or swapped moves it by more.
AGREEMENT = 0.01
# The hybrid and what it is held against.
COMPARED = ("hwh_std", "transformer")
HELD_OUT, DIFFERENCE = "held_out_loss", "hwh_std_minus_transformer_held_out_loss"
ALIKE_MODEL = ("shape", "rope_theta", "qk_norm", "length", "seed")
ALIKE = (*ALIKE_MODEL, "training", "vocab_size", "store_tokens", "store_sha256")


def thinned(losses: Sequence[float], points: int = CURVE_POINTS) -> list[tuple[float, float]]:
    """(step, loss) of at most ``points`` bins of equally many steps: mean step, counted from 1, and mean loss."""
    width = -(-len(losses) // points)
    bins = [range(start, min(start + width, len(losses))) for start in range(0, len(losses), width)]
    return [
        (statistics.fmean(step + 1 for step in one), round(statistics.fmean(losses[step] for step in one), 4))
        for one in bins
    ]


def sizes_of(settings: Mapping[str, Any], store: TokenStore) -> dict[str, Any]:
    """What is equal for all that train on the same batches in the same way."""
    return {key: settings["model"][key] for key in ALIKE_MODEL} | {
        "training": settings["training"],
        "vocab_size": store.vocab_size,
        "store_tokens": store.index["tokens"],
        "store_sha256": store.sha256,
    }


def usable_tokens(store: TokenStore, length: int) -> int:
    """Tokens of an epoch: those of all whole windows."""
    return BatchLoader(store, length, 1, 0).num_windows * length


def figures_of(size: str, settings: Mapping[str, Any], result: Result, store: TokenStore) -> list[Figure]:
    """Figures of one architecture."""
    name, metrics, sizes = settings["model"]["architecture"], result["metrics"], sizes_of(settings, store)
    kept = ("parameters", "held_out_windows", "compiled", "cuda_graph", "delta_net_backend", "mfu", "peak_memory_bytes")
    detail = {
        "architecture": name,
        **{key: metrics[key] for key in kept},
        # Of the training text; above 1 some of it was seen again.
        "epochs": metrics["tokens"] / usable_tokens(store, settings["model"]["length"]),
        "wall_seconds": result["wall_seconds"],
        "loss_curve": thinned([row["loss"] for row in result["rows"]]),
        "texts": result["fresh"]["texts"],
    }
    values: dict[str, tuple[float | int, str, float | None]] = {
        HELD_OUT: (metrics["held_out_loss"], "nats/token", None),
        "held_out_loss_in_a_fresh_process": (result["fresh"]["held_out_loss"], "nats/token", metrics["held_out_loss"]),
        "train_loss": (metrics["train_loss"], "nats/token", None),
        "tokens": (metrics["tokens"], "tokens", None),
        "seconds": (metrics["seconds"], "s", None),
        "tokens_per_second": (metrics["tokens_per_second"], "tokens/s", None),
        "resumed_at_step": (result["resumed_at_step"], "steps", None),
        "checkpoint_bytes": (result["checkpoint_bytes"], "bytes", None),
        "export_bytes": (result["export_bytes"], "bytes", None),
    }
    found: list[Figure] = []
    for key, (value, unit, against) in values.items():
        figure: Figure = {"id": f"short_run.{size}_{name}_{key}", "value": value, "unit": unit, "against": against}
        found.append(figure | {"sizes": sizes, "detail": detail} if key == HELD_OUT else figure)
    return found


def held_out_figures(figures: Sequence[Figure]) -> dict[str, Figure]:
    """The figure with sizes and detail of each architecture, by architecture."""
    return {figure["detail"]["architecture"]: figure for figure in figures if "loss_curve" in figure.get("detail", {})}


def with_difference(figures: Sequence[Figure]) -> list[Figure]:
    """The figures, and first the difference of the two held-out losses where both are there."""
    measured = [figure for figure in figures if not figure["id"].endswith(DIFFERENCE)]
    found = held_out_figures(measured)
    if not set(COMPARED) <= set(found):
        return measured
    value = found["hwh_std"]["value"] - found["transformer"]["value"]
    name = found["hwh_std"]["id"].removesuffix(f"hwh_std_{HELD_OUT}") + DIFFERENCE
    return [{"id": name, "value": value, "unit": "nats/token", "against": None}, *measured]


# What is joined to one result: architectures that trained on the same batches, until those compared are there.
KIND = Kind("short_run", ALIKE, with_difference, lambda figures: set(COMPARED) <= set(held_out_figures(figures)))


def complaints(name: str, result: Result) -> list[str]:
    """What makes the program fail though a run came to its end."""
    losses = [row["loss"] for row in result["rows"]]
    trained, fresh = result["metrics"]["held_out_loss"], result["fresh"]["held_out_loss"]
    found = []
    if not result["metrics"]["train_loss"] < losses[0]:
        found.append(f"{name}: the loss did not fall, from {losses[0]:.3f} to {result['metrics']['train_loss']:.3f}")
    if not abs(trained - fresh) <= AGREEMENT:
        found.append(
            f"{name}: the exported model has a held-out loss of {fresh:.4f} in a fresh process and had {trained:.4f} "
            f"in its training, expected at most {AGREEMENT} between them"
        )
    return found


def draw(figures: Sequence[Figure], path: Path, card: str) -> None:
    """Draw the loss curves of all architectures over tokens to ``path`` (PNG)."""
    use_style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(TEXT_WIDTH * 0.7, 3.2), layout="constrained")
    found = held_out_figures(figures)
    colours = colours_of(found)
    resumed = {one["id"]: one["value"] for one in figures}
    for position, (name, one) in enumerate(found.items()):
        millions = one["sizes"]["training"]["tokens_per_step"] / 1e6
        steps, losses = zip(*one["detail"]["loss_curve"], strict=True)
        tokens, colour = [step * millions for step in steps], colours[name]
        label = f"{ARCHITECTURE_TITLES.get(name, name)} (held out: {one['value']:.3f})"
        axes.plot(tokens, losses, color=colour, linestyle=LINE_STYLES[position % len(LINE_STYLES)], label=label)
        stop = resumed[one["id"].removesuffix(HELD_OUT) + "resumed_at_step"]
        nearest = min(range(len(steps)), key=lambda index: abs(steps[index] - stop))
        axes.plot(tokens[nearest], losses[nearest], color=colour, marker="v", markersize=6, linestyle="none")
    axes.plot([], [], color="0.4", marker="v", markersize=6, linestyle="none", label="stopped and resumed here")
    axes.set_xlabel("tokens seen (millions)")
    axes.set_ylabel("training loss (nats/token)")
    parameters = "/".join(f"{one['detail']['parameters'] / 1e6:.3g}" for one in found.values())
    axes.set_title(f"Training cut short: {parameters} million parameters on {card}")
    axes.grid(axis="y", linewidth=0.3, color="0.8")
    axes.legend()
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", metadata=METADATA["png"])
    plt.close(figure)
