"""Prefill and decoding with the mixed cache: speed and memory of the head-wise hybrid beside the Transformer.

Random weights at the paper's 380M shape, bfloat16, one sequence; then the same context eight times over. Decoding is
greedy, one token a step in a plain loop, and the host never waits for the card within it. The bytes of both caches are
held against those that follow from the layers; if they differ by more than 1% the program ends with an error.
Writes benchmarks/results/decode.json; until its end what is measured stands in decode_part.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.recording import OUTPUT_HELP, Figure, Kept, Kind, Timing, median_seconds, output_of
from hwh_core.architectures import layers_of_shape
from hwh_core.config import load_preset
from hwh_core.heads import LayerSpec
from hwh_core.modeling import HwHCache, HwHForCausalLM, build_model
from hwh_core.progress import progress

PRESET = Path(__file__).parents[1] / "config" / "paper.yaml"
SCALE = "380M"
PEER = {"transformer": "hwh_std", "hwh_std": "transformer"}
LARGER_BATCH = 8
CACHE_TOLERANCE = 0.01
ROPE_THETA = 10000.0
QUICK_SHAPE = {
    "num_layers": 8, "hidden_size": 128, "intermediate_size": 256, "attention_head_dim": 16, "gdn_head_dim": 16,
    "conv_size": 4, "gate": True,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is measured: shape, vocabulary, context lengths in tokens, the one whose caches are compared, repeats."""

    shape: dict[str, Any]
    vocab_size: int
    lengths: tuple[int, ...]
    reference_length: int
    prefill_repeats: int
    decode_repeats: int
    steps: int
    """Tokens of one timed run of decoding."""


def full_plan() -> Plan:
    """The 380M shape of the paper preset, up to 131,072 tokens; under three minutes on an H200."""
    scale = next(scale for scale in load_preset(PRESET).hwh.scales if scale.name == SCALE)
    shape = scale.shape.model_dump(exclude_none=True)
    return Plan(shape, 32000, (2048, 8192, 32768, 131072), 32768, prefill_repeats=3, decode_repeats=5, steps=16)


def quick_plan() -> Plan:
    """A small model and short contexts: seconds, also on a CPU."""
    return Plan(QUICK_SHAPE, 256, (64, 300), 300, prefill_repeats=1, decode_repeats=2, steps=4)


def expected_cache_bytes(layers: Sequence[LayerSpec], length: int, element_bytes: int) -> int:
    """Bytes that the cache of one sequence needs: keys and values of attention, constant states of Gated DeltaNet.

    ``element_bytes``: of one number of the model; recurrent states are float32 always.
    """
    total = 0
    for group in (group for layer in layers for group in layer):
        if group.is_recurrent:
            convolutions = 3 * (group.conv_size - 1) * group.width
            total += 4 * group.heads * group.head_dim**2 + element_bytes * convolutions
        else:
            kept = length if group.window is None else min(length, group.window - 1)
            total += element_bytes * 2 * group.key_value_heads * group.head_dim * kept
    return total


def greedy_steps(model: HwHForCausalLM, cache: HwHCache, token: torch.Tensor, steps: int) -> torch.Tensor:
    """Decode ``steps`` tokens after ``token`` [B, 1] on the device; return the last, [B, 1]."""
    for _ in range(steps):
        token = model(token, cache=cache).logits[:, -1].argmax(-1, keepdim=True)
    return token


def decode_rate(model: HwHForCausalLM, cache: HwHCache, token: torch.Tensor, plan: Plan) -> tuple[float, float]:
    """Decoded tokens a second over all rows, and their interquartile range."""
    timing = median_seconds(lambda: greedy_steps(model, cache, token, plan.steps), plan.decode_repeats, warmup=1)
    return rate(plan.steps * token.shape[0], timing)


def rate(tokens: int, timing: Timing) -> tuple[float, float]:
    """Tokens a second, with the spread of the times carried over."""
    return tokens / timing.median, tokens / timing.median * timing.spread / timing.median


def repeated_cache_fits(cache: HwHCache, batch: int) -> bool:
    """Whether ``batch`` copies of a cache of one sequence fit into what the card has left, with a tenth to spare."""
    if not torch.cuda.is_available():
        return True
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (batch - 1) * cache.allocated_bytes() + total // 10 < free


@torch.inference_mode()
def measure(model: HwHForCausalLM, architecture: str, length: int, plan: Plan) -> list[Figure]:
    """All figures of one architecture at one context length."""
    device, dtype = model.device, str(model.dtype).removeprefix("torch.")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, plan.vocab_size, (1, length), generator=generator).to(device)
    kept: list[Any] = []

    def prefill() -> None:
        kept.clear()  # the cache before must go first: two long ones need not fit
        kept.append(model(ids, use_cache=True, logits_to_keep=1))

    found: list[Figure] = []

    def add(name: str, value: float | int | None, unit: str, against: str | int, batch: int = 1, **more: Any) -> None:
        sizes = {"length": length, "batch": batch, "dtype": dtype}
        found.append({
            "id": f"decode.{length}_{architecture}_{name}", "value": value, "unit": unit, "against": against,
            "sizes": sizes, **more,
        })  # fmt: skip

    prefilled, spread = rate(length, median_seconds(prefill, plan.prefill_repeats, warmup=1))
    add("prefill_tokens_per_second", prefilled, "tokens/s", PEER[architecture], spread=spread)
    output = kept.pop()
    cache, token = output.cache, output.logits[:, -1].argmax(-1, keepdim=True)
    del output
    expected = expected_cache_bytes(model.config.layers, length, model.dtype.itemsize)
    add("cache_bytes", cache.used_bytes(), "bytes", expected, detail={"allocated_bytes": cache.allocated_bytes()})
    decoded, spread = decode_rate(model, cache, token, plan)
    add("decode_tokens_per_second", decoded, "tokens/s", PEER[architecture], spread=spread)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
        add("peak_bytes", peak, "bytes", PEER[architecture], detail="prefill and decoding, weights included")
    name = f"batch{LARGER_BATCH}_decode_tokens_per_second"
    if repeated_cache_fits(cache, LARGER_BATCH):
        cache.batch_repeat_interleave(LARGER_BATCH)
        decoded, spread = decode_rate(model, cache, token.repeat_interleave(LARGER_BATCH, dim=0), plan)
        add(name, decoded, "tokens/s", PEER[architecture], LARGER_BATCH, spread=spread)
    else:
        missing = "not measured: the cache does not fit into memory"
        add(name, None, "tokens/s", PEER[architecture], LARGER_BATCH, detail=missing)
    return found


def comparisons(figures: Sequence[Figure], plan: Plan, element_bytes: int) -> list[Figure]:
    """Hybrid over Transformer: decoding speed at each length, and bytes of the cache at the reference length."""
    values = {figure["id"]: figure["value"] for figure in figures}
    found: list[Figure] = []
    for length in plan.lengths:
        for prefix, suffix in (("", ""), (f"batch{LARGER_BATCH}_", f"_batch{LARGER_BATCH}")):
            ours, theirs = (
                values[f"decode.{length}_{name}_{prefix}decode_tokens_per_second"]
                for name in ("hwh_std", "transformer")
            )
            if ours is None or theirs is None:
                continue
            found.append({
                "id": f"decode.{length}_hwh_std_over_transformer{suffix}", "value": ours / theirs, "unit": "ratio",
                "against": "decoded tokens a second of the transformer",
            })  # fmt: skip
    length = plan.reference_length
    ours, theirs = (values[f"decode.{length}_{name}_cache_bytes"] for name in ("hwh_std", "transformer"))
    expected = [
        expected_cache_bytes(layers_of_shape(plan.shape, name), length, element_bytes)
        for name in ("hwh_std", "transformer")
    ]
    found.append({
        "id": "decode.cache_ratio", "value": ours / theirs, "unit": "ratio", "against": expected[0] / expected[1],
        "sizes": {"length": length}, "detail": "against: full-attention share and Gated DeltaNet states of the layers",
    })  # fmt: skip
    return found


def check_cache_ratio(figures: Sequence[Figure]) -> None:
    """Exit with a message if the measured ratio of cache bytes is not the one that follows from the layers."""
    ratio = next(figure for figure in figures if figure["id"] == "decode.cache_ratio")
    value, expected = ratio["value"], ratio["against"]
    if abs(value / expected - 1) > CACHE_TOLERANCE:
        sys.exit(
            f"error: decode.cache_ratio = {value:.5f}, but the layers give {expected:.5f} (accepted: within "
            f"{CACHE_TOLERANCE:.0%}); look at HwHCache.used_bytes and at what each head group keeps"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m benchmarks.decode"
    )
    parser.add_argument("--quick", action="store_true", help="a small model and short contexts, also on a CPU")
    parser.add_argument("--output", type=Path, help=OUTPUT_HELP)
    options = parser.parse_args(arguments)
    options.output = output_of(options.output, options.quick)
    on_cuda = torch.cuda.is_available()
    if not on_cuda and not options.quick:
        sys.exit("error: benchmarks.decode needs a CUDA device, and torch sees none; --quick also runs on a CPU")
    plan = quick_plan() if options.quick else full_plan()
    device, dtype = ("cuda", torch.bfloat16) if on_cuda else ("cpu", torch.float32)
    command = "python -m benchmarks.decode" + (" --quick" if options.quick else "")
    kept = Kept(Kind("decode"), command, options.output, fresh=True)
    for architecture in PEER:
        model = build_model(plan.shape, architecture, ROPE_THETA, True, max(plan.lengths), plan.vocab_size, seed=0)
        model = model.to(device, dtype).eval()
        for length in progress(plan.lengths, f"decode, {architecture}", unit="length"):
            kept.add(measure(model, architecture, length, plan))
        del model
    kept.add(comparisons(kept.figures, plan, dtype.itemsize))
    kept.end()
    check_cache_ratio(kept.figures)


if __name__ == "__main__":
    main()
